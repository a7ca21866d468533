/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a rank needs for a model's tensors, by the headers of its files alone. */
#ifndef ZERORUN_MODEL_H
#define ZERORUN_MODEL_H

#include "model/sizing.h"

struct zero_files_ops;

struct model_layout {
	size_t world;
	size_t share; /* ranks that share memory; 0 means 1 */
	size_t team;  /* ranks that store a copy between them; 0 means all */
	int stage;
	enum zero_layout_mode mode;
	size_t bucket;
	bool device;      /* ranks have GPUs */
	bool offload;     /* of optimizer states */
	bool states_8bit; /* moments have 8 bits */
};

struct model {
	size_t tensors, groups;
	uint64_t elements, bytes;
	struct zero_sizing sizing;
	/* Matrices of numbered groups, such as layers, which Muon would step; and the work of the rank
	   with most of them over the mean. */
	size_t matrices;
	double balance;
};

/*
 * The part of a tensor's name that it shares with its group: up to and including the first
 * component that is a number ("transformer.h.0."), or all of it.
 */
size_t model_group_length(const char *name);
/*
 * Lays out tensors as a trainer would: in groups by model_group_length, with those of f32, f16 and
 * bf16 trainable and others not. On error, zero_last_error() has the sentence.
 */
zero_status model_size(const zero_tensor *const *tensors, size_t count,
		       const struct model_layout *layout, struct model *model);
/* The same for a .safetensors file, an index of several, or a folder with either. */
zero_status model_read(const char *path, const struct model_layout *layout, struct model *model);
/* The formats of files, if zerorun was built with the libraries that they need. */
const struct zero_files_ops *model_files(void);

#endif
