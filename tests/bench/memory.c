/* SPDX-License-Identifier: Apache-2.0 */
/* Memory as the kernel counts it: peaks. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"

void *pages_new(size_t bytes, bool touched)
{
	const size_t huge = 2 << 20;
	char *mapped = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
	size_t before;

	must_be(mapped != MAP_FAILED, "no memory; BENCH_SCALE=0.25 makes all sizes smaller");
	before = -(uintptr_t)mapped % huge;
	if (before)
		munmap(mapped, before);
	munmap(mapped + before + bytes, huge - before);
	madvise(mapped + before, bytes, MADV_HUGEPAGE);
	if (touched)
		memset(mapped + before, 1, bytes);
	return mapped + before;
}

void pages_free(void *pages, size_t bytes)
{
	if (pages)
		munmap(pages, bytes);
}

void *shared_pages_new(size_t bytes)
{
	int file = memfd_create("bench", MFD_CLOEXEC);
	void *pages = MAP_FAILED;

	if (file >= 0 && !ftruncate(file, (off_t)bytes))
		pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must_be(pages != MAP_FAILED, "no memory; BENCH_SCALE=0.25 makes all sizes smaller");
	close(file);
	return pages;
}

void forget_pages(const void *pages, size_t bytes)
{
	must_be(!madvise((void *)pages, bytes, MADV_DONTNEED), "pages cannot be forgotten");
}

double touched_bytes(const void *pages)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	unsigned long begin, end;
	bool here = false;
	double bytes = 0;
	char line[512];

	must_be(file, "the kernel does not tell of this process's memory");
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
			here = begin <= (uintptr_t)pages && (uintptr_t)pages < end;
		else if (here && !strncmp(line, "Rss:", 4))
			bytes = atof(line + 4) * 1024;
	}
	fclose(file);
	return bytes;
}

/* The sum of the lines "KEY:   123 kB" of a file, in bytes. */
static double sum_of_lines(const char *path, const char *const *keys)
{
	FILE *file = fopen(path, "re");
	double bytes = 0;
	char line[256];

	must_be(file, "the kernel does not tell of this process's memory");
	while (fgets(line, sizeof(line), file))
		for (int i = 0; keys[i]; i++)
			if (!strncmp(line, keys[i], strlen(keys[i])))
				bytes += atof(line + strlen(keys[i])) * 1024;
	fclose(file);
	return bytes;
}

static double resident(const char *key)
{
	return sum_of_lines("/proc/self/status", (const char *const[]){key, NULL});
}

/* What the kernel counts for this process and for others too, but for this one's part of it. */
static double counted_twice(void)
{
	const char *path = "/proc/self/smaps_rollup";

	return sum_of_lines(path, (const char *const[]){"Rss:", NULL}) -
	       sum_of_lines(path, (const char *const[]){"Pss:", NULL});
}

double peak_begin(void)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

	must_be(fd >= 0 && write(fd, "5", 1) == 1,
		"the kernel's peak of resident memory cannot be reset: /proc/self/clear_refs");
	close(fd);
	return resident("VmRSS:") - counted_twice();
}

double peak_beyond(double begin, double asked)
{
	return resident("VmHWM:") - counted_twice() - begin - asked;
}
