/* SPDX-License-Identifier: Apache-2.0 */
/* What libzero offers to the modules that it opens, which are not linked with it. */
#ifndef ZERO_CORE_H
#define ZERO_CORE_H

#include "zero.h"

/* Changes with every struct that libzero and modules exchange. */
#define ZERO_MODULE_ABI 17

struct zero_core {
	/* Stores the sentence as the calling thread's last error and returns `status`. */
	zero_status (*fail)(zero_status status, const char *format, ...)
		__attribute__((format(printf, 2, 3)));
	/* The same for an error that arose on another rank. */
	zero_status (*fail_on)(int rank, zero_status status, const char *text);
	const char *(*last_error)(void);
	const char *(*strerror)(zero_status status);
	size_t (*dtype_size)(zero_dtype dtype);
	uint64_t (*hash)(const void *data, size_t bytes, uint64_t seed); /* FNV-1a */
	/* Opens another module and returns its table. */
	zero_status (*module_open)(const char *name, const void **table);
};

/*
 * Each module exports one function, zero_module_<name>, of this type. It stores `core` and returns
 * its own table (struct zero_backend_ops, struct zero_files_ops), whose first member is an int with
 * the value ZERO_MODULE_ABI.
 */
typedef const void *(*zero_module_entry)(const struct zero_core *core);
/* Each module's own: what its entry function was given. */
extern const struct zero_core *zero_core;

/* The library's own, for modules; zerorun, which has the files module linked in, passes it too. */
extern const struct zero_core zero_library_core;
/* Opens module zero_<name>.so from the library's own folder, once, and returns its table. */
zero_status zero_module_open(const char *name, const void **table);

#endif
