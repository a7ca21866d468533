/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of zero_files.so: safetensors files, manifests of checkpoints, and reports. The module
 * needs a JSON library, which libzero does not link. Nothing here communicates.
 */
#ifndef ZERO_FILES_H
#define ZERO_FILES_H

#include "core/module.h"

#include <stdio.h>
#include <string.h>

/* ---- a checkpoint's manifest.json, see zero_checkpoint(5) ------------------------------------ */

/* A checksum covers this many bytes of a tensor in a shard's file. */
#define ZERO_CHECKSUM_BLOCK 65536

/* A shard's file is named by its rank and the number of ranks. */
#define ZERO_SHARD_FILE "rank-%05d-of-%05d.safetensors"

/* A team: the ranks of the job that groups are sharded over. */
struct zero_manifest_team {
	int *ranks; /* rank i owns shard i; each once */
	int count;
};

/* A named state of a tensor. */
struct zero_manifest_state {
	char name[ZERO_STATE_NAME_MAX + 1];
	zero_dtype dtype;
	uint64_t block; /* elements of the tensor for one value, see ZERO_BLOCK_WHOLE */
};

struct zero_manifest_tensor {
	char *name, *group;
	struct zero_manifest_state *states; /* their names ascend */
	size_t state_count;
	size_t shape[ZERO_MAX_DIMS];
	uint64_t first; /* element of its segment where it begins */
	uint64_t shard; /* elements of one shard of the segment */
	zero_dtype dtype;
	int ndim;
	int team; /* index of teams; -1: all ranks */
	bool trainable;
	bool has_steps; /* `steps` is not the checkpoint's number of steps */
	uint64_t steps; /* that made its moments; if 0, it has none */
};

struct zero_manifest_file {
	char *name;
	uint64_t bytes;
	uint64_t header;    /* checksum of the bytes before the data */
	uint64_t checksums; /* checksum of the last tensor's bytes */
};

struct zero_manifest {
	char *library; /* version of the library that wrote it */
	char *allgather;
	uint64_t step, bucket;
	uint64_t seal; /* the checksum at the end of the file, which differs between manifests */
	struct zero_manifest_team *teams;
	struct zero_manifest_tensor *tensors; /* in the order of the files */
	struct zero_manifest_file *files;     /* one for each rank */
	size_t team_count, tensor_count;
	uint64_t user_bytes, user_checksum;
	double lr, beta1, beta2, eps, weight_decay, clip; /* null in the file and NAN: not finite */
	int world, stage;
	bool has_adamw; /* lr to clip are set */
	bool has_user;
	bool states;  /* there are moments, and masters of 16-bit parameters */
	bool masters; /* there are masters without moments: written by earlier releases alone */
};

/* ---- the tensors of a shard's file ----------------------------------------------------------- */

/* A parameter is saved as its values, its optimizer states if it is trained, and its named
   states. */
enum zero_saved_kind {
	ZERO_SAVED_PARAM,
	ZERO_SAVED_EXP_AVG,
	ZERO_SAVED_EXP_AVG_SQ,
	ZERO_SAVED_MASTER,
	ZERO_SAVED_NAMED,
	ZERO_SAVED_KINDS,
};

/* What the name of a saved tensor begins with. */
static inline const char *zero_saved_prefix(enum zero_saved_kind kind)
{
	static const char *const prefixes[] = {"param/", "exp_avg/", "exp_avg_sq/", "master/",
					       "state/"};

	return prefixes[kind];
}

/* Formats the name of a saved tensor as snprintf does. `state`: the name of the named state, which
   has no slash; NULL for other kinds. */
static inline size_t zero_saved_name(char *text, size_t capacity, enum zero_saved_kind kind,
				     const char *state, const char *param)
{
	return (size_t)snprintf(text, capacity, "%s%s%s%s", zero_saved_prefix(kind),
				state ? state : "", state ? "/" : "", param);
}

/* Whether the optimizer states of a parameter have an f32 master of it. */
static inline bool zero_has_master(zero_dtype dtype)
{
	return dtype == ZERO_F16 || dtype == ZERO_BF16;
}

