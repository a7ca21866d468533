/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files that somebody else wrote: their bytes, their names, and what a message quotes. */
#ifndef ZERO_FILES_INPUT_H
#define ZERO_FILES_INPUT_H

#include "files/files.h"

/* The safetensors format bounds a header by this; an index or a manifest may be as long. */
#define FILES_JSON_MAX 100000000u

zero_status files_no_memory(const char *path);

/* Opens a regular file for reading. A FIFO or a device is refused before anything is read. */
zero_status files_open_regular(const char *path, int *fd, uint64_t *bytes);
/* Reads exactly these bytes. */
zero_status files_read(int fd, const char *path, uint64_t offset, size_t bytes, char *to);
/* Reads a whole JSON file of at most FILES_JSON_MAX bytes. *text is malloc'ed. */
zero_status files_read_json(const char *path, char **text, size_t *bytes);

/* "folder/name", malloc'ed; NULL without memory. */
char *files_join(const char *folder, const char *name);
/* The part of a path that follows its last slash. */
const char *files_base_name(const char *path);
bool files_ends_with(const char *text, const char *end);

/*
 * Makes room for one more item in an array of `count`, and returns the array; NULL without memory,
 * with the old array unchanged. The array must have grown by this function only.
 */
void *files_grow(void *array, size_t count, size_t size);

struct files_printable {
	char text[100];
};
/* A text from a file made fit for a message: cut to a bounded length, no control characters. */
struct files_printable files_printable(const char *text);

#endif
