/* SPDX-License-Identifier: Apache-2.0 */
/* What unit tests share: how they are run, random numbers, and assertions about many elements. */
#ifndef TEST_UNIT_H
#define TEST_UNIT_H

#include <check.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(*(array)))

/* Of a test, in seconds: it only ends a hang. Check's own, 4, is short on a busy machine. */
static void __attribute__((constructor)) set_timeout(void)
{
	setenv("CK_DEFAULT_TIMEOUT", "120", 0);
}

static inline int count_open_files(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	ck_assert_ptr_nonnull(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* Whatever a test does, and what fails in it, leaves no file open, but for what the test itself
   opens if it defines LEAVES_FILES as 1. */
#ifndef LEAVES_FILES
#define LEAVES_FILES 0
#endif
static int open_files;

static inline void note_open_files(void)
{
	open_files = count_open_files();
}

static inline void check_open_files(void)
{
	ck_assert_msg(LEAVES_FILES || count_open_files() == open_files, "%d files are open, not %d",
		      count_open_files(), open_files);
}

/* Runs the cases of a suite, up to NULL; the status of the program. */
static inline int __attribute__((sentinel)) run_cases(TCase *first, ...)
{
	Suite *suite = suite_create("unit");
	SRunner *runner = srunner_create(suite);
	va_list cases;
	int failed;

	va_start(cases, first);
	for (TCase *test = first; test; test = va_arg(cases, TCase *)) {
		tcase_add_checked_fixture(test, note_open_files, check_open_files);
		suite_add_tcase(suite, test);
	}
	va_end(cases);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* An assertion of Check tells its parent of itself each time, too slow for each element. */
static inline void __attribute__((format(printf, 2, 3))) must(bool ok, const char *format, ...)
{
	char text[256];
	va_list arguments;

	if (ok)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	ck_abort_msg("%s", text);
}

/* SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). */
static inline uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static inline size_t random_below(uint64_t *state, size_t bound)
{
	return (size_t)(next_random(state) % bound);
}

/* Fresh at each run, which ZERO_TEST_SEED repeats. */
static inline uint64_t seed_of_test(void)
{
	const char *given = getenv("ZERO_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)getpid();

	printf("ZERO_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	return seed;
}

/* Zeros that a test and its children share. */
static inline void *shared_memory(size_t bytes)
{
	void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (data == MAP_FAILED)
		abort();
	return data;
}

#endif
