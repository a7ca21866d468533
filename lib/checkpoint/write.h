/* SPDX-License-Identifier: Apache-2.0 */
/* Writing the files of checkpoints and exports. */
#ifndef ZERO_WRITE_H
#define ZERO_WRITE_H

#include "checkpoint/checkpoint.h"
#include "load/load.h"
#include "train/train.h"

/* ---- write.c --------------------------------------------------------------------------------- */

struct zero_writer {
	const char *path; /* the caller's */
	uint64_t bytes;   /* of the complete file */
	int fd;           /* -1: not open */
};

/* Creates a file and reserves its space, so that a full disk is an error before any byte is
   written. A file that exists is an error. */
zero_status zero_writer_create(struct zero_writer *writer);
/* The two steps of zero_writer_create. On tmpfs, reserving takes half as long as writing. */
zero_status zero_writer_create_empty(struct zero_writer *writer);
zero_status zero_writer_reserve(const struct zero_writer *writer);
/* Opens a file that another rank created with this number of bytes. */
zero_status zero_writer_open(struct zero_writer *writer);
zero_status zero_writer_write(const struct zero_writer *writer, const void *data, size_t bytes,
			      uint64_t at);
/*
 * Closes the file in any case; a file that is not open is a no-op. With `sync` all bytes are on
 * disk on return, and an error that the file system reports only now is returned. Without `sync`
 * the file is abandoned and errors are ignored.
 */
zero_status zero_writer_close(struct zero_writer *writer, bool sync);

/* "cannot <what> <path>: <why>", by errno. */
zero_status zero_file_error(const char *what, const char *path);
/* Writes a small file, which is on disk on return. */
zero_status zero_write_file(const char *path, const void *data, size_t bytes);
/* After this, renames in the folder survive a power failure. */
zero_status zero_sync_folder(const char *path);
/* The folder that `path` is in, malloc'ed; NULL without memory. */
char *zero_folder_of(const char *path);
/* Renames a file, and syncs the folder of `to`. */
zero_status zero_replace(const char *from, const char *to);

/* ---- names.c: final and partial names -------------------------------------------------------- */

/* The path of a step's checkpoint in `dir`, and that of a partial one; malloc'ed, NULL without
   memory. */
char *zero_checkpoint_step_path(const char *dir, uint64_t step);
char *zero_partial_path(const char *path, uint64_t token);
uint64_t zero_random_token(void);
/*
 * COLLECTIVE. Chooses a number that is the same on all ranks and that no other job has. The ranks
 * agree on `status` too. `label` names the operation and all that must be the same on all ranks.
 */
zero_status zero_agree_token(zero_job *job, zero_status status, const char *label, uint64_t *token);

#endif
