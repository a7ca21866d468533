/* SPDX-License-Identifier: Apache-2.0 */
/* What libzero gives to the modules that it opens; they link nothing of it. */
#ifndef ZERO_CORE_H
#define ZERO_CORE_H

#include "zero.h"

/* Grows by one with every change of a struct that crosses the border to a module. */
#define ZERO_MODULE_ABI 6

struct zero_core {
	/* Keeps the sentence as the calling thread's last error and returns `status`. */
	zero_status (*fail)(zero_status status, const char *format, ...)
		__attribute__((format(printf, 2, 3)));
	/* The same for an error that arose on another rank. */
	zero_status (*fail_on)(int rank, zero_status status, const char *text);
	const char *(*last_error)(void);
	const char *(*strerror)(zero_status status);
	size_t (*dtype_size)(zero_dtype dtype);
	const char *(*dtype_name)(zero_dtype dtype);
	uint64_t (*hash)(const void *data, size_t bytes, uint64_t seed); /* FNV-1a */
	/* The table of another module. */
	zero_status (*module_open)(const char *name, const void **table);
};

/*
 * Each module exports one function, zero_module_<name>, of this type. It keeps `core` and returns
 * its own table (struct zero_backend_ops, struct zero_files_ops), whose first member is an int
 * with ZERO_MODULE_ABI.
 */
typedef const void *(*zero_module_entry)(const struct zero_core *core);

#endif
