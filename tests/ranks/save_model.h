/* SPDX-License-Identifier: Apache-2.0 */
/* A model whose values, moments and masters the test can compute without the library. */
#ifndef SAVE_MODEL_H
#define SAVE_MODEL_H

#include "ranks.h"

enum { GROUPS = 4, KINDS = 8, PARAMS = GROUPS * KINDS, COUNT_MAX = 150000 };

struct model {
	zero_job *job;
	zero_team *team; /* of the last group; NULL: all ranks */
	int team_ranks;
	zero_group *groups[GROUPS];
	zero_param *params[PARAMS];
	unsigned char *states[PARAMS]; /* this rank's values of the named state; NULL: none */
	uint64_t steps;
};

/* All values at one moment, on each rank. */
struct moment {
	uint64_t steps;
	unsigned char values[PARAMS][COUNT_MAX * 8];
};

extern int world, rank, last;
extern bool large; /* whether the model has tensors of several pieces */

/* Bytes of a parameter's values. */
size_t value_bytes(const struct model *model, size_t p);
struct model open_model(const char *settings, uint64_t seed);
/* Random values. Trained values are exact in 16 bits, and the same in each type. */
void load_model(struct model *model, uint64_t seed);
/* Named states change as soon as the step has returned. */
void step_model(struct model *model, zero_step_result *result);
/* Unregisters all named states, and frees them at once. */
void drop_states(struct model *model);
/* Sets their values to those after so many steps; whether they have these. */
void fill_states(const struct model *model, uint64_t steps);
void check_states(const struct model *model, uint64_t steps);
/* COLLECTIVE. */
void close_model(struct model *model);
void remember(struct model *model, struct moment *moment);

/* Reads dir/step-<steps> byte by byte and compares; `user` may be NULL. COLLECTIVE. */
void check_checkpoint(struct model *model, const char *dir, const struct moment *moment,
		      const char *user);
/* Bytes of this rank's file. */
size_t own_bytes(const char *dir, uint64_t steps);

#endif
