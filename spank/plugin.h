/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of the plugin share, and the callbacks that plugin.c dispatches to. */
#ifndef ZERO_PLUGIN_H
#define ZERO_PLUGIN_H

#include <slurm/spank.h>

#include "step.h"

/* The start of each message. */
#define PLUGIN_NAME "spank_zero"

/* The arguments after the plugin's path in plugstack.conf. */
struct plugin_arguments {
	const char *config;  /* config=PATH, or the installed path of the site's file */
	const char *nvml;    /* nvml=PATH, or NULL for NVIDIA's own library */
	double nvml_seconds; /* nvml_timeout=SECONDS, or 10: how long NVML may take */
	char why[256];       /* a sentence if another argument is there; else "" */
};

/*
 * The variable by which sbatch, salloc and srun pass their decision to the nodes. Its value is one
 * of the words below, then a colon and the names of the variables that the plugin set with it. A
 * name that starts with SLURM_ survives --export=NONE.
 */
#define DECISION      "SLURM_ZERO"
#define DECISION_ON   "on"   /* the user turned zero on for the job */
#define DECISION_STEP "step" /* for this step only, not for steps that its tasks start */
#define DECISION_SITE "site" /* the site turned zero on for all jobs */
#define DECISION_OFF  "off"  /* the user turned it off, within a zero job too */

/* submit.c, as the user: sbatch and salloc, which make a job, and srun. */
void job_init_post_opt(spank_t spank, const struct plugin_arguments *arguments);
void srun_init_post_opt(spank_t spank, const struct plugin_arguments *arguments);

/* step_node.c: slurmstepd, one for each step and node, as root. */
void step_node_init_post_opt(spank_t spank, const struct plugin_arguments *arguments);
void step_node_user_init(spank_t spank);
void step_node_task_exit(spank_t spank);
void step_node_exit(void);
/* Returns the state of this step on this node, for task_init. */
const struct step_node *step_node_state(void);
/* task.c: the copy of slurmstepd that becomes a task, as the user. */
void task_init(spank_t spank, const struct step_node *node);

/* epilog.c: the end of a job on a node, as root. */
void job_epilog(spank_t spank, const struct plugin_arguments *arguments);

#endif
