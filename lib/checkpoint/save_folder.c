/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 creates, renames and deletes the folders of checkpoints. A checkpoint is written to a
 * folder with a partial name, which is renamed when all of it is on disk. A checkpoint that is
 * deleted gets a partial name first. So a folder with a final name is always complete, and the
 * next save deletes partial ones that a killed job left. What a checkpoint of the same step
 * replaces is named "step-000000120.replaced" meanwhile, where the file system cannot exchange two
 * names.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/save.h"

enum { TOKEN_DIGITS = 16 };

static zero_status no_memory(const struct zero_save *save)
{
	return zero_fail(ZERO_E_MEMORY, "no memory to save to %s", save->path);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Whether a name is that of a partial checkpoint or link: "step-000000120.partial-<16 hex>". */
static bool is_partial(const char *name)
{
	static const char infix[] = ".partial-", latest[] = "latest";
	const char *rest = strncmp(name, latest, strlen(latest)) ? NULL : name + strlen(latest);
	uint64_t step;

	if (!rest)
		rest = zero_checkpoint_step(name, &step);
	return rest && !strncmp(rest, infix, strlen(infix)) &&
	       strspn(rest + strlen(infix), "0123456789abcdef") == TOKEN_DIGITS &&
	       !rest[strlen(infix) + TOKEN_DIGITS];
}

/* ---- deleting -------------------------------------------------------------------------------- */

/* Deletes a checkpoint's folder or a link. A folder with folders in it remains. */
static void delete_in(int dir, const char *name)
{
	int folder = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct dirent *entry;
	DIR *list;

	if (folder < 0) {
		unlinkat(dir, name, 0);
		return;
	}
	list = fdopendir(folder);
	if (!list) {
		close(folder);
		return;
	}
	while ((entry = readdir(list)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			unlinkat(folder, entry->d_name, 0);
	closedir(list);
	unlinkat(dir, name, AT_REMOVEDIR);
}

static void delete_path(const char *path)
{
	delete_in(AT_FDCWD, path);
}

void zero_save_discard(const struct zero_save *save)
{
	if (save->partial && save->job->place.rank == 0)
		delete_path(save->partial);
}

static void delete_partials(const struct zero_save *save)
{
	DIR *list = opendir(save->dir);
	struct dirent *entry;

	while (list && (entry = readdir(list)))
		if (is_partial(entry->d_name))
			delete_in(dirfd(list), entry->d_name);
	if (list)
		closedir(list);
}

/* What a killed or failed save has begun to replace gets its name back, unless a new one has it. */
static void put_back(const struct zero_save *save)
{
	DIR *list = opendir(save->dir);
	struct dirent *entry;
	struct stat info;
	uint64_t step;

	while (list && (entry = readdir(list))) {
		const char *rest = zero_checkpoint_step(entry->d_name, &step);
		char *path = rest && !strcmp(rest, ZERO_REPLACED)
				     ? zero_checkpoint_step_path(save->dir, step)
				     : NULL;

		if (path && !lstat(path, &info))
			delete_in(dirfd(list), entry->d_name);
		else if (path)
			renameat(dirfd(list), entry->d_name, AT_FDCWD, path);
		free(path);
	}
	if (list)
		closedir(list);
}

/* ---- the start ------------------------------------------------------------------------------- */

static zero_status make_dir(const char *dir)
{
	zero_status status;
	char *parent;

	if (mkdir(dir, 0777))
		return errno == EEXIST ? ZERO_OK : zero_file_error("make the folder", dir);
	parent = zero_folder_of(dir);
	status = parent ? zero_sync_folder(parent) : ZERO_OK;
	free(parent);
	return status;
}

zero_status zero_save_make_folder(struct zero_save *save)
{
	struct stat info;

	zero_status status = make_dir(save->dir);

	if (status)
		return status;
	if (!stat(save->path, &info) && !S_ISDIR(info.st_mode))
		return zero_fail(ZERO_E_FILE, "cannot save to %s: it exists and is not a folder",
				 save->path);
	put_back(save);
	delete_partials(save);
	return mkdir(save->partial, 0777) ? zero_file_error("make the folder", save->partial)
					  : ZERO_OK;
}

static zero_status write_small_file(const struct zero_save *save, const char *name,
				    const void *data, size_t bytes)
{
	char *path = zero_checkpoint_path(save->partial, name);
	zero_status status = path ? zero_write_file(path, data, bytes) : no_memory(save);

	free(path);
	return status;
}

zero_status zero_save_write_user(struct zero_save *save, const void *user, size_t bytes)
{
	save->has_user = true;
	save->user_bytes = bytes;
	save->user_checksum = save->files->checksum(user, bytes);
	return write_small_file(save, "user", user, bytes);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The two folders exchange their names where the file system can do that, so that there is a
   checkpoint of this name at each moment. */
static zero_status replace_existing(const struct zero_save *save)
{
	zero_status status = ZERO_OK;
	char *old;

	if (!renameat2(AT_FDCWD, save->partial, AT_FDCWD, save->path, RENAME_EXCHANGE)) {
		status = zero_sync_folder(save->dir);
		if (!status)
			delete_path(save->partial);
		return status;
	}
	if (asprintf(&old, "%s" ZERO_REPLACED, save->path) < 0)
		return no_memory(save);
	if (rename(save->path, old)) {
		status = zero_file_error("rename", save->path);
	} else if (rename(save->partial, save->path)) {
		status = zero_file_error("rename", save->partial);
		put_back(save);
	}
	if (!status)
		status = zero_sync_folder(save->dir);
	if (!status)
		delete_path(old);
	free(old);
	return status;
}

static zero_status rename_checkpoint(const struct zero_save *save)
{
	struct stat info;

	/* rename does not replace a folder that has files. */
	if (!lstat(save->path, &info))
		return replace_existing(save);
	return rename(save->partial, save->path) ? zero_file_error("rename", save->partial)
						 : ZERO_OK;
}

static zero_status link_latest(const struct zero_save *save)
{
	char *link = zero_checkpoint_path(save->dir, "latest"),
	     *partial = link ? zero_partial_path(link, zero_random_token()) : NULL;
	const char *name = strrchr(save->path, '/');
	zero_status status = ZERO_OK;

	if (!partial)
		status = no_memory(save);
	else if (symlink(name ? name + 1 : save->path, partial))
		status = zero_file_error("make the link", partial);
	else
		status = zero_replace(partial, link);
	if (status && partial)
		unlink(partial);
	free(partial);
	free(link);
	return status;
}

/* ---- old checkpoints ------------------------------------------------------------------------- */

static void delete_step(const struct zero_save *save, uint64_t step)
{
	char *path = zero_checkpoint_step_path(save->dir, step);
	char *partial = path ? zero_partial_path(path, zero_random_token()) : NULL;

	if (partial && !rename(path, partial))
		delete_path(partial);
	free(partial);
	free(path);
}

/* The age of a checkpoint in steps. Later steps were saved before the job was restored from an
   earlier one: by wrapping around, they are the oldest. */
static uint64_t age(uint64_t step, uint64_t now)
{
	return now - step;
}

/* Finds the oldest checkpoint; false if there are not more than keep_last. */
static bool find_oldest(const struct zero_save *save, uint64_t *oldest)
{
	DIR *list = opendir(save->dir);
	struct dirent *entry;
	uint64_t step;
	int count = 0;

	while (list && (entry = readdir(list))) {
		if (!zero_checkpoint_name(entry->d_name, &step))
			continue;
		if (!count++ || age(step, save->step) > age(*oldest, save->step))
			*oldest = step;
	}
	if (list)
		closedir(list);
	return count > save->keep_last && *oldest != save->step;
}

/* A checkpoint that cannot be deleted is no error of this save. */
static void delete_oldest(const struct zero_save *save)
{
	uint64_t oldest = 0, last = save->step;

	while (save->keep_last && find_oldest(save, &oldest) && oldest != last) {
		delete_step(save, oldest);
		last = oldest;
	}
}

zero_status zero_save_publish(struct zero_save *save)
{
	size_t bytes;
	char *text = NULL;
	zero_status status = zero_save_make_manifest(save, &text, &bytes);

	if (!status)
		status = write_small_file(save, "manifest.json", text, bytes);
	free(text);
	if (!status)
		status = zero_sync_folder(save->partial);
	if (!status)
		status = rename_checkpoint(save);
	if (status) {
		zero_save_discard(save);
		return status;
	}
	status = zero_sync_folder(save->dir);
	if (!status)
		status = link_latest(save);
	if (!status)
		delete_oldest(save);
	return status;
}
