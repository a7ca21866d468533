/* SPDX-License-Identifier: Apache-2.0 */
/* Reading bytes of regular files, and quoting words of them. */
#include "files/input.h"
#include "core/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
		return files_core()->fail(ZERO_E_FILE, "%s: cannot be opened: %s", path,
					  strerror(errno));
	if (fstat(*fd, &st) != 0)
		status = files_core()->fail(ZERO_E_FILE, "%s: cannot be examined: %s", path,
					    strerror(errno));
	else if (!S_ISREG(st.st_mode))
		status = files_core()->fail(ZERO_E_FILE, "%s: is %s, where a regular file is meant",
					    path, kind_of(st.st_mode));
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
			return files_core()->fail(ZERO_E_FILE,
						  "%s: cannot be read at byte %" PRIu64 ": %s",
						  path, offset + done, strerror(errno));
		if (n == 0)
			return files_core()->fail(ZERO_E_FILE,
						  "%s: ends at byte %" PRIu64
						  ", was longer when it was opened; is "
						  "somebody writing to it?",
						  path, offset + done);
		done += (size_t)n;
	}
	return ZERO_OK;
}

struct files_words files_words(const char *text)
{
	struct files_words words;
	size_t n = 0;

	for (; n < sizeof(words.text) - 4 && text[n]; n++)
		words.text[n] = text[n];
	if (text[n]) {
		/* Cut between UTF-8 characters, not within one. */
		while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
			n--;
		memcpy(words.text + n, "...", 3);
		n += 3;
	}
	words.text[n] = '\0';
	zero_clean(words.text);
	return words;
}
