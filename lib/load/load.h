/* SPDX-License-Identifier: Apache-2.0 */
/* How values get to where they are stored: from files, tensors, other ranks and initialisers. */
#ifndef ZERO_LOAD_H
#define ZERO_LOAD_H

#include "files/files.h"
#include "model/model.h"

/* Two page-locked buffers on the way to a device and back, see staging.c. */
struct zero_staging {
	void *data[2];
	uint64_t copied[2]; /* events of the last copies from and to them */
	size_t bytes;       /* of each; 0: not allocated */
	int next;
};

struct zero_loader {
	struct zero_staging staging;
	char *file_path; /* of the file that was read last, kept open; NULL: none */
	int fd;
};

extern const struct zero_hooks zero_load_hooks;

/* ---- tensor_file.c --------------------------------------------------------------------------- */

/* Opens the module for file formats, once. */
zero_status zero_files_open(const struct zero_files_ops **files);

/* ---- source.c -------------------------------------------------------------------------------- */

zero_status zero_source_check(const zero_param *param, const zero_source *source);
/* Writes elements [first, first + count) of `param` to `out`. Local. */
zero_status zero_source_read(zero_param *param, const zero_source *source, void *out, size_t first,
			     size_t count);
/* Describes the load in words that are the same on all ranks. */
void zero_source_label(const zero_param *param, const zero_source *source, char *text, size_t size);

static inline bool zero_is_f8(zero_dtype dtype)
{
	return dtype == ZERO_F8_E4M3 || dtype == ZERO_F8_E5M2;
}

/* ---- slice.c --------------------------------------------------------------------------------- */

/* Writes elements [first, first + count) of a checked source, a tensor of a file, to `out`, in the
   parameter's type and order. Local. */
zero_status zero_slice_read(const zero_param *param, const zero_source *source, void *out,
			    size_t first, size_t count);
/* Closes the file that was read last. */
void zero_slice_close(zero_job *job);

/* ---- staging.c ------------------------------------------------------------------------------- */

/* Pieces are multiples of it, except for the last: whole elements, and whole blocks of
   checksums. */
#define ZERO_STAGING_MIN ((size_t)64 << 10)

/* Writes bytes [at, at + bytes) of what goes to the device. */
typedef zero_status (*zero_staging_fill)(void *context, void *data, size_t at, size_t bytes);
/* Reads bytes [at, at + bytes) of what came from the device. */
typedef zero_status (*zero_staging_use)(void *context, const void *data, size_t at, size_t bytes);

/* Fills `bytes` of the device's memory, a chunk at a time. The last copies may still be under way
   on return. */
zero_status zero_staging_in(zero_job *job, void *to, size_t bytes, zero_staging_fill fill,
			    void *context);
zero_status zero_staging_out(zero_job *job, const void *from, size_t bytes, zero_staging_use use,
			     void *context);

/* Frees the buffers. */
void zero_staging_close(zero_job *job);

/* ---- partition.c ----------------------------------------------------------------------------- */

/* The operation that sends the values at `data` of `rank` to all ranks of the team: all of them if
   `replicated`, else each rank's shard. The caller sets where they are received. */
struct zero_op zero_scatter_op(const zero_param *param, int rank, const void *data,
			       bool replicated);

/* ---- adopt.c, agree_tier.c, flatten.c: tensors that become views of flat buffers ------------- */

/* COLLECTIVE. Chooses the tier in which all that was adopted is packed, or fails. */
zero_status zero_tier_agree(zero_job *job);
/* COLLECTIVE, the end of zero_layout. Packs what was adopted. */
zero_status zero_flatten_adopted(zero_job *job);

#endif
