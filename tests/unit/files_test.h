/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of test_files share: files in a temporary folder, and what the module answers. */
#ifndef FILES_TEST_H
#define FILES_TEST_H

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "files/files.h"
#include "unit.h"

#define A_F32(shape, offsets) \
	"{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define ONE(name, shape, offsets) \
	"\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* The text of an index, and its entries. */
#define MAP(pairs) "{\"metadata\":{\"total_size\":16},\"weight_map\":{" pairs "}}"
#define A_IN_1     "\"a\":\"m-1.safetensors\""
#define B_IN_1     "\"b\":\"m-1.safetensors\""
#define C_IN_2     "\"c\":\"m-2.safetensors\""

extern char folder[];
extern char sentence[4096]; /* the message of the last error */
extern const struct zero_files_ops *ops;

/* A path in the test's folder; valid until the fourth call after it. */
const char *in_folder(const char *name);
void put_bytes(const char *name, const void *bytes, size_t count);
void put_text(const char *name, const char *text);
/* A safetensors file: length, header, then `data` bytes, which are a hole. */
void put_tensors_n(const char *name, const char *header, size_t length, off_t data);
void put_tensors(const char *name, const char *header, off_t data);
/* A folder within the test's folder. */
void make_folder(const char *name);
/* The files of a model in several files, in the folder "s". */
void put_shards(void);
struct zero_file *open_good(const char *path);
/* The path is refused, and the message has all of the words, which '|' separates. */
void refused(const char *path, zero_status expected, const char *words);

/* files_refused.c, files_valid.c */
TCase *refused_cases(void);
TCase *valid_cases(void);

#endif
