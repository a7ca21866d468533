/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of an export share. */
#ifndef ZERO_EXPORT_H
#define ZERO_EXPORT_H

#include "load/load.h"
#include "train/train.h"

struct zero_output_file {
	char *path;
	char *partial; /* where it is written first */
	char *header;
	size_t header_bytes;
	size_t first, count; /* of its tensors */
	uint64_t bytes;      /* of the whole file */
};

struct zero_output {
	zero_job *job;
	const char *path; /* that the caller gave */
	bool folder;      /* that is what it names */
	bool made;        /* and this call made it */
	zero_param **params;
	zero_tensor *tensors; /* in the order of params */
	struct zero_output_file *files;
	size_t count, file_count;
	uint64_t token; /* in the names of partial files, so that no other job uses them */
};

/* ---- export_names.c: what rank 0 does with names -------------------------------------------- */

/* Whether files can be where `path` says. Makes the folder, and clears it of what an export that
   was killed has left. */
zero_status zero_output_begin(struct zero_output *out);
/* Gives the files, all on disk, their names. */
zero_status zero_output_publish(const struct zero_output *out);
/* After an error: nothing of this export stays. */
void zero_output_drop(const struct zero_output *out);

#endif
