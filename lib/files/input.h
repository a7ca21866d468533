/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this module share. A zero_file is a set of tensors in one or more files. */
#ifndef ZERO_FILES_FILE_H
#define ZERO_FILES_FILE_H

#include "files/files.h"

/* The format's own bound on a header; an index may be as long. */
#define FILES_JSON_MAX 100000000u

struct zero_file {
	zero_tensor *tensors; /* in the order of the files' bytes; owns their names */
	size_t count, room;
	const zero_tensor **by_name; /* sorted */
	char **paths;                /* owned; each tensor's path is one of these */
	size_t path_count;
};

/* ---- files.c ---- */

const struct zero_core *files_core(void);

/* ---- set.c: a zero_file's own memory ---- */

zero_status files_no_memory(const char *path);
/* "folder/name", malloc'ed; NULL without memory. */
char *files_join(const char *folder, const char *name);
/* Keeps a copy of the path as long as the set lives. */
zero_status files_add_path(struct zero_file *file, const char *path, const char **kept);
/* Takes over tensor->name when it succeeds. */
zero_status files_add_tensor(struct zero_file *file, const zero_tensor *tensor);
/* Makes the tensors findable by name, and refuses one name in two files. */
zero_status files_sort_names(struct zero_file *file);
void files_free(struct zero_file *file);

/* ---- read.c: bytes and words ---- */

/* Opens a regular file for reading and nothing else: a FIFO or a device is refused, not read. */
zero_status files_open_regular(const char *path, int *fd, uint64_t *bytes);
/* Reads all of these bytes or fails. */
zero_status files_read(int fd, const char *path, uint64_t offset, size_t bytes, char *to);

struct files_words {
	char text[100];
};
/* Words from a file, made fit for a sentence: cut to a bounded length, no control characters. */
struct files_words files_words(const char *text);

/* ---- safetensors.c ---- */

/* Checks one file's header in full and adds its tensors. */
zero_status files_read_safetensors(struct zero_file *file, const char *path);

/* ---- index.c ---- */

/* The files that an index names, each checked in full and against the index. */
zero_status files_read_index(struct zero_file *file, const char *path);

/* ---- header.c ---- */

zero_status files_header(zero_tensor *tensors, size_t count, char **header, size_t *bytes);

/* ---- index_write.c ---- */

zero_status files_index(const zero_tensor *tensors, size_t count, char **text, size_t *bytes);

/* ---- sums.c, sums_avx2.c --------------------------------------------------------------------- */

void files_sums(const void *data, size_t bytes, uint64_t *sums);
uint64_t files_sum(const void *data, size_t bytes);
void files_sums_avx2(const void *data, size_t bytes, uint64_t *sums);

/* ---- manifest.c: what reading and writing share ---------------------------------------------- */

#define MANIFEST_FORMAT  "slurm-zero checkpoint"
#define MANIFEST_VERSION 1
#define MANIFEST_SUM     "xxh3-64"
#define MANIFEST_SEAL    ",\n\"seal\": \""
#define MANIFEST_END     "\"\n}\n"

enum { MANIFEST_SUM_DIGITS = 16 };

void manifest_free(struct zero_manifest *manifest);
/* The ranks that a tensor is sharded over. */
int manifest_world(const struct zero_manifest *manifest, const struct zero_manifest_tensor *tensor);

/* ---- manifest_write.c, manifest_read.c, members.c -------------------------------------------- */

zero_status manifest_write(const struct zero_manifest *manifest, char **text, size_t *bytes);
zero_status manifest_load(const char *path, char **text, size_t *bytes);
zero_status manifest_parse(const char *path, const char *text, size_t bytes,
			   struct zero_manifest **manifest);
zero_status manifest_read(const char *path, struct zero_manifest **manifest);

/* ---- manifest_check.c: what its members say together ----------------------------------------- */

zero_status manifest_check(const char *path, const struct zero_manifest *manifest);

/* ---- shard.c --------------------------------------------------------------------------------- */

zero_status manifest_shard(const struct zero_manifest *manifest, int rank,
			   struct zero_shard_layout *layout);

#endif
