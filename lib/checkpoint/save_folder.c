/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of checkpoints, which rank 0 alone makes and changes. A checkpoint is written to a folder
 * with a name of its own and renamed when all of it is on disk; what goes is renamed to such a name
 * first. So whoever looks sees whole checkpoints only, and the next save deletes the rest.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/restore.h"
#include "checkpoint/save.h"

enum { TOKEN_DIGITS = 16 };

static zero_status file_error(const char *what, const char *path)
{
	return zero_fail(ZERO_E_FILE, "cannot %s %s: %s", what, path, strerror(errno));
}

__attribute__((format(printf, 1, 2))) static char *text_of(const char *format, ...)
{
	char *text;
	va_list arguments;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		text = NULL;
	va_end(arguments);
	return text;
}

static zero_status no_memory(const struct zero_save *save)
{
	return zero_fail(ZERO_E_MEMORY, "no memory to save to %s", save->path);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* What a save that was killed leaves: "step-000000120.partial-<16 hex>", or a link. */
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

/* A checkpoint's folder or a link. What else a folder has in it stays, and so it does. */
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

/* ---- the begin ------------------------------------------------------------------------------- */

static zero_status make_dir(const char *dir)
{
	zero_status status;
	char *above;

	if (mkdir(dir, 0777))
		return errno == EEXIST ? ZERO_OK : file_error("make the folder", dir);
	above = zero_folder_of(dir);
	status = above ? zero_sync_folder(above) : ZERO_OK;
	free(above);
	return status;
}

zero_status zero_save_folder(struct zero_save *save)
{
	struct stat info;

	zero_status status = make_dir(save->dir);

	if (status)
		return status;
	if (!stat(save->path, &info) && !S_ISDIR(info.st_mode))
		return zero_fail(ZERO_E_FILE, "cannot save to %s: it is there, and no folder",
				 save->path);
	delete_partials(save);
	return mkdir(save->partial, 0777) ? file_error("make the folder", save->partial) : ZERO_OK;
}

static zero_status write_named(const struct zero_save *save, const char *name, const void *data,
			       size_t bytes)
{
	char *path = text_of("%s/%s", save->partial, name);
	zero_status status = path ? zero_write_file(path, data, bytes) : no_memory(save);

	free(path);
	return status;
}

zero_status zero_save_user(struct zero_save *save, const void *user, size_t bytes)
{
	save->has_user = true;
	save->user_bytes = bytes;
	save->user_checksum = save->files->checksum(user, bytes);
	return write_named(save, "user", user, bytes);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Under this name whatever killed jobs leave is deleted. */
static char *partial_name(const char *path)
{
	uint64_t token;

	if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
		token = (uint64_t)getpid();
	return text_of("%s.partial-%016llx", path, (unsigned long long)token);
}

/* In one go where the file system can, so that there is a checkpoint of this name at each moment;
   then what was there has the partial one. */
static zero_status swap(const struct zero_save *save)
{
	zero_status status = ZERO_OK;
	char *old;

	if (!renameat2(AT_FDCWD, save->partial, AT_FDCWD, save->path, RENAME_EXCHANGE)) {
		status = zero_sync_folder(save->dir);
		if (!status)
			delete_path(save->partial);
		return status;
	}
	old = partial_name(save->path);
	if (!old)
		return no_memory(save);
	if (rename(save->path, old))
		status = file_error("rename", save->path);
	else if (rename(save->partial, save->path))
		status = file_error("rename", save->partial);
	if (!status)
		status = zero_sync_folder(save->dir);
	if (!status)
		delete_path(old);
	free(old);
	return status;
}

static zero_status give_name(const struct zero_save *save)
{
	struct stat info;

	/* A folder takes the name of no other one, unless that is empty. */
	if (!lstat(save->path, &info))
		return swap(save);
	return rename(save->partial, save->path) ? file_error("rename", save->partial) : ZERO_OK;
}

static zero_status link_latest(const struct zero_save *save)
{
	char *link = text_of("%s/latest", save->dir), *made = link ? partial_name(link) : NULL;
	const char *name = strrchr(save->path, '/');
	zero_status status = ZERO_OK;

	if (!made)
		status = no_memory(save);
	else if (symlink(name ? name + 1 : save->path, made))
		status = file_error("make the link", made);
	else
		status = zero_replace(made, link);
	if (status && made)
		unlink(made);
	free(made);
	free(link);
	return status;
}

/* ---- the last ones are kept ------------------------------------------------------------------ */

static void forget(const struct zero_save *save, uint64_t step)
{
	char *path = text_of("%s/step-%09llu", save->dir, (unsigned long long)step);
	char *partial = path ? partial_name(path) : NULL;

	if (partial && !rename(path, partial))
		delete_path(partial);
	free(partial);
	free(path);
}

/* Checkpoints of later steps are of an earlier life of the job, which went back: they are the
   oldest. */
static uint64_t age(uint64_t step, uint64_t now)
{
	return now - step;
}

/* The oldest checkpoint beyond the newest `keep`; false: there are no more than these. */
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
	return count > save->keep && *oldest != save->step;
}

/* What cannot be deleted is no error of this checkpoint. */
static void retain(const struct zero_save *save)
{
	uint64_t oldest = 0, last = save->step;

	while (save->keep && find_oldest(save, &oldest) && oldest != last) {
		forget(save, oldest);
		last = oldest;
	}
}

zero_status zero_save_publish(struct zero_save *save)
{
	size_t bytes;
	char *text = NULL;
	zero_status status = zero_save_manifest(save, &text, &bytes);

	if (!status)
		status = write_named(save, "manifest.json", text, bytes);
	free(text);
	if (!status)
		status = zero_sync_folder(save->partial);
	if (!status)
		status = give_name(save);
	if (status) {
		zero_save_discard(save);
		return status;
	}
	status = zero_sync_folder(save->dir);
	if (!status)
		status = link_latest(save);
	if (!status)
		retain(save);
	return status;
}
