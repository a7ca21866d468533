/* SPDX-License-Identifier: Apache-2.0 */
/* The table of zero_files.so: formats that need a JSON library. Nothing here communicates. */
#ifndef ZERO_FILES_H
#define ZERO_FILES_H

#include "core.h"

struct zero_files_ops {
	int abi;
	/* A .safetensors file, a model.safetensors.index.json or a folder with either; every header
	   is checked in full. ZERO_E_FILE or ZERO_E_FORMAT with file, tensor, byte and value. */
	zero_status (*open)(const char *path, struct zero_file **file);
	void (*close)(struct zero_file *file); /* NULL is legal */
	size_t (*count)(const struct zero_file *file);
	const zero_tensor *(*tensor)(const struct zero_file *file, size_t i);
	const zero_tensor *(*find)(const struct zero_file *file, const char *name);
	/*
	 * The header of one safetensors file that holds these tensors back to back in this order:
	 * 8 bytes of length, JSON, padding. Sets each tensor's offset. *header is malloc'ed; data
	 * begin at *bytes.
	 */
	zero_status (*header)(zero_tensor *tensors, size_t count, char **header, size_t *bytes);
};

const void *zero_module_files(const struct zero_core *core);

#endif
