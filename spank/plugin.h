/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plugin's files share. plugin.c hands each SPANK callback to the file of its context:
 * submit.c is sbatch, salloc and srun, node.c is slurmstepd. Both lay what the user said (said.c)
 * over the site's file (config.h).
 */
#ifndef ZERO_PLUGIN_H
#define ZERO_PLUGIN_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/options.h"

/* What plugstack.conf says after the plugin's path. */
struct plugin_arguments {
	const char *config; /* config=PATH, or where the site's file was installed */
	const char *nvml;   /* nvml=PATH, or NULL for NVIDIA's own */
	char why[256];      /* a sentence if it says something else; "" if not */
};

/* A sentence for the user, with who says so in front. */
#define PLUGIN_NAME "spank_zero"

/* The variable by which sbatch, salloc and srun tell the nodes what they came to, and after a colon
   the variables that they set for it. Names in SLURM_ survive --export=NONE. */
#define DECISION      "SLURM_ZERO"
#define DECISION_ON   "on"   /* the user said so, of the job */
#define DECISION_STEP "step" /* of this step alone: those that its tasks start are not meant */
#define DECISION_SITE "site" /* the user said nothing, but the site has it on for all */
#define DECISION_OFF  "off"  /* --no-zero in a zero job */

/* ---- said.c: the user's own words ------------------------------------------------------------ */

/* Registers every flag of the options table, --zero and --no-zero. */
spank_err_t said_register(spank_t spank);

/* A variable of the user's environment, into `text`, cut if it is too long; false: it is not
   set. */
typedef bool (*said_variable)(void *context, const char *name, char *text, size_t size);

enum said_switch { SAID_NOTHING, SAID_ON, SAID_OFF };

/* Whether flags or else variables turn zero on or off. *why is a sentence and false is returned if
   ZERO_ENABLED is neither yes nor no. */
bool said_switch(said_variable variable, void *context, enum said_switch *wanted, char *why,
		 size_t size);
/*
 * Flags over variables, origins NULL where neither says anything. False: *why is a sentence, and
 * nothing is left to clear.
 */
bool said_settings(said_variable variable, void *context, struct zero_settings *said, char *why,
		   size_t size);

/* ---- submit.c -------------------------------------------------------------------------------- */

int submit_post_opt(const struct plugin_arguments *arguments);

/* ---- node.c ---------------------------------------------------------------------------------- */

/* All of these return 0: an error would drain the node where the plugin is required. */
int node_post_opt(spank_t spank, const struct plugin_arguments *arguments);
int node_user_init(spank_t spank);
int node_task_init(spank_t spank);
int node_task_exit(spank_t spank);
int node_exit(void);

#endif
