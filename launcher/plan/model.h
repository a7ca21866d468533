/* SPDX-License-Identifier: Apache-2.0 */
/* A model as libzero sees it, by the headers of its files alone. */
#ifndef ZERORUN_MODEL_H
#define ZERORUN_MODEL_H

#include "model/plan.h"

struct zero_files_ops;

struct model {
	struct zero_planned of;
	size_t tensors;
	uint64_t elements, bytes;
};

/*
 * The part of a tensor's name that it shares with its group: up to and including the first
 * component that is a number ("transformer.h.0."), or all of it.
 */
size_t model_group_length(const char *name);
/*
 * Adds a tensor as a trainer would: to its group by model_group_length, trainable if it is f32, f16
 * or bf16. Muon steps the matrices of numbered groups, such as layers. With stream=auto those of
 * two or three dimensions above the threshold are streamed.
 */
zero_status model_add(struct model *model, const zero_tensor *tensor);
/* Adds those of a .safetensors file, an index of several, or a folder with either. */
zero_status model_read(struct model *model, const char *path);
/* The formats of files, if zerorun was built with the libraries that they need. */
const struct zero_files_ops *model_files(void);

#endif
