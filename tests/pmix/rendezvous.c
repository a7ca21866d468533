/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module zero_pmix.so by itself, in each of several ranks.
 *
 *	rendezvous MODULE values        what each rank publishes, and each error, in two jobs
 *	rendezvous MODULE mpi           the same in a program that has MPI open
 *	rendezvous MODULE late SECONDS  the last rank comes when the others have given up
 *	rendezvous MODULE absent RANKS [GONE]
 *	                                zero_open, to which ranks "1,3-5" do not come; with GONE
 *	                                they have exited
 *	rendezvous MODULE refuse        open fails; prints its sentence
 *	rendezvous MODULE abort STATUS  the last rank ends the job
 *	rendezvous MODULE bench         one line of JSON: how long it takes
 *
 * Ranks of `late` and `absent` wait for each other with files in the empty folder ZERO_TEST_FILES.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_MPI
#include <mpi.h>
#endif

#include "backend/rendezvous.h"

/* Longer than any test takes, where no rank is expected to be late. */
#define LONG 60
/* Ranks that ask a rank where it listens. */
#define FANOUT 10

static const struct zero_pmix_ops *pmix;
static struct zero_pmix_place place;
static char sentence[2048];
static uint64_t seed;

/* ---- the library, as far as a module needs it ------------------------------------------------ */

static zero_status fake_fail(zero_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static zero_status fake_fail(zero_status status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(sentence, sizeof(sentence), format, arguments);
	va_end(arguments);
	return status;
}

static const struct zero_core fake_core = {.fail = fake_fail};

static void load(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	zero_module_entry entry;

	if (handle)
		*(void **)&entry = dlsym(handle, "zero_module_pmix");
	if (!handle || !entry) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	pmix = entry(&fake_core);
	if (pmix->abi != ZERO_MODULE_ABI || strcmp(pmix->name, "pmix") != 0) {
		fprintf(stderr, "module %s has ABI %d\n", pmix->name, pmix->abi);
		exit(1);
	}
}

/* ---- checks ---------------------------------------------------------------------------------- */

__attribute__((noreturn, format(printf, 2, 3))) static void fail(int line, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "rank %d: rendezvous.c:%d: seed %" PRIu64 ": ", place.rank, line, seed);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	fflush(NULL);
	_exit(1);
}

#define check(condition, ...) ((condition) ? (void)0 : fail(__LINE__, __VA_ARGS__))

static void expect_ok(int line, const char *call, zero_status status)
{
	if (status)
		fail(line, "%s: status %d: %s", call, status, sentence);
}

#define ok(call) expect_ok(__LINE__, #call, call)

static void expect_failure(int line, const char *call, zero_status got, zero_status want,
			   const char *words)
{
	if (got != want)
		fail(line, "%s: status %d (%s), expected %d", call, got, got ? sentence : "", want);
	if (!strstr(sentence, words))
		fail(line, "%s: no '%s' in: %s", call, words, sentence);
}

#define fails(call, status, words) expect_failure(__LINE__, #call, call, status, words)

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

enum { BYTES = 4097 };

/* Byte i of what `rank` publishes. */
static unsigned char byte_of(int rank, size_t i)
{
	return (unsigned char)mix(seed ^ mix((uint64_t)rank << 40 ^ i));
}

static void publish(void)
{
	unsigned char data[BYTES];

	for (size_t i = 0; i < BYTES; i++)
		data[i] = byte_of(place.rank, i);
	ok(pmix->publish(data, BYTES));
	memset(data, 0xee, BYTES); /* it was copied */
}

static void get_one(int rank)
{
	unsigned char data[BYTES + 16];

	memset(data, 0xcc, sizeof(data));
	ok(pmix->get(rank, data, BYTES, LONG));
	for (size_t i = 0; i < BYTES; i++)
		check(data[i] == byte_of(rank, i), "rank %d: byte %zu is %d", rank, i, data[i]);
	for (size_t i = BYTES; i < sizeof(data); i++)
		check(data[i] == 0xcc, "rank %d: written beyond its end", rank);
	fails(pmix->get(rank, data, BYTES - 1, LONG), ZERO_E_COMM, "has published 4097 bytes, not");
}

static void check_place(void)
{
	check(place.rank >= 0 && place.rank < place.world, "rank %d of %d", place.rank,
	      place.world);
	check(place.local_rank >= 0 && place.local_rank < place.local_world, "local rank %d of %d",
	      place.local_rank, place.local_world);
}

/* In the second job what was published in the first one must not be seen. */
static void one_job(uint64_t of)
{
	seed = of;
	ok(pmix->open(&place));
	check_place();
	if (place.world == 1)
		return;
	/* Some ranks ask before others have come. */
	usleep((useconds_t)(mix(seed ^ (uint64_t)place.rank) % 100000));
	publish();
	for (int turn = 1; turn < place.world; turn++)
		get_one((place.rank + turn) % place.world);
	/* Who is done first must not be gone while others ask for what it published. */
	pmix->fence();
}

static void values(void)
{
	const char *given = getenv("ZERO_TEST_SEED");
	uint64_t first = given ? strtoull(given, NULL, 0) : 1;

	one_job(first);
	one_job(first + 1);
	printf("values: rank=%d world=%d local_rank=%d local_world=%d\n", place.rank, place.world,
	       place.local_rank, place.local_world);
}

