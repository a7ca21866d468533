/* SPDX-License-Identifier: Apache-2.0 */
/* Random models for load_model.c: what a parameter is, and what the files have for it. */
#ifndef LOAD_MODEL_H
#define LOAD_MODEL_H

#include "ranks.h"

enum { GROUPS = 3, TENSORS = 14, SHARDS = 3, EXTRA = 3, WORLD_MAX = 16 };

/* What a parameter is filled with. */
enum origin { CHECKPOINT, BY_CALLBACK, BY_DEFAULT };

struct tensor {
	zero_param *param;
	char name[40], file_name[48]; /* in the job, in the checkpoint */
	zero_dtype dtype, file_dtype;
	int ndim;
	size_t shape[3], count;
	enum origin origin;
	bool transpose, trainable;
	bool known; /* the callback says that the checkpoint has it not */
	struct tensor *tied;
	bool listed;           /* the file has a tensor of this name */
	unsigned char *values; /* as in the file */
	size_t shard;
};

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	struct tensor tensors[TENSORS + EXTRA]; /* extra ones are in the file only */
	size_t count, chunk, shards;
	int stage;
	int left_out; /* the rank that has no part in the last group; -1: none */
	bool renamed;
	char folder[1100];
	/* What progress said last. */
	uint64_t done, total;
	size_t calls;
};

extern int world;

SOME bool is_float(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16 || dtype == ZERO_F64;
}

/* COLLECTIVE. A job and what its model will be. */
void make_model(struct model *model, uint64_t seed, int stage);

/* COLLECTIVE. The parameters, laid out. */
void add_params(struct model *model);

/* COLLECTIVE. Writes the files. */
void write_model(struct model *model);

/* The group of parameter i. */
size_t group_of(size_t i);

/* Whether this rank has a part in group g; the last group may be of a team. */
bool is_member(const struct model *model, size_t g);

size_t file_bytes(const struct tensor *tensor);

#endif
