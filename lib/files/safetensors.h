/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor's entry in a safetensors header. */
#ifndef ZERO_FILES_ENTRY_H
#define ZERO_FILES_ENTRY_H

#include "files/input.h"

#include <jansson.h>

struct entry {
	zero_tensor tensor;  /* name and path are the caller's */
	uint64_t begin, end; /* its data_offsets: bytes of the data that follow the header */
	uint64_t at;         /* where the header names it: bytes of the file */
};

/* Names a type as safetensors does; NULL if no tensor of it can be stored. `size` may be NULL. */
const char *entry_dtype_name(zero_dtype dtype, size_t *size);
/* The bytes of a tensor of this type and shape; false if they are not less than 2^63. */
bool entry_bytes(const zero_tensor *tensor, uint64_t *bytes);
/*
 * Checks everything that one entry can say wrong, given how many bytes of data the file has, and
 * fills in the rest. entry->tensor has its name and path, and entry->at is set.
 */
zero_status entry_read(const json_t *json, uint64_t data_bytes, struct entry *entry);
/* A sentence about this entry: file, tensor, byte. */
zero_status entry_fail(const struct entry *entry, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
