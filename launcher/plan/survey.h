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
	const char *resolved; /* ZERO_RESOLVED of one of its tasks */
	unsigned tasks;
	/* The least bytes of its tasks. */
	uint64_t free, budget, chunk, threshold; /* threshold 0: the ranks will choose it */
	uint64_t limit;                          /* gather_limit */
	bool budget_known, limit_known;
};

struct survey {
	struct survey_node *node; /* sorted by name */
	size_t count;
	unsigned tasks;
	char *text; /* the names point into it */
};

/* Prints the line of a task of the step. 0, or the exit status after an error. */
int survey_report(FILE *out);

/* Runs the step. 0, or the exit status after an error: that of srun if it failed. */
int survey_run(struct survey *survey, const struct plan *plan);
/* Parses what the tasks printed. The survey owns `text` from then on. */
int survey_read(struct survey *survey, char *text);
void survey_clear(struct survey *survey);

/*
 * The settings of a node's tasks; to be cleared with zero_settings_clear. Ends zerorun if there is
 * no memory. They were parsed before, so that there is no other error.
 */
void survey_settings(const struct survey_node *node, struct zero_settings *settings);

#endif
