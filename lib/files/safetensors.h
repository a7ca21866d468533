/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: one file, and a model in several files with an index. */
#ifndef ZERO_FILES_SAFETENSORS_H
#define ZERO_FILES_SAFETENSORS_H

#include "files/input.h"

#include <jansson.h>

/* ---- tensor_set.c: the tensors of one or more files ------------------------------------------ */

struct zero_file {
	zero_tensor *tensors; /* in the order of the files' bytes; the set owns their names */
	size_t count;
	const zero_tensor **by_name; /* sorted */
	char **paths;                /* owned; each tensor's path is one of these */
	size_t path_count;
};

/* Adds a copy of the path, which lives as long as the set. */
zero_status files_add_path(struct zero_file *file, const char *path, const char **copy);
/* On success the set owns tensor->name. */
zero_status files_add_tensor(struct zero_file *file, const zero_tensor *tensor);
/* Makes the tensors findable by name. A name that is in two files is an error. */
zero_status files_sort_names(struct zero_file *file);

/* Entries of struct zero_files_ops. */
size_t files_count(const struct zero_file *file);
const zero_tensor *files_tensor(const struct zero_file *file, size_t i);
const zero_tensor *files_find(const struct zero_file *file, const char *name);
void files_free(struct zero_file *file);

/* ---- open.c, safetensors_read.c, index_read.c ------------------------------------------------ */

zero_status files_open(const char *path, struct zero_file **file);
/* Checks one file's header in full and adds its tensors. */
zero_status files_read_safetensors(struct zero_file *file, const char *path);
/* Reads the files that an index names, and checks them against the index. */
zero_status files_read_index(struct zero_file *file, const char *path);

/* ---- safetensors_write.c, index_write.c: entries of struct zero_files_ops -------------------- */

zero_status files_header(zero_tensor *tensors, size_t count, char **header, size_t *bytes);
zero_status files_index(const zero_tensor *tensors, size_t count, char **text, size_t *bytes);

/* ---- tensor_entry.c: one tensor's entry in a header ------------------------------------------ */

struct tensor_entry {
	zero_tensor tensor;   /* name and path are the caller's */
	uint64_t begin, end;  /* data_offsets: bytes of the data that follow the header */
	uint64_t name_offset; /* byte of the file where the header names it */
};

/* The format's name of a type; NULL if no tensor of it can be stored. `size` may be NULL. */
const char *safetensors_dtype_name(zero_dtype dtype, size_t *size);
/* The names of all types that are stored, for a message. */
extern const char safetensors_allowed_dtypes[];
/* The type of that name; false if this library stores no such type. */
bool safetensors_dtype(const char *name, zero_dtype *dtype);
/* The bytes of a tensor of this type and shape; false if they are not less than 2^63. */
bool safetensors_bytes(const zero_tensor *tensor, uint64_t *bytes);
/* A JSON integer of at least 0. */
bool files_json_size(const json_t *json, size_t *value);
/* A JSON value as text, for a message. */
struct files_printable files_json_printable(const json_t *json);
/*
 * Checks one entry against the bytes of data that the file has, and fills in `entry`, whose
 * name_offset and tensor's name and path are set.
 */
zero_status tensor_entry_read(const json_t *json, uint64_t data_bytes, struct tensor_entry *entry);
/* An error that names the entry's file, tensor and byte. */
zero_status tensor_entry_fail(const struct tensor_entry *entry, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
