/* SPDX-License-Identifier: Apache-2.0 */
/* The table of zero_files.so: formats that need a JSON library. Nothing here communicates. */
#ifndef ZERO_FILES_H
#define ZERO_FILES_H

#include "core/module.h"

/* Bytes that one checksum of a checkpoint's shard is of. */
#define ZERO_SUM_BLOCK 65536

/* ---- what a checkpoint's manifest.json says; see zero_checkpoint(5) -------------------------- */

/* Ranks of the job that groups are sharded over. */
struct zero_manifest_team {
	int *ranks; /* ascending */
	int count;
};

struct zero_manifest_tensor {
	char *name, *group;
	size_t shape[ZERO_MAX_DIMS];
	uint64_t first; /* element of its run where it begins */
	uint64_t shard; /* elements of one shard of the run */
	zero_dtype dtype;
	int ndim;
	int team; /* index of teams; -1: all ranks */
	bool trainable;
};

/* Name of a rank's file: rank and world. */
#define ZERO_SHARD_FILE "rank-%05d-of-%05d.safetensors"

struct zero_manifest_file {
	char *name;
	uint64_t bytes;
	uint64_t header;    /* checksum of the bytes before the data */
	uint64_t checksums; /* of the last tensor's bytes */
};

struct zero_manifest {
	char *library; /* its version */
	char *allgather;
	uint64_t step, bucket;
	struct zero_manifest_team *teams;
	struct zero_manifest_tensor *tensors; /* in the order of the files */
	struct zero_manifest_file *files;     /* of all ranks */
	size_t team_count, tensor_count;
	uint64_t user_bytes, user_sum;
	double lr, beta1, beta2, eps, weight_decay, clip; /* those not finite are null, and NAN */
	int world, stage;
	bool has_adamw; /* the line above says something */
	bool has_user;
	bool states; /* there are moments, and masters of 16-bit parameters */
};

/* ---- where a checkpoint's slices lie --------------------------------------------------------- */

enum zero_slice_kind {
	ZERO_SLICE_PARAM,
	ZERO_SLICE_EXP_AVG,
	ZERO_SLICE_EXP_AVG_SQ,
	ZERO_SLICE_MASTER,
	ZERO_SLICE_KINDS,
};

/* "param/", "exp_avg/", "exp_avg_sq/", "master/" */
static inline const char *zero_slice_prefix(enum zero_slice_kind kind)
{
	static const char *const prefixes[] = {"param/", "exp_avg/", "exp_avg_sq/", "master/"};

	return prefixes[kind];
}

/* What is computed with in fewer bits than its states have: they keep an f32 master of it. */
static inline bool zero_has_master(zero_dtype dtype)
{
	return dtype == ZERO_F16 || dtype == ZERO_BF16;
}

/* Whether a tensor has slices of a kind, in a checkpoint with states or without. */
static inline bool zero_has_slice(enum zero_slice_kind kind, bool states, bool trainable,
				  zero_dtype dtype)
{
	if (kind == ZERO_SLICE_PARAM)
		return true;
	return states && trainable && (kind != ZERO_SLICE_MASTER || zero_has_master(dtype));
}

/* Their type there. */
static inline zero_dtype zero_slice_dtype(enum zero_slice_kind kind, zero_dtype dtype)
{
	return kind == ZERO_SLICE_PARAM ? dtype : ZERO_F32;
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

/* A tensor of a shard's file. */
struct zero_shard_slice {
	size_t tensor; /* of the manifest */
	enum zero_slice_kind kind;
	zero_dtype dtype;
	uint64_t first, count; /* its elements of that tensor */
	uint64_t at, bytes;    /* of the file's data */
	uint64_t sum;          /* index of its first checksum */
};

struct zero_shard_layout {
	struct zero_shard_slice *slices; /* in the order of the file; malloc'ed */
	size_t count;
	uint64_t bytes; /* of all slices; the checksums follow */
	uint64_t sums;  /* how many of those there are */
};

struct zero_report;

struct zero_files_ops {
	int abi;
	/* A .safetensors file, a model.safetensors.index.json or a folder with either; every header
	   is checked in full. ZERO_E_FILE or ZERO_E_FORMAT with file, tensor, byte and value. */
	zero_status (*open)(const char *path, struct zero_file **file);
	void (*close)(struct zero_file *file); /* NULL is legal */
	size_t (*count)(const struct zero_file *file);
	const zero_tensor *(*tensor)(const struct zero_file *file, size_t i);
	const zero_tensor *(*find)(const struct zero_file *file, const char *name);
	/*
	 * The header of one safetensors file that holds these tensors back to back in this order:
	 * 8 bytes of length, JSON, padding. Sets each tensor's offset. *header is malloc'ed; data
	 * begin at *bytes.
	 */
	zero_status (*header)(zero_tensor *tensors, size_t count, char **header, size_t *bytes);
	/* The text of a model.safetensors.index.json; malloc'ed. Each tensor is in the file of that
	   name, without the folder, that its `path` ends in. */
	zero_status (*index)(const zero_tensor *tensors, size_t count, char **text, size_t *bytes);

	/* The checksums of so many bytes, one for each block of ZERO_SUM_BLOCK, the last one maybe
	   shorter. */
	void (*sums)(const void *data, size_t bytes, uint64_t *sums);
	/* One of all of them. */
	uint64_t (*sum)(const void *data, size_t bytes);
	/* The text of a manifest, sealed; malloc'ed. */
	zero_status (*manifest_write)(const struct zero_manifest *manifest, char **text,
				      size_t *bytes);
	/* From the file `path`; its seal and all of its members are checked. */
	zero_status (*manifest_read)(const char *path, struct zero_manifest **manifest);
	/* In two steps: its bytes, malloc'ed, and what they say. `path` is for sentences. */
	zero_status (*manifest_load)(const char *path, char **text, size_t *bytes);
	zero_status (*manifest_parse)(const char *path, const char *text, size_t bytes,
				      struct zero_manifest **manifest);
	/* What the file of rank `rank` holds; of a manifest that was read. */
	zero_status (*manifest_shard)(const struct zero_manifest *manifest, int rank,
				      struct zero_shard_layout *layout);
	void (*manifest_free)(struct zero_manifest *manifest); /* NULL is legal */

	/* A job's report, see report/report.h, as text; malloc'ed. */
	zero_status (*report_json)(const struct zero_report *report, char **text, size_t *bytes);
};

const void *zero_module_files(const struct zero_core *core);

#endif
