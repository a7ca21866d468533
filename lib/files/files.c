/* SPDX-License-Identifier: Apache-2.0 */
/* The module's table, and what a path stands for: one file, an index, or a folder. */
#include "files/file.h"
#include "report/report.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

static const struct zero_core *kept_core;

const struct zero_core *files_core(void)
{
	return kept_core;
}

static bool ends_with(const char *text, const char *end)
{
	size_t length = strlen(text), end_length = strlen(end);

	return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* The folder's only *.safetensors file, malloc'ed. Hidden ones are somebody's unfinished work. */
static zero_status only_file(const char *folder, char **name)
{
	zero_status status = ZERO_OK;
	struct dirent *entry;
	DIR *dir;

	*name = NULL;
	dir = opendir(folder);
	if (!dir)
		return files_core()->fail(ZERO_E_FILE, "%s: the folder cannot be read: %s", folder,
					  strerror(errno));
	while (!status && (errno = 0, entry = readdir(dir))) {
		if (entry->d_name[0] == '.' || !ends_with(entry->d_name, ".safetensors"))
			continue;
		if (*name) {
			status = files_core()->fail(
				ZERO_E_FILE,
				"%s: the folder has several .safetensors files (\"%s\", \"%s\") "
				"and neither %s nor %s says which are the model; name one of them",
				folder, files_words(*name).text, files_words(entry->d_name).text,
				index_name, single_name);
			break;
		}
		*name = strdup(entry->d_name);
		if (!*name)
			status = files_no_memory(folder);
	}
	if (!status && errno)
		status = files_core()->fail(ZERO_E_FILE, "%s: the folder cannot be read: %s",
					    folder, strerror(errno));
	if (!status && !*name)
		status = files_core()->fail(ZERO_E_FILE,
					    "%s: the folder has no %s, no %s and no other "
					    ".safetensors file",
					    folder, index_name, single_name);
	if (status) {
		free(*name);
		*name = NULL;
	}
	closedir(dir);
	return status;
}

/* True also for what is there but cannot be used, so that opening it says why. */
static bool is_there(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0 || errno != ENOENT;
}

static zero_status read_folder(struct zero_file *file, const char *folder)
{
	char *index = files_join(folder, index_name);
	char *single = files_join(folder, single_name);
	char *name = NULL, *other = NULL;
	zero_status status;

	if (!index || !single) {
		status = files_no_memory(folder);
	} else if (is_there(index)) {
		status = files_read_index(file, index);
	} else if (is_there(single)) {
		status = files_read_safetensors(file, single);
	} else {
		status = only_file(folder, &name);
		if (status)
			goto out;
		other = files_join(folder, name);
		status = other ? files_read_safetensors(file, other) : files_no_memory(folder);
	}
out:
	free(other);
	free(name);
	free(single);
	free(index);
	return status;
}

static zero_status open_path(const char *path, struct zero_file **result)
{
	struct zero_file *file;
	zero_status status;
	struct stat st;

	*result = NULL;
	if (!path || !*path)
		return files_core()->fail(ZERO_E_INVALID,
					  "the path of a safetensors file is empty; give a "
					  ".safetensors file, a %s or a folder",
					  index_name);
	if (stat(path, &st) != 0)
		return files_core()->fail(ZERO_E_FILE, "%s: cannot be opened: %s", path,
					  strerror(errno));
	file = calloc(1, sizeof(*file));
	if (!file)
		return files_no_memory(path);
	if (S_ISDIR(st.st_mode))
		status = read_folder(file, path);
	else if (ends_with(path, ".json"))
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

static size_t count_tensors(const struct zero_file *file)
{
	return file ? file->count : 0;
}

static const zero_tensor *get_tensor(const struct zero_file *file, size_t i)
{
	return file && i < file->count ? &file->tensors[i] : NULL;
}

static int compare_name(const void *name, const void *tensor)
{
	return strcmp(name, (*(const zero_tensor *const *)tensor)->name);
}

static const zero_tensor *find_tensor(const struct zero_file *file, const char *name)
{
	const zero_tensor **found;

	if (!file || !name || !file->count)
		return NULL;
	found = bsearch(name, file->by_name, file->count, sizeof(*found), compare_name);
	return found ? *found : NULL;
}

static const struct zero_files_ops ops = {
	.abi = ZERO_MODULE_ABI,
	.open = open_path,
	.close = files_free,
	.count = count_tensors,
	.tensor = get_tensor,
	.find = find_tensor,
	.header = files_header,
	.index = files_index,
	.sums = files_sums,
	.sum = files_sum,
	.manifest_write = manifest_write,
	.manifest_read = manifest_read,
	.manifest_load = manifest_load,
	.manifest_parse = manifest_parse,
	.manifest_shard = manifest_shard,
	.manifest_free = manifest_free,
	.report_json = zero_report_json,
};

const void *zero_module_files(const struct zero_core *core)
{
	kept_core = core;
	return &ops;
}