/* What a step keeps of a parameter's gradients: two moments for AdamW, one for Muon. All but
   f32 moments are named states. */
enum zero_moments_kind { ZERO_MOMENTS_F32, ZERO_MOMENTS_8BIT, ZERO_MOMENTS_MUON };

/* Named states of the library begin so. Those of 8-bit moments are codes and their absmax. */
#define ZERO_STATE_OWN      "zero."
#define ZERO_STATE_M        ZERO_STATE_OWN "exp_avg"
#define ZERO_STATE_V        ZERO_STATE_OWN "exp_avg_sq"
#define ZERO_STATE_MOMENTUM ZERO_STATE_OWN "momentum_buffer"

static inline enum zero_moments_kind zero_tensor_moments(const struct zero_manifest_tensor *tensor)
{
	for (size_t i = 0; i < tensor->state_count; i++)
		if (!strcmp(tensor->states[i].name, ZERO_STATE_M))
			return ZERO_MOMENTS_8BIT;
		else if (!strcmp(tensor->states[i].name, ZERO_STATE_MOMENTUM))
			return ZERO_MOMENTS_MUON;
	return ZERO_MOMENTS_F32;
}

/* Whether a tensor has moments. */
static inline bool zero_tensor_is_stepped(const struct zero_manifest *manifest,
					  const struct zero_manifest_tensor *tensor)
{
	return manifest->states && tensor->trainable && (!tensor->has_steps || tensor->steps);
}

/* Whether a parameter is saved as this kind, which is no named state, where it has `states`. */
static inline bool zero_is_saved(enum zero_saved_kind kind, bool states,
				 enum zero_moments_kind moments, bool trainable, zero_dtype dtype)
{
	if (kind == ZERO_SAVED_PARAM)
		return true;
	return states && trainable &&
	       (kind == ZERO_SAVED_MASTER ? zero_has_master(dtype) : moments == ZERO_MOMENTS_F32);
}

/* The same of a tensor. */
static inline bool zero_tensor_has(const struct zero_manifest *manifest,
				   const struct zero_manifest_tensor *tensor,
				   enum zero_saved_kind kind)
{
	bool states = (manifest->states && (!tensor->has_steps || tensor->steps)) ||
		      (manifest->masters && kind == ZERO_SAVED_MASTER);

	return zero_is_saved(kind, states, zero_tensor_moments(tensor), tensor->trainable,
			     tensor->dtype);
}

/* The type in the file for a parameter of type `dtype`. */
static inline zero_dtype zero_saved_dtype(enum zero_saved_kind kind, zero_dtype dtype)
{
	return kind == ZERO_SAVED_PARAM ? dtype : ZERO_F32;
}

/* The block of a named state that has one value for all of its parameter. */
#define ZERO_BLOCK_WHOLE UINT64_MAX

/* Values [first, first + count) of a named state. */
struct zero_state_part {
	uint64_t first, count;
};

/* The values that a rank keeps which has elements [first, first + count) of the parameter: those of
   all blocks that have one of them. */
static inline struct zero_state_part zero_state_kept(uint64_t block, uint64_t first, uint64_t count)
{
	if (block == ZERO_BLOCK_WHOLE)
		return (struct zero_state_part){0, 1};
	if (!count)
		return (struct zero_state_part){0, 0};
	return (struct zero_state_part){first / block,
					(first + count - 1) / block + 1 - first / block};
}

/* Of these, the values that it saves: each value is saved by the rank that has its block's first
   element, and the value of the whole parameter by the first rank of the team. */
static inline struct zero_state_part zero_state_saved(uint64_t block, uint64_t first,
						      uint64_t count, bool first_rank)
{
	struct zero_state_part part = zero_state_kept(block, first, count);

	if (block == ZERO_BLOCK_WHOLE)
		part.count = first_rank;
	else if (part.count && first % block)
		part = (struct zero_state_part){part.first + 1, part.count - 1};
	return part;
}

