/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of several ranks share. A failed check prints a line and ends the process with
 * status 1, upon which the launcher ends the other ranks.
 */
#ifndef RANKS_H
#define RANKS_H

#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "zero.h"

/* Programs use a part of what is here. */
#define SOME __attribute__((unused)) static

__attribute__((noreturn, format(printf, 4, 5))) SOME void
give_up(const char *file, int line, const char *what, const char *format, ...)
{
	char text[2048];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "rank %d: %s:%d: %s: %s\n", zero_rank(NULL), file, line, what, text);
	fflush(NULL);
	/* Not exit: handlers must not wait for ranks that wait for this one. */
	_exit(1);
}

/* check(condition, format ...) */
#define check(condition, ...) \
	((condition) ? (void)0 : give_up(__FILE__, __LINE__, #condition, __VA_ARGS__))

SOME void expect_ok(const char *file, int line, const char *call, zero_status status)
{
	if (status)
		give_up(file, line, call, "%s: %s", zero_strerror(status), zero_last_error());
}

/* The call succeeds. */
#define ok(call) expect_ok(__FILE__, __LINE__, #call, call)

SOME void expect_failure(const char *file, int line, const char *call, zero_status got,
			 zero_status want, const char *words)
{
	if (got != want)
		give_up(file, line, call, "'%s' (%s), expected '%s'", zero_strerror(got),
			got ? zero_last_error() : "", zero_strerror(want));
	if (!strstr(zero_last_error(), words))
		give_up(file, line, call, "no '%s' in: %s", words, zero_last_error());
}

/* The call fails with this status and a sentence that has these words. */
#define fails(call, status, words) expect_failure(__FILE__, __LINE__, #call, call, status, words)

/* ---- random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) ------------------------- */

SOME uint64_t mixed(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

SOME uint64_t draw(uint64_t *state)
{
	return mixed(*state += UINT64_C(0x9e3779b97f4a7c15));
}

SOME size_t below(uint64_t *state, size_t bound)
{
	return (size_t)(draw(state) % bound);
}

/* In [-1, 1), a multiple of 2^-23. */
SOME float signed_unit(uint64_t bits)
{
	return (float)((int64_t)(bits >> 40) - (1 << 23)) * 0x1p-23F;
}

/* The same on all ranks; run.sh sets it. */
SOME uint64_t test_seed(void)
{
	const char *text = getenv("ZERO_TEST_SEED");

	return text ? strtoull(text, NULL, 0) : 1;
}

/* A line of /proc/self/status, in bytes. */
SOME size_t process_bytes(const char *key)
{
	FILE *file = fopen("/proc/self/status", "r");
	unsigned long long kilobytes = 0;
	char line[256];

	check(file, "no /proc/self/status");
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)))
			sscanf(line + strlen(key), " %llu", &kilobytes);
	fclose(file);
	check(kilobytes, "no %s", key);
	return (size_t)kilobytes << 10;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

__attribute__((format(printf, 1, 2))) SOME zero_job *open_job(const char *format, ...)
{
	char settings[512];
	zero_options options = {.settings = settings};
	zero_job *job;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(settings, sizeof(settings), format, arguments);
	va_end(arguments);
	ok(zero_open(&options, &job));
	return job;
}

/* A parameter of one dimension. */
SOME zero_param *new_param(zero_group *group, const char *name, zero_dtype dtype, size_t count,
			   bool trainable)
{
	zero_param_spec spec = {
		.name = name, .dtype = dtype, .ndim = 1, .shape = &count, .trainable = trainable};
	zero_param *param;

	ok(zero_param_new(group, &spec, &param));
	return param;
}

SOME zero_group *new_group(zero_job *job, const char *name)
{
	zero_group *group;

	ok(zero_group_new(job, name, NULL, &group));
	return group;
}

/* Whether run.sh has the ranks use the stand-in for GPUs. */
SOME bool on_gpu(void)
{
	const char *backend = getenv("ZERO_BACKEND");

	return backend && !strcmp(backend, "cuda");
}

/* Ranks that share memory with this one; it counts. */
SOME int sharing(const zero_job *job)
{
	return atoi(zero_setting(job, "share"));
}

/* Whether each rank stores all of every parameter. */
SOME bool is_replicated(const zero_job *job)
{
	int stage = atoi(zero_setting(job, "stage")), ranks = zero_world(job);

	return ranks == 1 || stage == 0 || (stage < 3 && sharing(job) < ranks);
}

/* Whether a gather without a cast moves nothing: all of a parameter is here already. */
SOME bool gathers_in_place(const zero_job *job)
{
	return is_replicated(job) || sharing(job) == zero_world(job);
}

/* Path of a file in the folder that all ranks share and run.sh removes; static. */
SOME const char *file_path(const char *name)
{
	static char path[1024];
	const char *folder = getenv("ZERO_TEST_FILES");

	check(folder, "run me by tests/ranks/run.sh");
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

/* Waits until a process on this machine has ended, which need not be a child. */
SOME void wait_for_end(pid_t pid)
{
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

	/* A process that is gone cannot be opened. */
	while (end.fd >= 0 && poll(&end, 1, -1) < 1)
		continue;
	if (end.fd >= 0)
		close(end.fd);
}

/* Every rank's value of something, [world]. COLLECTIVE. */
SOME void all_values(zero_job *job, double mine, double *all)
{
	int world = zero_world(job);

	memset(all, 0, (size_t)world * sizeof(*all));
	all[zero_rank(job)] = mine * world;
	ok(zero_mean(job, all, (size_t)world, 1));
}

#endif
