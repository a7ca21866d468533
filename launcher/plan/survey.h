/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the nodes of an allocation tell their ranks: a step is run with the same layout and the same
 * flags as the real one, whose tasks are zerorun and report the ZERO_RESOLVED that they were given.
 */
#ifndef ZERORUN_SURVEY_H
#define ZERORUN_SURVEY_H

#include "launcher/plan/plan.h"

/* zerorun as such a task; for nobody else. */
#define SURVEY_FLAG "--node-report"

struct survey_node {
	const char *name;
	const char *resolved; /* ZERO_RESOLVED of one of its tasks */
	unsigned tasks;
	/* Bytes, the least of its tasks. */
	uint64_t free, budget, chunk, threshold; /* threshold 0: the ranks will find it */
	uint64_t limit;                          /* gather_limit */
	bool budget_known, limit_known;
};

struct survey {
	struct survey_node *node; /* sorted by name */
	size_t count;
	unsigned tasks;
	char *text; /* what the names point into */
};

/* A task of the step: prints its line. 0, or the exit status after a complaint. */
int survey_report(FILE *out);

/* Runs the step. 0, or the exit status after a complaint: srun's own if that failed. */
int survey_run(struct survey *survey, const struct plan *plan);
/* What the tasks printed, of which the survey owns `text` from then on. */
int survey_read(struct survey *survey, char *text);
void survey_clear(struct survey *survey);

/*
 * What a node told its tasks; clear it with zero_settings_clear. Ends zerorun if there is no
 * memory: that it can be read is known.
 */
void survey_settings(const struct survey_node *node, struct zero_settings *told);

#endif
