/* SPDX-License-Identifier: Apache-2.0 */
/* What slurmstepd knows of a step on its node, and what a task makes of it. */
#ifndef ZERO_NODE_H
#define ZERO_NODE_H

#include <limits.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "yaml/site_config.h"
#include "gpu/vram.h"

/* What a process of the step is given. */
enum node_task {
	NODE_TASK_NONE,   /* nothing: the extern step */
	NODE_TASK_SCRIPT, /* a batch script, an interactive shell, a proxy of mpirun: the
			     options, for the ranks that it may start itself */
	NODE_TASK_RANK,   /* a rank: all of it */
};

/* What is said once a node, by the first task that has to. */
enum node_said { NODE_SAID_ERROR, NODE_SAID_CONTAINER, NODE_SAID_BUDGET, NODE_SAID };

struct node {
	char name[256];
	char partition[256]; /* "" if not known */
	struct zero_config *site;
	struct zero_vram vram;
	atomic_flag *said; /* [NODE_SAID], shared by slurmstepd and its tasks; NULL: no memory */
	char *visible;     /* the step's CUDA_VISIBLE_DEVICES; NULL: not set */
	char *gpus;        /* its SLURM_STEP_GPUS or SLURM_JOB_GPUS */
	struct stat root;  /* slurmstepd's "/": a task with another one is in a container */
	bool on;
	bool clean;               /* --no-zero in a zero job */
	char why[PATH_MAX + 512]; /* an error that is kept until a task can tell it; "" if none */
};

/* A copy of a variable of the step or task; NULL if it is not set. */
char *node_variable(spank_t spank, const char *name);
/* For said.c; the context is the spank handle. */
bool node_said_variable(void *spank, const char *name, char *text, size_t size);

/* As a line of the user's, with the node's name; the sentence is made fit for it. */
void node_say_once(const struct node *node, enum node_said what, char *sentence);

/* ---- inherit.c ------------------------------------------------------------------------------- */

/* Takes the PMIx variables of a zero task around the step away: unless the step has PMIx of its
   own, which sets them after this, an MPI program would wait for that task's ranks. */
void inherit_clean_step(spank_t spank);
/* Takes away what the plugin gave to a zero task around this one. */
void inherit_clean_task(spank_t spank);

/* ---- size.c ---------------------------------------------------------------------------------- */

/* What the user said. */
struct words {
	struct zero_settings said;
	struct zero_config *user; /* the file of --zero-config; NULL: none */
};

/* With the rights of the process at the moment: those of the user, in a task. False: *why is a
   sentence, and nothing is left to clear. */
bool words_read(spank_t spank, struct words *words, char *why, size_t size);
void words_clear(struct words *words);
/* All options for a task with this GPU (NULL: none). False as above. */
bool words_resolve(const struct words *words, const struct node *node, const struct zero_gpu *gpu,
		   struct zero_settings *resolved, char *why, size_t size);
/* The same for this task, with the facts of its memory. False as above. */
bool size_task(spank_t spank, const struct node *node, const struct words *words,
	       struct zero_settings *resolved, struct zero_budget *budget, char *why, size_t size);
bool set_fact(struct zero_settings *resolved, enum zero_option_id id, const char *text, char *why,
	      size_t size);
struct zero_where node_where(const struct node *node, const struct zero_gpu *gpu);

/* ---- task.c ---------------------------------------------------------------------------------- */

/* Gives a task its variables. False: *why is a sentence. */
bool task_prepare(spank_t spank, const struct node *node, enum node_task kind, char *why,
		  size_t size);

#endif
