/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of zero_restore share; the launcher verifies checkpoints with them too. */
#ifndef ZERO_RESTORE_H
#define ZERO_RESTORE_H

#include "load/load.h"
#include "train/train.h"

/* ---- restore_find.c: what a path stands for -------------------------------------------------- */

/*
 * The checkpoint, malloc'ed, that `path` is or that a folder `path` has: that of `latest`, or else
 * the one of the most steps. *folder is NULL if there is none, also if the folder is not there.
 */
zero_status zero_checkpoint_find(const char *path, char **folder);
/* What follows the name of a checkpoint, "step-" and digits, at the begin of `name`; NULL: it does
   not begin so. */
const char *zero_checkpoint_step(const char *name, uint64_t *step);
/* Whether a name is that of a complete checkpoint, "step-" and digits, and of which step. */
bool zero_checkpoint_name(const char *name, uint64_t *step);
/* Whether a folder has a manifest. */
bool zero_checkpoint_there(const char *folder);
/* "folder/name", malloc'ed; NULL without memory. */
char *zero_checkpoint_path(const char *folder, const char *name);
/* The program's own bytes, verified and malloc'ed. */
zero_status zero_checkpoint_user(const struct zero_files_ops *files,
				 const struct zero_manifest *manifest, const char *folder,
				 void **user);

/* ---- restore_read.c: verified bytes of a shard's file ---------------------------------------- */

/* Opens a regular file that has just so many bytes, and is no link. */
zero_status zero_checkpoint_open(const char *path, uint64_t bytes, int *fd);
/* Reads all of these bytes or fails. */
zero_status zero_checkpoint_read(int fd, const char *path, uint64_t offset, void *to, size_t bytes);

struct zero_shard_reader {
	const struct zero_files_ops *files;
	const struct zero_manifest *manifest;
	struct zero_shard_layout layout;
	int rank;
	char *path;
	int fd;
	uint64_t data;  /* where the data begin: bytes of the file */
	uint64_t *sums; /* of the blocks of all slices */
	uint64_t read;  /* bytes, header and checksums with them */
	/* The block that was read last for a part of it: what comes next is most often the rest. */
	char *block;
	const struct zero_shard_slice *block_of; /* NULL: none */
	uint64_t block_index;
};

/* Lays out the file of one rank; nothing is opened yet. */
zero_status zero_shard_plan(struct zero_shard_reader *reader, const struct zero_files_ops *files,
			    const struct zero_manifest *manifest, const char *folder, int rank);
/* Opens it, if its size is right. */
zero_status zero_shard_begin(struct zero_shard_reader *reader);
/* Verifies its header, and its checksums: then slices can be read. */
zero_status zero_shard_check_header(struct zero_shard_reader *reader);
zero_status zero_shard_check_sums(struct zero_shard_reader *reader);
/* All three. */
zero_status zero_shard_open(struct zero_shard_reader *reader);
/* Bytes [at, at + bytes) of a slice, verified before they are at `to` for anybody to see; with a
   `to` of NULL verified only. */
zero_status zero_shard_read(struct zero_shard_reader *reader, const struct zero_shard_slice *slice,
			    uint64_t at, void *to, size_t bytes);
/* Legal for one that is all zero. */
void zero_shard_close(struct zero_shard_reader *reader);

/* ---- restore_plan.c: which parameter takes which tensor -------------------------------------- */

struct zero_restore {
	zero_job *job;
	const char *path; /* as it was given */
	const struct zero_files_ops *files;
	char *folder; /* of the checkpoint; NULL: there is none */
	struct zero_manifest *manifest;
	zero_param **params; /* of each tensor of the manifest */
};

/* Finds them, and compares what the checkpoint says of each with what the job does. */
zero_status zero_restore_plan(struct zero_restore *restore);

/* ---- restore_fill.c -------------------------------------------------------------------------- */

/* COLLECTIVE, with this rank's status so far. Reads what this rank stores and steps. */
zero_status zero_restore_fill(const struct zero_restore *restore, zero_status status);

#endif
