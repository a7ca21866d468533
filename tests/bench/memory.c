/* SPDX-License-Identifier: Apache-2.0 */
/* Memory as the kernel counts it: peaks, and how it goes over time. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { MOST_SAMPLES = 4096, DRAWN_POINTS = 120, INTERVAL_NS = 5000000 };

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

/* ---- the sampler ----------------------------------------------------------------------------- */

struct sample {
	double at, bytes;
};

struct sampler {
	pthread_t thread;
	_Atomic bool stop;
	int count;
	struct sample samples[MOST_SAMPLES];
};

/*
 * Pages of a window that ranks share are counted once for each: the kernel's Pss divides a page by
 * the processes that have it, so that the sum over ranks is what the node has given.
 */
static double sample_bytes(void)
{
	return sum_of_lines("/proc/self/smaps_rollup",
			    (const char *const[]){"Pss_Anon:", "Pss_Shmem:", NULL});
}

static void *sampler_run(void *context)
{
	const struct timespec interval = {0, INTERVAL_NS};
	struct sampler *s = context;

	while (!s->stop && s->count < MOST_SAMPLES - 1) {
		s->samples[s->count++] = (struct sample){now(), sample_bytes()};
		nanosleep(&interval, NULL);
	}
	return NULL;
}

struct sampler *sampler_start(void)
{
	struct sampler *s = calloc(1, sizeof(*s));

	must_be(s, "no memory for samples");
	s->samples[s->count++] = (struct sample){now(), sample_bytes()};
	must_be(!pthread_create(&s->thread, NULL, sampler_run, s), "no thread for samples");
	return s;
}

/* What the rank had at that time, beyond what it had at first. */
static double beyond_first(const struct sampler *s, double at)
{
	int i = 0;

	while (i + 1 < s->count && s->samples[i + 1].at <= at)
		i++;
	return fmax(0, s->samples[i].bytes - s->samples[0].bytes);
}

/* All ranks' samples come to rank 0, which records them on one clock. */
void sampler_write(struct bench *bench, struct sampler *sampler, const char *plot,
		   const char *label, bool sum)
{
	size_t ranks = (size_t)bench->world;
	struct sampler *all = NULL;
	double first = INFINITY, last = 0;
	char text[160];

	sampler->stop = true;
	pthread_join(sampler->thread, NULL);
	sampler->samples[sampler->count++] = (struct sample){now(), sample_bytes()};
	if (!bench->rank) {
		all = calloc(ranks, sizeof(*all));
		must_be(all, "no memory for samples");
	}
	MPI_Gather(sampler, sizeof(*sampler), MPI_BYTE, all, sizeof(*sampler), MPI_BYTE, 0,
		   MPI_COMM_WORLD);
	free(sampler);
	if (ranks != 2) {
		free(all);
		return;
	}
	for (size_t r = 0; all && r < ranks; r++) {
		first = fmin(first, all[r].samples[0].at);
		last = fmax(last, all[r].samples[all[r].count - 1].at);
	}
	for (int i = 0; all && i <= DRAWN_POINTS; i++) {
		double at = first + (last - first) * i / DRAWN_POINTS, bytes = 0;

		for (size_t r = 0; r < ranks; r++) {
			bytes = (sum ? bytes : 0) + beyond_first(&all[r], at);
			snprintf(text, sizeof(text), "%s, rank %zu", label, r);
			if (!sum)
				write_point(bench, plot, text, at - first, bytes);
		}
		if (sum)
			write_point(bench, plot, label, at - first, bytes);
	}
	free(all);
}
