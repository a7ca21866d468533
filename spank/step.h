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
/* A user_variable of user_options.h; the context is the spank handle. */
bool step_read_variable(void *spank, const char *name, char *text, size_t size);
/* Returns where options are resolved for a task with this GPU, which may be NULL. */
struct zero_where step_where(const struct step_node *node, const struct zero_gpu *gpu);

/* Returns whether this is the first call for the notice on this node. */
bool step_is_first(const struct step_node *node, enum notice notice);
/* Prints a sentence to the user, with the name of the node; replaces its control characters. */
void log_once(const struct step_node *node, enum notice notice, char *sentence);

#endif
