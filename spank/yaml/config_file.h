/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ZERO_CONFIG_FILE_H
#define ZERO_CONFIG_FILE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Returns the content of the file `path`, malloc'ed; messages call the file `name`. A trusted file
 * must be owned by root or by the caller, writable by its owner alone, and readable by all. On
 * error, returns NULL and sets *why to one sentence.
 */
char *zero_config_file_text(const char *path, const char *name, bool trusted, size_t *length,
			    char *why, size_t size);

#endif
