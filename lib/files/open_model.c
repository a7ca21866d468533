/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a model by its path, which is that of a file, of an index, or of a folder. */
#include "files/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

/* The path of the folder's only .safetensors file, malloc'ed. A hidden file is skipped: it may be
   one that another program is still writing. */
static zero_status find_only_file(const char *folder, char **path)
{
	zero_status status = ZERO_OK;
	struct dirent *entry;
	DIR *dir;

	*path = NULL;
	dir = opendir(folder);
	if (!dir)
		return zero_core->fail(ZERO_E_FILE, "%s: the folder cannot be read: %s", folder,
				       strerror(errno));
	while (!status && (errno = 0, entry = readdir(dir))) {
		if (entry->d_name[0] == '.' || !files_ends_with(entry->d_name, ".safetensors"))
			continue;
		if (*path) {
			status = zero_core->fail(
				ZERO_E_FILE,
				"%s: the folder has several .safetensors files (\"%s\", \"%s\") "
				"and neither %s nor %s, so it does not say which is the model; "
				"give "
				"the path of one of them",
				folder, files_printable(files_base_name(*path)).text,
				files_printable(entry->d_name).text, index_name, single_name);
			break;
		}
		*path = files_join(folder, entry->d_name);
		if (!*path)
			status = files_no_memory(folder);
	}
	if (!status && errno)
		status = zero_core->fail(ZERO_E_FILE, "%s: the folder cannot be read: %s", folder,
					 strerror(errno));
	if (!status && !*path)
		status = zero_core->fail(ZERO_E_FILE,
					 "%s: the folder has no %s, no %s and no other "
					 ".safetensors file",
					 folder, index_name, single_name);
	if (status) {
		free(*path);
		*path = NULL;
	}
	closedir(dir);
	return status;
}

/* Also true for a file that cannot be read: opening it reports why. */
static bool exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 || errno != ENOENT;
}

static zero_status read_folder(struct zero_file *file, const char *folder)
{
	char *index = files_join(folder, index_name);
	char *single = files_join(folder, single_name);
	char *only = NULL;
	zero_status status;

	if (!index || !single) {
		status = files_no_memory(folder);
	} else if (exists(index)) {
		status = files_read_index(file, index);
	} else if (exists(single)) {
		status = files_read_safetensors(file, single);
	} else {
		status = find_only_file(folder, &only);
		if (!status)
			status = files_read_safetensors(file, only);
	}
	free(only);
	free(single);
	free(index);
	return status;
}

zero_status files_open(const char *path, struct zero_file **result)
{
	struct zero_file *file;
	zero_status status;
	struct stat st;

	*result = NULL;
	if (!path || !*path)
		return zero_core->fail(ZERO_E_INVALID,
				       "the path of a model is empty; give that of a "
				       ".safetensors file, of a %s or of a folder",
				       index_name);
	if (stat(path, &st) != 0)
		return zero_core->fail(ZERO_E_FILE, "%s: cannot be opened: %s", path,
				       strerror(errno));
	file = calloc(1, sizeof(*file));
	if (!file)
		return files_no_memory(path);
	if (S_ISDIR(st.st_mode))
		status = read_folder(file, path);
	else if (files_ends_with(path, ".json"))
		status = files_read_index(file, path);
	else
		status = files_read_safetensors(file, path);
	if (!status)
		status = files_sort_names(file);
	if (status) {
		files_free(file);
		return status;
	}
	*result = file;
	return ZERO_OK;
}
