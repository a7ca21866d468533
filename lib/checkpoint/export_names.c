/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of exported files. The folder may have an earlier export with another number of files.
 * At each moment a loader finds all of the old export or all of the new one; if file names are the
 * same, it finds none for a moment. Some loaders prefer model.safetensors, others the index, if
 * both exist.
 */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/export.h"
#include "checkpoint/write.h"

#define DIGITS "[0-9][0-9][0-9][0-9][0-9]"

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";
static const char shard_names[] = "model-" DIGITS "-of-" DIGITS ".safetensors";
static const char partial_names[] = "model*.safetensors*.????????????????.partial";

static zero_status no_memory(const struct zero_export_plan *out)
{
	return zero_fail(ZERO_E_MEMORY, "no memory to export to %s", out->path);
}

static bool exists(const char *path)
{
	struct stat info;

	return !lstat(path, &info);
}

/* ---- the folder ------------------------------------------------------------------------------ */

static bool is_exported(const struct zero_export_plan *out, const char *name)
{
	size_t length = strlen(out->path) + 1;

	for (size_t i = 0; i < out->file_count; i++)
		if (!strcmp(out->files[i].path + length, name))
			return true;
	return false;
}

/* Deletes the files that match a pattern and are not of this export. */
static zero_status delete_others(const struct zero_export_plan *out, const char *names)
{
	DIR *folder = opendir(out->path);
	zero_status status = ZERO_OK;
	struct dirent *entry;

	if (!folder)
		return zero_file_error("read", out->path);
	while (!status && (entry = readdir(folder)))
		if (!fnmatch(names, entry->d_name, 0) && !is_exported(out, entry->d_name) &&
		    unlinkat(dirfd(folder), entry->d_name, 0) && errno != ENOENT)
			status = zero_file_error("remove", entry->d_name);
	closedir(folder);
	return status;
}

static zero_status prepare_folder(struct zero_export_plan *out)
{
	struct stat info;

	out->made = !mkdir(out->path, 0777);
	if (!out->made && errno != EEXIST)
		return zero_file_error("make the folder", out->path);
	if (stat(out->path, &info))
		return zero_file_error("export to", out->path);
	if (!S_ISDIR(info.st_mode))
		return zero_fail(
			ZERO_E_FILE,
			"cannot export to %s, which exists and is not a folder; give a folder "
			"or a file whose name ends in .safetensors",
			out->path);
	return delete_others(out, partial_names);
}

zero_status zero_export_prepare(struct zero_export_plan *out)
{
	struct stat info;

	if (out->folder)
		return prepare_folder(out);
	if (!stat(out->path, &info) && !S_ISREG(info.st_mode))
		return zero_fail(ZERO_E_FILE,
				 "cannot export to %s: it is a directory or a device, not a file",
				 out->path);
	return ZERO_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

static zero_status rename_files(const struct zero_export_plan *out)
{
	for (size_t i = 0; i < out->file_count; i++)
		if (rename(out->files[i].partial, out->files[i].path))
			return zero_file_error("rename", out->files[i].partial);
	return ZERO_OK;
}

/* The index is renamed when all files that it names are on disk. */
static zero_status write_index(const struct zero_export_plan *out, const char *path)
{
	const struct zero_files_ops *files;
	char *text = NULL, *partial = NULL;
	zero_status status = zero_files_open(&files);
	size_t bytes;

	if (!status)
		status = files->index(out->tensors, out->count, &text, &bytes);
	if (!status &&
	    asprintf(&partial, "%s.%016llx.partial", path, (unsigned long long)out->token) < 0) {
		partial = NULL;
		status = no_memory(out);
	}
	if (!status)
		status = zero_write_file(partial, text, bytes);
	if (!status)
		status = zero_replace(partial, path);
	if (status && partial)
		unlink(partial);
	free(partial);
	free(text);
	return status;
}

static zero_status remove_file(const char *path)
{
	return unlink(path) && errno != ENOENT ? zero_file_error("remove", path) : ZERO_OK;
}

/* The old index is deleted first if it could name files of both exports. */
static zero_status publish_several(const struct zero_export_plan *out, const char *index,
				   const char *single)
{
	zero_status status = ZERO_OK;
	bool same = false;

	for (size_t i = 0; i < out->file_count; i++)
		same = same || exists(out->files[i].path);
	if (same)
		status = remove_file(index);
	if (!status)
		status = rename_files(out);
	if (!status)
		status = zero_sync_folder(out->path);
	if (!status)
		status = write_index(out, index);
	return status ? status : remove_file(single);
}

static zero_status publish_folder(const struct zero_export_plan *out)
{
	char *index = NULL, *single = NULL;
	zero_status status;

	if (asprintf(&index, "%s/%s", out->path, index_name) < 0)
		index = NULL;
	if (asprintf(&single, "%s/%s", out->path, single_name) < 0)
		single = NULL;
	if (!index || !single) {
		status = no_memory(out);
	} else if (out->file_count > 1) {
		status = publish_several(out, index, single);
	} else {
		status = rename_files(out);
		if (!status)
			status = zero_sync_folder(out->path);
		if (!status)
			status = remove_file(index);
	}
	if (!status)
		status = delete_others(out, shard_names);
	if (!status)
		status = zero_sync_folder(out->path);
	free(index);
	free(single);
	return status;
}

zero_status zero_export_publish(const struct zero_export_plan *out)
{
	return out->folder ? publish_folder(out)
			   : zero_replace(out->files[0].partial, out->files[0].path);
}

void zero_export_discard(const struct zero_export_plan *out)
{
	for (size_t i = 0; i < out->file_count; i++)
		if (out->files[i].partial)
			unlink(out->files[i].partial);
	/* A folder with other files remains. */
	if (out->made)
		rmdir(out->path);
}
