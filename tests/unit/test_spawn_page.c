/* SPDX-License-Identifier: Apache-2.0 */
/* A zerorun that fails to make a report's page, or hangs: the clock then jumps by what it has. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "report/spawn_page.h"
#include "unit.h"

static char folder[64], program[96], pid_file[96];
static int handle;
static struct timespec stopped; /* what the clock shows; 0: it goes */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
	static bool looked, jumped;

	if (!stopped.tv_sec)
		return __real_clock_gettime(clock, time);
	/* The first look says when zerorun was started, however far it has come by then. */
	if (looked && !jumped && access(pid_file, F_OK) == 0) {
		jumped = true;
		stopped.tv_sec += 10;
	}
	looked = true;
	*time = stopped;
	return 0;
}

static void make_folder(void)
{
	strcpy(folder, "/tmp/test_spawn_page.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(program, sizeof(program), "%s/zerorun", folder);
	snprintf(pid_file, sizeof(pid_file), "%s/pid", folder);
	handle = open(folder, O_RDONLY | O_DIRECTORY);
	ck_assert_int_ge(handle, 0);
}

static void remove_folder(void)
{
	char page[96];

	snprintf(page, sizeof(page), "%s/zero-7.html", folder);
	unlink(page);
	unlink(pid_file);
	unlink(program);
	ck_assert_int_eq(rmdir(folder), 0);
}

/* A zerorun of these commands of a shell, first in PATH. */
static void stand_in(const char *commands)
{
	FILE *out = fopen(program, "w");
	char path[256];

	ck_assert_ptr_nonnull(out);
	fprintf(out, "#!/bin/sh\ncd %s\n%s\n", folder, commands);
	ck_assert_int_eq(fclose(out), 0);
	ck_assert_int_eq(chmod(program, 0755), 0);
	snprintf(path, sizeof(path), "%s:/usr/bin:/bin", folder);
	setenv("PATH", path, 1);
}

static void no_page(const char *why)
{
	char expected[512];

	ck_assert_int_eq(zero_report_page(handle, "FOLDER", "7"), ZERO_E_FILE);
	snprintf(expected, sizeof(expected),
		 "the report's page was not made: %s; 'zerorun --report-page FOLDER/zero-7.json' "
		 "makes it",
		 why);
	ck_assert_str_eq(zero_last_error(), expected);
}

START_TEST(a_zerorun_that_fails_is_named)
{
	setenv("PATH", folder, 1);
	no_page("No such file or directory");
	stand_in("exit 3");
	no_page("zerorun failed");
	stand_in("touch zero-7.html; exit 3");
	no_page("zerorun failed");
	stand_in("rm zero-7.html");
	no_page("zerorun failed");
	stand_in("touch zero-7.html");
	ck_assert_int_eq(zero_report_page(handle, "FOLDER", "7"), ZERO_OK);
}
END_TEST

START_TEST(a_zerorun_that_hangs_is_killed)
{
	pid_t process = 0;
	FILE *file;

	stand_in("trap '' TERM; echo $$ >hidden; mv hidden pid; exec sleep 600");
	clock_gettime(CLOCK_MONOTONIC, &stopped);
	no_page("zerorun took too long");
	stopped.tv_sec = 0;
	file = fopen(pid_file, "r");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_eq(fscanf(file, "%d", &process), 1);
	fclose(file);
	ck_assert_int_eq(kill(process, 0), -1);
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("spawn_page");

	tcase_add_checked_fixture(test, make_folder, remove_folder);
	tcase_add_test(test, a_zerorun_that_fails_is_named);
	tcase_add_test(test, a_zerorun_that_hangs_is_killed);
	return run_cases(test, NULL);
}
