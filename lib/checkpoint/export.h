/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of zero_export share. */
#ifndef ZERO_EXPORT_H
#define ZERO_EXPORT_H

#include "checkpoint/write.h"

struct zero_export_file {
	char *path;
	char *partial; /* the name until all files are on disk */
	char *header;
	size_t header_bytes;
	size_t first, count; /* of its tensors */
	uint64_t bytes;      /* of the complete file */
};

struct zero_export_plan {
	zero_job *job;
	const char *path; /* as the caller gave it */
	bool folder;      /* path names a folder */
	bool made;        /* this call created the folder */
	uint64_t limit;   /* bytes of tensors that a file of a folder may have */
	zero_param **params;
	zero_tensor *tensors; /* in the order of params */
	struct zero_export_file *files;
	size_t count, file_count;
	uint64_t token; /* in the names of partial files, so that no other job uses them */
};

/* zero_export, with other files than those of 5 GB. */
zero_status zero_export_files(zero_job *job, const char *path, uint64_t limit);

/* ---- export_names.c: rank 0 creates, renames and deletes files ------------------------------- */

/* Checks that files can be written to `path`. Creates the folder, and deletes the partial files of
   exports that were killed. */
zero_status zero_export_prepare(struct zero_export_plan *plan);
/* Renames the files, which are all on disk, to their final names. */
zero_status zero_export_publish(const struct zero_export_plan *plan);
/* After an error: deletes the files of this export. */
void zero_export_discard(const struct zero_export_plan *plan);

#endif
