/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a step on a node, which slurmstepd and its tasks share, and what both do with it. */
#ifndef ZERO_STEP_H
#define ZERO_STEP_H

#include <limits.h>
#include <slurm/spank.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "gpu/vram.h"
#include "yaml/site_config.h"

/* What a process of the step is, and what it gets. */
enum task_kind {
	TASK_NONE,     /* the extern step: nothing */
	TASK_LAUNCHER, /* a batch script, an interactive shell or a daemon of mpirun: the options,
			  for the ranks that it may start itself */
	TASK_RANK,     /* everything */
};

/* Messages that are printed once a node, by the first task that has one. */
enum notice {
	NOTICE_ERROR,
	NOTICE_PRELOAD,
	NOTICE_NVML,
	NOTICE_BUDGET,
	NOTICE_OPTIONS,
	NOTICES,
};

struct step_node {
	char name[256];
	/* as the variables of the job say, which the client may forge: "" if unknown */
	char partition[256], account[256], qos[256];
	struct zero_config *site;
	struct zero_vram_query query; /* of the GPUs; each task waits for the answer */
	atomic_flag *printed; /* [NOTICES], in memory shared with tasks; NULL without memory */
	char *visible;        /* the step's CUDA_VISIBLE_DEVICES; NULL if unset */
	char *gpus;           /* the step's SLURM_STEP_GPUS or SLURM_JOB_GPUS; NULL if unset */
	struct stat root;     /* "/" of slurmstepd: a task with another one is in a container */
	bool on;
	bool by_site;             /* who turned it on */
	bool clean;               /* remove the variables of the zero job around this step */
	char why[PATH_MAX + 512]; /* the error that the first task reports; "" if there is none */
};

enum task_kind step_task_kind(spank_t spank);
/* Returns a copy of a variable of the step or task; NULL if it is unset. */
char *step_variable(spank_t spank, const char *name);
/* Returns where options are resolved for a task with this GPU, which may be NULL. */
struct zero_where step_where(const struct step_node *node, const struct zero_gpu *gpu);

/* Returns whether this is the first call for the notice on this node. */
bool step_is_first(const struct step_node *node, enum notice notice);
/* Prints a sentence to the user, with the name of the node; replaces its control characters. */
void log_once(const struct step_node *node, enum notice notice, char *sentence);

/* ---- nested_step.c: the environment of a step that a task of a zero step started ------------- */

/* Removes the PMIx variables of the task around the step, which its srun passed on. With them, an
   MPI program would wait for the ranks of that task. A PMIx server of the step sets its own after
   this. */
void nested_step_remove_pmix(spank_t spank);
/* Removes the variables that the plugin set for the task around this one. */
void nested_step_remove_variables(spank_t spank);

/* ---- task_budget.c --------------------------------------------------------------------------- */

/* Resolves all options, sized for the GPUs or the memory that the task may use. *vram, which must
   be cleared, has the GPU of the budget. On error, returns false with a sentence in *why; *resolved
   needs no clearing then. */
bool task_budget_resolve(spank_t spank, const struct step_node *node,
			 const struct zero_settings *request, struct zero_settings *resolved,
			 struct zero_vram *vram, struct zero_budget *budget, char *why,
			 size_t size);
/* Sets one of the options that only a launcher sets, such as `tasks`. */
bool task_budget_set_fact(struct zero_settings *resolved, enum zero_option_id id, const char *text,
			  char *why, size_t size);

/* ---- task_preload.c: LD_PRELOAD and PYTHONPATH of a task ------------------------------------- */

/*
 * Prepends the library, unless the options say no, or the container of the task has none; sets the
 * option preload_path to what was prepended. On error, returns false with a sentence in *why.
 */
bool task_preload_set(spank_t spank, const struct step_node *node, struct zero_settings *resolved,
		      char *why, size_t size);
/*
 * After that: prepends the folder of the package slurm_zero that is beside the preloaded library,
 * or, if nothing is preloaded, beside the installed one, and sets the option python_path to it.
 * Does nothing if the options say no, or if there is no such folder. Errors as above.
 */
bool task_python_set(spank_t spank, const struct step_node *node, struct zero_settings *resolved,
		     char *why, size_t size);

/* ---- telemetry.c: what the plugin tells about a step ----------------------------------------- */

/* In a task: prints the options of the node's first task, as a verbose message. */
void log_options(spank_t spank, const struct step_node *node, const struct zero_settings *resolved);
/*
 * In slurmstepd. The step's first node writes one line of JSON when the step ends, to where
 * `telemetry` of zero.yaml says. No failure changes anything for the step.
 */
/* In user_init, with the effective ids of the user: `resolved` without a GPU, or NULL, and why. */
void telemetry_begin(spank_t spank, const struct step_node *node,
		     const struct zero_settings *resolved, const char *why);
/* For each task that ends, with its wait status. */
void telemetry_task(int status);
/* As root, when the step ends. */
void telemetry_end(const struct step_node *node);

#endif
