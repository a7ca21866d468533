/* SPDX-License-Identifier: Apache-2.0 */
/* A zero_file's own memory: tensors, their names, and the paths that they lie in. */
#include "files/input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

zero_status files_no_memory(const char *path)
{
	return files_core()->fail(ZERO_E_MEMORY, "%s: no memory to read the file's header", path);
}

char *files_join(const char *folder, const char *name)
{
	size_t length = strlen(folder);
	const char *slash = length && folder[length - 1] == '/' ? "" : "/";
	size_t bytes = length + strlen(name) + 2;
	char *path = malloc(bytes);

	if (path)
		snprintf(path, bytes, "%s%s%s", folder, slash, name);
	return path;
}

zero_status files_add_path(struct zero_file *file, const char *path, const char **kept)
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
	*kept = copy;
	return ZERO_OK;
}

zero_status files_add_tensor(struct zero_file *file, const zero_tensor *tensor)
{
	if (file->count == file->room) {
		size_t room = file->room ? 2 * file->room : 64;
		zero_tensor *tensors = realloc(file->tensors, room * sizeof(*tensors));

		if (!tensors)
			return files_no_memory(tensor->path);
		file->tensors = tensors;
		file->room = room;
	}
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
			return files_core()->fail(ZERO_E_FORMAT,
						  "tensor \"%s\" is in two files, %s and %s; "
						  "each may be in one only",
						  files_words(a->name).text, a->path, b->path);
	}
	return ZERO_OK;
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