static void mpi(void)
{
#ifdef HAVE_MPI
	int level, sum = 0, one = 1;

	MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
	values();
	MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	check(sum == place.world, "MPI has %d ranks, not %d", sum, place.world);
	MPI_Finalize();
	/* And what MPI_Finalize leaves of PMIx still serves. */
	one_job(seed + 1);
#else
	exit(77);
#endif
}

/* ---- who does not come ----------------------------------------------------------------------- */

static void pause_for(double seconds)
{
	struct timespec time = {.tv_sec = (time_t)seconds};

	time.tv_nsec = (long)(1e9 * (seconds - (double)time.tv_sec));
	nanosleep(&time, NULL);
}

static int open_event(const char *event)
{
	char path[4096];
	int file;

	snprintf(path, sizeof(path), "%s/%s", getenv("ZERO_TEST_FILES"), event);
	file = open(path, O_RDWR | O_CREAT | O_APPEND, 0666);
	check(file >= 0, "ZERO_TEST_FILES: cannot open %s", path);
	return file;
}

/* This rank has come so far; the file of an event has a byte for each that has. */
static void announce(const char *event)
{
	int file = open_event(event);

	check(write(file, "x", 1) == 1, "cannot write");
	close(file);
}

static void wait_until_announced(const char *event, int ranks)
{
	int file = open_event(event);
	double end = now() + LONG;
	struct stat status;

	while (!fstat(file, &status) && status.st_size < ranks) {
		check(now() < end, "%s: only %d ranks", event, (int)status.st_size);
		pause_for(0.01);
	}
	close(file);
}

static void late(double seconds)
{
	int last;

	ok(pmix->open(&place));
	last = place.world - 1;
	if (place.rank == last) {
		wait_until_announced("told", last);
		publish();
	} else {
		double begin = now();
		char data[BYTES];

		fails(pmix->get(last, data, BYTES, seconds), ZERO_E_COMM, "did not come");
		check(now() - begin >= seconds, "it waited for %g s only", now() - begin);
		printf("rank %d: %s\n", place.rank, sentence);
		fflush(stdout);
		announce("told");
		get_one(last);
	}
	pmix->fence();
}

static bool is_in(const char *list, int number)
{
	char *end;

	for (;; list = end + 1) {
		long first = strtol(list, &end, 10), last = first;

		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		if (number >= first && number <= last)
			return true;
		if (*end != ',')
			return false;
	}
}

static void absent(const char *list, bool gone)
{
	int present = 0;
	zero_job *job;
	double begin;

	ok(pmix->open(&place));
	for (int rank = 0; rank < place.world; rank++)
		present += !is_in(list, rank);
	if (is_in(list, place.rank)) {
		if (!gone)
			wait_until_announced("told", present);
		exit(0);
	}
	announce("here");
	wait_until_announced("here", present);
	if (gone)
		pause_for(0.2);
	begin = now();
	check(zero_open(NULL, &job) == ZERO_E_COMM, "it opened");
	printf("rank %d after %.1f s: %s\n", place.rank, now() - begin, zero_last_error());
	fflush(stdout);
	announce("told");
}

/* ---- how it ends ----------------------------------------------------------------------------- */

static int refuse(void)
{
	double begin = now();
	zero_status status = pmix->open(&place);

	check(status, "it opened: rank %d of %d", place.rank, place.world);
	printf("%s\n", sentence);
	check(now() - begin < LONG, "after %g s", now() - begin);
	return 0;
}

static void end_all(int status)
{
	ok(pmix->open(&place));
	pmix->fence();
	if (place.rank == place.world - 1)
		pmix->abort(status, "because");
	pause_for(LONG);
}

/* ---- what it takes --------------------------------------------------------------------------- */

/* What each rank of a GPU job needs: where rank 0 and its parent in the tree listen. */
static void bench(void)
{
	double begin = now(), opened, took;
	char address[256] = "address";
	int parent;

	ok(pmix->open(&place));
	opened = now() - begin;
	parent = (place.rank - 1) / FANOUT;
	pmix->fence(); /* all have begun */
	begin = now();
	ok(pmix->publish(address, sizeof(address)));
	if (place.rank)
		ok(pmix->get(0, address, sizeof(address), LONG));
	if (parent)
		ok(pmix->get(parent, address, sizeof(address), LONG));
	took = now() - begin;
	pmix->fence();
	printf("{\"bench\": \"rendezvous\", \"rank\": %d, \"ranks\": %d, \"local_ranks\": %d, "
	       "\"open_ms\": %.3f, \"get_ms\": %.3f}\n",
	       place.rank, place.world, place.local_world, 1e3 * opened, 1e3 * took);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "";

	if (argc < 3) {
		fprintf(stderr, "rendezvous MODULE MODE [ARGUMENT...]\n");
		return 2;
	}
	load(argv[1]);
	if (strcmp(mode, "values") == 0)
		values();
	else if (strcmp(mode, "mpi") == 0)
		mpi();
	else if (strcmp(mode, "late") == 0 && argc == 4)
		late(atof(argv[3]));
	else if (strcmp(mode, "absent") == 0 && argc >= 4)
		absent(argv[3], argc > 4);
	else if (strcmp(mode, "refuse") == 0)
		return refuse();
	else if (strcmp(mode, "abort") == 0 && argc == 4)
		end_all(atoi(argv[3]));
	else if (strcmp(mode, "bench") == 0)
		bench();
	else
		return 2;
	return 0;
}
