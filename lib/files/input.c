/* SPDX-License-Identifier: Apache-2.0 */
#include "files/input.h"
#include "core/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct zero_core *zero_core;

zero_status files_no_memory(const char *path)
{
	return zero_core->fail(ZERO_E_MEMORY, "%s: no memory to read the file", path);
}

/* ---- names ----------------------------------------------------------------------------------- */

char *files_join(const char *folder, const char *name)
{
	size_t length = strlen(folder);
	const char *slash = length && folder[length - 1] == '/' ? "" : "/";
	char *path;

	return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

const char *files_base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

bool files_ends_with(const char *text, const char *end)
{
	size_t length = strlen(text), end_length = strlen(end);

	return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static const char *kind_of(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return "a folder";
	case S_IFIFO:
		return "a FIFO";
	case S_IFCHR:
	case S_IFBLK:
		return "a device";
	default:
		return "a special file";
	}
}

zero_status files_open_regular(const char *path, int *fd, uint64_t *bytes)
{
	zero_status status = ZERO_OK;
	struct stat st;

	/* Without O_NONBLOCK, opening a FIFO waits for a writer that may never come. */
	do {
		*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	} while (*fd < 0 && errno == EINTR);
	if (*fd < 0)
		return zero_core->fail(ZERO_E_FILE, "%s: cannot be opened: %s", path,
				       strerror(errno));
	if (fstat(*fd, &st) != 0)
		status = zero_core->fail(ZERO_E_FILE, "%s: cannot be examined: %s", path,
					 strerror(errno));
	else if (!S_ISREG(st.st_mode))
		status = zero_core->fail(ZERO_E_FILE, "%s: is %s; it must be a regular file", path,
					 kind_of(st.st_mode));
	if (status) {
		close(*fd);
		*fd = -1;
		return status;
	}
	*bytes = (uint64_t)st.st_size;
	return ZERO_OK;
}

zero_status files_read(int fd, const char *path, uint64_t offset, size_t bytes, char *to)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, to + done, bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return zero_core->fail(ZERO_E_FILE,
					       "%s: cannot be read at byte %" PRIu64 ": %s", path,
					       offset + done, strerror(errno));
		if (n == 0)
			return zero_core->fail(ZERO_E_FILE,
					       "%s: ends at byte %" PRIu64
					       ", but was longer when it was opened; is "
					       "another program writing to it?",
					       path, offset + done);
		done += (size_t)n;
	}
	return ZERO_OK;
}

zero_status files_read_json(const char *path, char **text, size_t *bytes)
{
	zero_status status;
	uint64_t size = 0;
	int fd;

	*text = NULL;
	*bytes = 0;
	status = files_open_regular(path, &fd, &size);
	if (status)
		return status;
	if (size > FILES_JSON_MAX)
		status = zero_core->fail(
			ZERO_E_FORMAT, "%s: has %" PRIu64 " bytes of JSON; at most %u are allowed",
			path, size, FILES_JSON_MAX);
	if (!status) {
		*text = malloc(size ? size : 1);
		status = *text ? files_read(fd, path, 0, size, *text) : files_no_memory(path);
	}
	close(fd);
	if (status) {
		free(*text);
		*text = NULL;
		return status;
	}
	*bytes = size;
	return ZERO_OK;
}

void *files_grow(void *array, size_t count, size_t size)
{
	/* The capacity doubles whenever the count is a power of two. */
	if (count & (count - 1))
		return array;
	return realloc(array, (count ? 2 * count : 1) * size);
}

/* ---- messages -------------------------------------------------------------------------------- */

struct files_printable files_printable(const char *text)
{
	struct files_printable printable;
	size_t n = 0;

	for (; n < sizeof(printable.text) - 4 && text[n]; n++)
		printable.text[n] = text[n];
	if (text[n]) {
		/* The cut is between two UTF-8 characters. */
		while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
			n--;
		memcpy(printable.text + n, "...", 3);
		n += 3;
	}
	printable.text[n] = '\0';
	zero_clean(printable.text);
	return printable;
}
