/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other rooms and the launcher use of checkpoints: names, verified reading, and writing files.
 * A job calls the room by its hooks.
 */
#ifndef ZERO_CHECKPOINT_H
#define ZERO_CHECKPOINT_H

#include "files/files.h"
#include "job/hooks.h"

/* A save in the background: what changes is copied first, and a step completes the save once all
   ranks have written. */
extern const struct zero_hooks zero_checkpoint_hooks;

/* ---- names.c: the names of checkpoints ------------------------------------------------------- */

/*
 * Parses "step-" and a number at the start of `name`, as zero_checkpoint(5) describes them. Returns
 * what follows them; NULL if `name` does not begin so.
 */
const char *zero_checkpoint_step(const char *name, uint64_t *step);
/* What follows them in the name of a complete one, while a save replaces it; see save_folder.c. */
#define ZERO_REPLACED ".replaced"
/* Whether a name is that of a complete checkpoint, and of which step. */
bool zero_checkpoint_name(const char *name, uint64_t *step);
/* Whether a folder has a manifest. */
bool zero_checkpoint_exists(const char *folder);
/* "folder/name", malloc'ed; NULL without memory. */
char *zero_checkpoint_path(const char *folder, const char *name);

/* ---- find.c ---------------------------------------------------------------------------------- */

/*
 * Finds the checkpoint that `path` is, or that is in the folder `path`: the one that `latest` links
 * to, or else the one with the most steps. *folder is malloc'ed, and NULL if there is no checkpoint
 * or no such folder.
 */
zero_status zero_checkpoint_find(const char *path, char **folder);

/* ---- shard_reader.c: verified bytes of a checkpoint's files ---------------------------------- */

/* A checkpoint whose files are not in one folder. */
struct zero_shard_source {
	char path[64]; /* its name, for zero_restore and for messages */
	struct zero_manifest *manifest;
	const void *user; /* of the manifest's user_bytes */
	/* Reads bytes of a rank's file. */
	zero_status (*read)(void *context, int rank, uint64_t at, void *to, size_t bytes);
	void *context;
};

struct zero_shard_reader {
	const struct zero_files_ops *files;
	const struct zero_manifest *manifest;
	const struct zero_shard_source *source; /* NULL: a file of the folder */
	struct zero_shard_layout layout;
	int rank;
	char *path;
	int fd;
	uint64_t data;       /* byte of the file where the data begin */
	uint64_t *checksums; /* of the blocks of all slices */
	uint64_t read;       /* bytes read so far, with header and checksums */
	/* The last block that was read for a part of it. The next read most often needs the
	   rest. */
	char *block;
	const struct zero_shard_slice *block_of; /* NULL: none */
	uint64_t block_index;
};

/* Lists the slices in the file of one rank; nothing is opened yet. */
zero_status zero_shard_plan(struct zero_shard_reader *reader, const struct zero_files_ops *files,
			    const struct zero_manifest *manifest, const char *folder, int rank);
/* Opens the file and checks its size. A reader is open once it has its `block`. */
zero_status zero_shard_open_file(struct zero_shard_reader *reader);
zero_status zero_shard_check_header(struct zero_shard_reader *reader);
/* Reads the checksums and verifies them. Slices can be read after that. */
zero_status zero_shard_check_checksums(struct zero_shard_reader *reader);
/* Does all three. */
zero_status zero_shard_open(struct zero_shard_reader *reader);
/*
 * Reads bytes [at, at + bytes) of a slice and verifies the blocks that they are in. If `to` is NULL
 * they are verified only.
 */
zero_status zero_shard_read(struct zero_shard_reader *reader, const struct zero_shard_slice *slice,
			    uint64_t at, void *to, size_t bytes);
/* A reader that is all zero is a no-op. */
void zero_shard_close(struct zero_shard_reader *reader);

/* Reads and verifies the program's own bytes; *user is malloc'ed. */
zero_status zero_checkpoint_user(const struct zero_files_ops *files,
				 const struct zero_manifest *manifest, const char *folder,
				 void **user);

/* ---- write.c --------------------------------------------------------------------------------- */

/* Writes all bytes at byte `at` of a file. Returns 0 or an errno. */
int zero_write_all(int fd, const void *data, size_t bytes, uint64_t at);

#endif