/* Elements of a tensor whose size was checked. */
static inline uint64_t zero_manifest_elements(const struct zero_manifest_tensor *tensor)
{
	uint64_t count = 1;

	/* An empty tensor is empty however large its other dimensions are. */
	for (int i = 0; i < tensor->ndim; i++)
		if (!tensor->shape[i])
			return 0;
	for (int i = 0; i < tensor->ndim; i++)
		count *= tensor->shape[i];
	return count;
}

/* A slice: the part of one saved tensor that is in one rank's file. */
struct zero_shard_slice {
	size_t tensor; /* index of the manifest's tensors */
	enum zero_saved_kind kind;
	size_t state; /* of ZERO_SAVED_NAMED: index of the tensor's states */
	zero_dtype dtype;
	uint64_t first, count;   /* elements of the tensor, or values of its named state */
	uint64_t at, bytes;      /* bytes of the file's data */
	uint64_t first_checksum; /* index of its first checksum */
};

/* The name of the slice's named state; NULL for other kinds. */
static inline const char *zero_slice_state(const struct zero_manifest *manifest,
					   const struct zero_shard_slice *slice)
{
	return slice->kind == ZERO_SAVED_NAMED
		       ? manifest->tensors[slice->tensor].states[slice->state].name
		       : NULL;
}

struct zero_shard_layout {
	struct zero_shard_slice *slices; /* in the order of the file; malloc'ed */
	size_t count;
	uint64_t bytes;     /* of all slices; the checksums follow them */
	uint64_t checksums; /* number of checksums */
};

/* ---- the table ------------------------------------------------------------------------------- */

struct zero_report;

struct zero_files_ops {
	int abi;

	/*
	 * Opens a .safetensors file, a model.safetensors.index.json, or a folder with either. Every
	 * header is checked in full. Errors are ZERO_E_FILE or ZERO_E_FORMAT and name the file,
	 * tensor, byte and value.
	 */
	zero_status (*open)(const char *path, struct zero_file **file);
	void (*close)(struct zero_file *file); /* NULL is a no-op */
	size_t (*count)(const struct zero_file *file);
	const zero_tensor *(*tensor)(const struct zero_file *file, size_t i);
	const zero_tensor *(*find)(const struct zero_file *file, const char *name);
	/*
	 * Makes the header of a safetensors file that holds these tensors back to back in this
	 * order: 8 bytes of length, JSON, padding. Sets each tensor's offset. *header is malloc'ed;
	 * the data begin at byte *bytes of the file.
	 */
	zero_status (*header)(zero_tensor *tensors, size_t count, char **header, size_t *bytes);
	/*
	 * Makes the text of a model.safetensors.index.json; malloc'ed. A tensor's file is the last
	 * component of its `path`.
	 */
	zero_status (*index)(const zero_tensor *tensors, size_t count, char **text, size_t *bytes);

	/* Computes a checksum for each block of ZERO_CHECKSUM_BLOCK bytes; the last block may be
	   shorter. */
	void (*checksum_blocks)(const void *data, size_t bytes, uint64_t *checksums);
	/* Computes one checksum of all bytes. */
	uint64_t (*checksum)(const void *data, size_t bytes);
	/* Makes the text of a manifest with its seal; malloc'ed. */
	zero_status (*manifest_format)(const struct zero_manifest *manifest, char **text,
				       size_t *bytes);
	/* Reads a manifest and checks its seal and all of its members. */
	zero_status (*manifest_read)(const char *path, struct zero_manifest **manifest);
	/* The same of its text; `path` is a name for messages. */
	zero_status (*manifest_parse)(const char *path, const char *text, size_t bytes,
				      struct zero_manifest **manifest);
	/* Lists the slices in the file of rank `rank`. The manifest must have been read. */
	zero_status (*manifest_shard)(const struct zero_manifest *manifest, int rank,
				      struct zero_shard_layout *layout);
	void (*manifest_free)(struct zero_manifest *manifest); /* NULL is a no-op */

	/* A job's report, see files/report.h, as text; malloc'ed. */
	zero_status (*report_json)(const struct zero_report *report, char **text);
};

const void *zero_module_files(const struct zero_core *core);

#endif
