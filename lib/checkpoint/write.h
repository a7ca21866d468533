/* SPDX-License-Identifier: Apache-2.0 */
/* Files that this rank writes: room first, then bytes in place, and a new name at the end. */
#ifndef ZERO_WRITE_H
#define ZERO_WRITE_H

#include "load/load.h"
#include "train/train.h"

struct zero_out {
	const char *path; /* the caller's */
	uint64_t bytes;   /* of the whole file, for messages and room */
	int fd;           /* -1: not open */
};

/* "cannot <what> <path> (<bytes> bytes in all): <why>" */
zero_status zero_out_error(const struct zero_out *out, const char *what, int error);
/* A new file with all its room at once, so that a full disk is known before anything is written. A
   name that is taken is an error. */
zero_status zero_out_create(struct zero_out *out);
/* The same in two steps: room takes as long as half of the writing where a file is memory. */
zero_status zero_out_new(struct zero_out *out);
zero_status zero_out_room(const struct zero_out *out);
/* One that another rank created, of that many bytes. */
zero_status zero_out_join(struct zero_out *out);
/* All of it, from there on; 0 or an errno. */
int zero_write_all(int fd, const void *data, size_t bytes, uint64_t at);
zero_status zero_out_write(const struct zero_out *out, const void *data, size_t bytes, uint64_t at);
/* `sync`: all is on disk on return; some file systems tell of a full one only now. Else it is given
   up, and that is no error. Closed in any case; legal if it is not open. */
zero_status zero_out_close(struct zero_out *out, bool sync);

/* The whole of a small file, on disk on return. */
zero_status zero_write_file(const char *path, const void *data, size_t bytes);

/* Whether a rename in a folder outlives a power cut. */
zero_status zero_sync_folder(const char *path);
/* The folder of `path`, malloc'ed; NULL: no memory. */
char *zero_folder_of(const char *path);
/* Renames, and syncs the folder of `to`. */
zero_status zero_replace(const char *from, const char *to);

/* COLLECTIVE. A number that all ranks have alike and no other job has; the ranks agree on `status`
   too. `label` says what for, with all that must be the same on all ranks. */
zero_status zero_token(zero_job *job, zero_status status, const char *label, uint64_t *token);

#endif
