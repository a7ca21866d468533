/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A survey of the options that the nodes of an allocation give their ranks. It is a step with the
 * layout and flags of the job, whose tasks are zerorun and report their ZERO_RESOLVED.
 */
#ifndef ZERORUN_SURVEY_H
#define ZERORUN_SURVEY_H

#include "launcher/plan/plan.h"

/* The flag of zerorun as such a task. */
#define SURVEY_FLAG "--node-report"

struct survey_node {
	const char *name;
	struct zero_settings
		settings; /* of its first task, with the least sizes of all its tasks */
};

struct survey {
	struct survey_node *node; /* [count], sorted by name; NULL if no node was asked */
	size_t *ranks;            /* [count]: how many each node has */
	size_t count;             /* 0: not known */
	size_t world;
	char *text; /* the names point into it */
};

/* Prints the line of a task of the step. 0, or the exit status after an error. */
int survey_report(FILE *out);

/* Runs the step. 0, or the exit status after an error: that of srun if it failed. */
int survey_run(struct survey *survey, const struct plan *plan);
/* What is known without it: the number of ranks, and of each node's if srun starts as many on
   each. */
void survey_guess(struct survey *survey, const struct plan *plan, const struct request *request);
void survey_clear(struct survey *survey);

/* The node whose ranks have the least of an option. */
const struct survey_node *survey_least(const struct survey *survey, int id);
/* What all ranks will agree on, as the nodes' YAML, limits and memory have changed it. */
void survey_agree(const struct survey *survey, struct zero_settings *settings);

#endif
