/* SPDX-License-Identifier: Apache-2.0 */
/* What the plugin tells about a step: a line to the user of srun -v, and one to the site. */
#ifndef ZERO_TELEMETRY_H
#define ZERO_TELEMETRY_H

#include <slurm/spank.h>

#include "step.h"

/* Called in a task: prints the options of the node's first task, as a verbose message. */
void log_options(spank_t spank, const struct step_node *node, const struct zero_settings *resolved);

/*
 * Called in slurmstepd. The step's first node writes one line of JSON when the step ends, to where
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
