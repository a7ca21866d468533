/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random model for the tests of checkpoints. One seed determines its tensors, another one their
 * groups and teams. Only one rank of each team has gradients, so that training gives the same bits
 * at each number of ranks.
 */
#ifndef RESTORE_H
#define RESTORE_H

#include "ranks.h"

enum { TENSORS = 14, GROUPS = 4, SENTENCE = 1024, STATES = 4 };

struct tensor {
	char name[24];
	zero_dtype dtype;
	size_t shape[2], count;
	int ndim;
	bool trainable;
	int tied; /* to this tensor; -1: to none */
};

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_team *teams[GROUPS]; /* NULL: all ranks */
	int first[GROUPS];        /* first rank of the group's team */
	bool member[GROUPS], trainable[GROUPS];
	struct tensor tensors[TENSORS];
	zero_param *params[TENSORS];
	int group_of[TENSORS];
	unsigned char *states[TENSORS][STATES]; /* this rank's values of named states */
	uint64_t seed, steps;
};

/* `size`: the approximate limit on the elements of a tensor. */
void make_tensors(struct model *model, uint64_t seed, size_t size);
/* Opens a job with these tensors, in groups that the seed `grouping` chooses. Loads no values. */
void open_model(struct model *model, uint64_t grouping, const char *settings);
void load_values(struct model *model);
void train(struct model *model, int steps);
void close_model(struct model *model);
/* Bytes of all parameters and states, named ones included. */
double state_bytes(const struct model *model);

/* A digest of each tensor's values, the same on all ranks. COLLECTIVE. */
struct digests {
	double of[TENSORS];
};
struct digests digest(struct model *model);
void expect_same(const struct model *model, const struct digests *got, const struct digests *want,
		 const char *what);
/* COLLECTIVE. */
void meet(zero_job *job);
/* A random choice of settings. */
void choose_settings(uint64_t *random, char *text, size_t size);

/* ---- restore_states.c ------------------------------------------------------------------------ */

/* Registers states of the tensors; open_model does so, and close_model frees them. */
void register_states(struct model *model);
void free_states(struct model *model);
/* Sets the values that they have after so many steps; whether they have these. */
void fill_states(const struct model *model, uint64_t steps);
void check_states(const struct model *model, uint64_t steps);
/* At most so many bytes have their values. */
double named_bytes(const struct model *model);
/* COLLECTIVE. What is refused, with a checkpoint of this model in `dir`. */
void states(struct model *model, const char *dir);
/* COLLECTIVE. Masters of a program that takes its own steps. */
void own_steps(const char *dir);

/* ---- restore_damage.c ------------------------------------------------------------------------ */

/* Reads a file; malloc'ed, with a zero at its end. */
char *read_all(const char *path, size_t *bytes);

/* COLLECTIVE. Damages the checkpoint `path` in many ways, one after the other; each must be
   refused. */
void damage(struct model *model, const char *path, int flips);

#endif
