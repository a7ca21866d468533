/* SPDX-License-Identifier: Apache-2.0 */
/* A model of several types beside its reference, for the tests of a step. */
#ifndef STEP_MODEL_H
#define STEP_MODEL_H

#include "ranks.h"
#include "reference.h"

enum { GROUPS = 4, PARAMS = 9 };

struct tensor {
	const char *name;
	size_t group, count;
	zero_dtype dtype;
	bool trainable;
};

extern const struct tensor tensors[PARAMS];
extern const zero_adamw plain;
extern int world, rank, last;
extern uint64_t seed;

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[PARAMS];
	zero_dtype gradients[GROUPS];
	struct ref_param refs[PARAMS];
	bool reduced[GROUPS];
	uint64_t random; /* the same on all ranks, and for all settings */
	uint64_t steps;
	const char *settings;
};

/* With gradients of f32 if `gradients` is NULL. */
void begin(struct model *m, const char *settings, const zero_dtype gradients[GROUPS]);
void end(struct model *m);
/* Values for the library and the reference. */
void load(struct model *m, uint64_t from);

/* What is gathered is what the reference has. */
void compare_group(struct model *m, size_t g, zero_dtype as);
void compare(struct model *m);

/* Some gradients times `factor`, and some reduces. A group that nobody reduces is reduced by the
   step. */
void backward(struct model *m, float factor);
/* Steps both; `mean` is what the sums are to be multiplied by. Returns the norm. */
double step(struct model *m, const zero_adamw *adamw, double mean);

#endif
