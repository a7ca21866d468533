/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of one or more files, with their names and paths. */
#include "files/safetensors.h"

#include <stdlib.h>
#include <string.h>

zero_status files_add_path(struct zero_file *file, const char *path, const char **copied)
{
	char **paths = realloc(file->paths, (file->path_count + 1) * sizeof(*paths));
	char *copy = strdup(path);

	if (paths)
		file->paths = paths;
	if (!paths || !copy) {
		free(copy);
		return files_no_memory(path);
	}
	file->paths[file->path_count++] = copy;
	*copied = copy;
	return ZERO_OK;
}

zero_status files_add_tensor(struct zero_file *file, const zero_tensor *tensor)
{
	zero_tensor *tensors = files_grow(file->tensors, file->count, sizeof(*tensors));

	if (!tensors)
		return files_no_memory(tensor->path);
	file->tensors = tensors;
	file->tensors[file->count++] = *tensor;
	return ZERO_OK;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp((*(const zero_tensor *const *)a)->name,
		      (*(const zero_tensor *const *)b)->name);
}

zero_status files_sort_names(struct zero_file *file)
{
	if (file->by_name || !file->count)
		return ZERO_OK;
	file->by_name = malloc(file->count * sizeof(const zero_tensor *));
	if (!file->by_name)
		return files_no_memory(file->tensors[0].path);
	for (size_t i = 0; i < file->count; i++)
		file->by_name[i] = &file->tensors[i];
	qsort(file->by_name, file->count, sizeof(const zero_tensor *), compare_names);
	for (size_t i = 1; i < file->count; i++) {
		const zero_tensor *a = file->by_name[i - 1], *b = file->by_name[i];

		if (strcmp(a->name, b->name) == 0)
			return zero_core->fail(ZERO_E_FORMAT,
					       "tensor \"%s\" is in two files, %s and %s; "
					       "a tensor may be in one file only",
					       files_printable(a->name).text, a->path, b->path);
	}
	return ZERO_OK;
}

size_t files_count(const struct zero_file *file)
{
	return file ? file->count : 0;
}

const zero_tensor *files_tensor(const struct zero_file *file, size_t i)
{
	return file && i < file->count ? &file->tensors[i] : NULL;
}

static int compare_name(const void *name, const void *tensor)
{
	return strcmp(name, (*(const zero_tensor *const *)tensor)->name);
}

const zero_tensor *files_find(const struct zero_file *file, const char *name)
{
	const zero_tensor **found;

	if (!file || !name || !file->count)
		return NULL;
	found = bsearch(name, file->by_name, file->count, sizeof(*found), compare_name);
	return found ? *found : NULL;
}

void files_free(struct zero_file *file)
{
	if (!file)
		return;
	for (size_t i = 0; i < file->count; i++)
		free((char *)file->tensors[i].name);
	for (size_t i = 0; i < file->path_count; i++)
		free(file->paths[i]);
	free(file->tensors);
	free(file->by_name);
	free(file->paths);
	free(file);
}
