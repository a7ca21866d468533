/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder of reports. It is opened once, so that a program may change its working directory.
 * Files are written under a hidden name first, and renamed when they are complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "load/load.h"
#include "report/folder.h"

/* A name that no other process has or guesses. */
static bool hidden_name(char *name, size_t size, const char *end)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return false;
	snprintf(name, size, ".zero-%016llx%s", (unsigned long long)random, end);
	return true;
}

static int make_file(int folder, char *name, size_t size)
{
	if (!hidden_name(name, size, ".partial"))
		return -1;
	return openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

/* Makes all folders of the path that do not exist; false with errno. */
static bool make_folders(const char *path)
{
	char *part = strdup(path);
	bool made = part != NULL;

	for (char *slash = part; made && slash;) {
		slash = strchr(slash + 1, '/');
		if (slash)
			*slash = '\0';
		made = mkdir(part, 0777) == 0 || errno == EEXIST;
		/* Where a folder above exists, mkdir may report another error: EACCES, EROFS. */
		if (!made && slash && access(part, X_OK) == 0)
			made = true;
		if (slash)
			*slash = '/';
	}
	free(part);
	return made;
}

zero_status zero_report_folder(const char *path, const char *origin, int *folder)
{
	const char *what = "made";
	char name[64];
	int fd;

	*folder = -1;
	if (!make_folders(path))
		goto failed;
	what = "opened";
	*folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*folder < 0)
		goto failed;
	what = "written to";
	fd = make_file(*folder, name, sizeof(name));
	if (fd < 0)
		goto failed;
	close(fd);
	unlinkat(*folder, name, 0);
	return ZERO_OK;
failed:
	return zero_fail(ZERO_E_FILE,
			 "report is '%s' (from %s), a folder that cannot be %s: %s; give one that "
			 "rank 0 may write to",
			 path, origin, what, strerror(errno));
}

/* Writes folder/zero-<id><end>, and replaces a file of that name. */
static zero_status put(int folder, const char *path, const char *id, const char *end,
		       const char *text, size_t bytes)
{
	char hidden[64], name[NAME_MAX + 1];
	int fd = make_file(folder, hidden, sizeof(hidden));
	int error = fd < 0 ? errno : zero_write_all(fd, text, bytes, 0);

	snprintf(name, sizeof(name), "zero-%s%s", id, end);
	/* Some file systems report only here that there is no room. */
	if (fd >= 0 && close(fd) && !error)
		error = errno;
	if (!error && renameat(folder, hidden, folder, name))
		error = errno;
	if (!error)
		return ZERO_OK;
	if (fd >= 0)
		unlinkat(folder, hidden, 0);
	return zero_fail(ZERO_E_FILE, "the report %s/%s cannot be written: %s", path, name,
			 strerror(error));
}

/* page.html with the JSON in place of its mark; malloc'ed. NULL: no memory. */
static char *make_page(const char *json, size_t *bytes)
{
	static const char mark[] = "@report@";
	const char *at = strstr(zero_report_html, mark);
	char *page = NULL;
	FILE *out = open_memstream(&page, bytes);

	if (!out)
		return NULL;
	fwrite(zero_report_html, 1, (size_t)(at - zero_report_html), out);
	/* A name that has a '<' could end the script. */
	for (; *json; json++)
		fputs(*json == '<' ? "\\u003c" : (char[2]){*json}, out);
	fputs(at + strlen(mark), out);
	if (!fclose(out))
		return page;
	free(page);
	return NULL;
}

zero_status zero_report_put(int folder, const char *path, const char *id, const char *json)
{
	zero_status status = put(folder, path, id, ".json", json, strlen(json));
	size_t bytes;
	char *page;

	if (status)
		return status;
	page = make_page(json, &bytes);
	if (!page)
		return zero_fail(ZERO_E_MEMORY, "no memory for the report's page");
	status = put(folder, path, id, ".html", page, bytes);
	free(page);
	return status;
}
