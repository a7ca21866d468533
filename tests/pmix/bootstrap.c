/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module zero_pmix.so by itself, in each of several ranks.
 *
 *	bootstrap MODULE values         keys of many sizes, and each error, in two jobs
 *	bootstrap MODULE mpi            the same in a program that has MPI open
 *	bootstrap MODULE late SECONDS   the last rank comes when the others have given up
 *	bootstrap MODULE absent RANKS SECONDS [GONE]
 *	                                ranks "1,3-5" do not come; with GONE they have exited.
 *	                                Ranks of these two wait for each other with files in the
 *	                                empty folder ZERO_TEST_FILES.
 *	bootstrap MODULE nccl LIBRARY   all ranks get the id that rank 0 made
 *	bootstrap MODULE refuse         open fails; prints its sentence
 *	bootstrap MODULE abort STATUS   the last rank ends the job
 *	bootstrap MODULE bench          one line of JSON: how long the bootstrap of a job takes
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

#include "backend/bootstrap.h"

/* Longer than any test takes, where no rank is expected to be late. */
#define LONG 60
/* NCCL asks for one root for so many ranks. */
#define RANKS_PER_ROOT 128

static const struct zero_bootstrap_ops *bootstrap;
static struct zero_bootstrap_place place;
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
	bootstrap = entry(&fake_core);
	if (bootstrap->abi != ZERO_MODULE_ABI || strcmp(bootstrap->name, "pmix") != 0) {
		fprintf(stderr, "module %s has ABI %d\n", bootstrap->name, bootstrap->abi);
		exit(1);
	}
}

/* ---- checks ---------------------------------------------------------------------------------- */

__attribute__((noreturn, format(printf, 2, 3))) static void fail(int line, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "rank %d: bootstrap.c:%d: seed %" PRIu64 ": ", place.rank, line, seed);
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

static const size_t sizes[] = {0, 1, 3, 64, 128, 4097, 65536};
#define SIZES     (sizeof(sizes) / sizeof(sizes[0]))
#define MANY_KEYS 150

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* Byte i of what `rank` puts in a round under its key of that number. */
static unsigned char byte_of(int rank, int round, size_t key, size_t i)
{
	return (unsigned char)mix(
		seed ^ mix((uint64_t)rank << 40 ^ (uint64_t)round << 32 ^ (uint64_t)key << 20 ^ i));
}

static void key_name(char *text, size_t size, int round, size_t key)
{
	snprintf(text, size, "round%d.%zu", round, key);
}

static void put_one(int round, size_t key, size_t bytes)
{
	unsigned char *data = malloc(bytes + 1);
	char name[64];

	for (size_t i = 0; i < bytes; i++)
		data[i] = byte_of(place.rank, round, key, i);
	key_name(name, sizeof(name), round, key);
	ok(bootstrap->put(name, data, bytes));
	memset(data, 0xee, bytes); /* it was copied */
	free(data);
}

static void get_one(int rank, int round, size_t key, size_t bytes)
{
	unsigned char *data = malloc(bytes + 16);
	size_t got = 12345;
	char name[64];

	memset(data, 0xcc, bytes + 16);
	key_name(name, sizeof(name), round, key);
	ok(bootstrap->get(rank, name, data, bytes, &got));
	check(got == bytes, "%s of rank %d: %zu bytes, not %zu", name, rank, got, bytes);
	for (size_t i = 0; i < bytes; i++)
		check(data[i] == byte_of(rank, round, key, i), "%s of rank %d: byte %zu is %d",
		      name, rank, i, data[i]);
	for (size_t i = bytes; i < bytes + 16; i++)
		check(data[i] == 0xcc, "%s of rank %d: written beyond its end", name, rank);
	if (bytes) {
		fails(bootstrap->get(rank, name, data, bytes - 1, &got), ZERO_E_INVALID,
		      "room for");
		check(got == bytes, "%s of rank %d: %zu bytes wanted", name, rank, got);
	}
	free(data);
}

static void check_place(void)
{
	check(place.rank >= 0 && place.rank < place.world, "rank %d of %d", place.rank,
	      place.world);
	check(place.local_rank >= 0 && place.local_rank < place.local_world, "local rank %d of %d",
	      place.local_rank, place.local_world);
}

static void check_errors(int round)
{
	char long_key[1024] = "", data[4] = "abc";
	size_t got;

	memset(long_key, 'k', sizeof(long_key) - 1);
	fails(bootstrap->put(long_key, data, 4), ZERO_E_INVALID, "characters");
	fails(bootstrap->put("", data, 4), ZERO_E_INVALID, "characters");
	fails(bootstrap->put("k", NULL, 4), ZERO_E_INVALID, "no data");
	fails(bootstrap->get(place.world, "k", data, 4, &got), ZERO_E_INVALID, "there is no rank");
	fails(bootstrap->get(-1, "k", data, 4, &got), ZERO_E_INVALID, "there is no rank -1");
	fails(bootstrap->fence(0), ZERO_E_INVALID, "more than 0 seconds");
	for (int rank = 0; rank < place.world; rank++)
		fails(bootstrap->get(rank, "never put", data, 4, &got), ZERO_E_COMM,
		      "has put no key never put");
	key_name(long_key, sizeof(long_key), round, 0);
	fails(bootstrap->put(long_key, data, 4), ZERO_E_INVALID, "was put before");
	ok(bootstrap->put("unfenced", data, 4));
	fails(bootstrap->get(place.rank, "unfenced", data, 4, &got), ZERO_E_COMM,
	      "put no key unfenced");
}

static void closed_errors(void)
{
	char data[4] = "abc";
	size_t got;

	fails(bootstrap->put("k", data, 4), ZERO_E_STATE, "before open");
	fails(bootstrap->fence(1), ZERO_E_STATE, "before open");
	fails(bootstrap->get(0, "k", data, 4, &got), ZERO_E_STATE, "before open");
}

/* A job before this one put the same key; this one's may be here already, or not. */
static void not_the_old_one(void)
{
	int rank = (place.rank + 1) % place.world;
	unsigned char data[64];
	size_t bytes;

	if (bootstrap->get(rank, "round0.3", data, sizeof(data), &bytes))
		return;
	for (size_t i = 0; i < bytes; i++)
		check(data[i] == byte_of(rank, 0, 3, i), "round0.3 of rank %d: an old byte", rank);
}

/* Rounds are numbered anew in the second job: the first one's keys must not be seen. */
static void one_job(uint64_t of)
{
	struct zero_bootstrap_place other;
	static bool again;

	seed = of;
	ok(bootstrap->open(&place));
	fails(bootstrap->open(&other), ZERO_E_STATE, "open already");
	check_place();
	if (again)
		not_the_old_one();
	again = true;
	for (int round = 0; round < 3; round++) {
		size_t keys = round == 1 ? SIZES + MANY_KEYS : SIZES;

		for (size_t key = 0; key < keys; key++)
			put_one(round, key, key < SIZES ? sizes[key] : key);
		ok(bootstrap->fence(LONG));
		for (int turn = 0; turn < place.world; turn++)
			for (size_t key = 0; key < keys; key++)
				get_one((place.rank + turn) % place.world, round, key,
					key < SIZES ? sizes[key] : key);
	}
	get_one(place.world - 1, 0, 4, sizes[4]);
	check_errors(2);
	/* Who is done first must not be gone while others ask for what it put. */
	ok(bootstrap->fence(LONG));
	bootstrap->close();
	closed_errors();
}

static void values(void)
{
	const char *given = getenv("ZERO_TEST_SEED");
	uint64_t first = given ? strtoull(given, NULL, 0) : 1;

	closed_errors();
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

/* Until the late ones have come and fences are possible again. */
static void fence_again(void)
{
	double end = now() + LONG;

	while (bootstrap->fence(LONG)) {
		check(strstr(sentence, "have not come yet"), "%s", sentence);
		check(now() < end, "still after %d s: %s", LONG, sentence);
		pause_for(0.05);
	}
}

static void late(double seconds)
{
	int last;

	ok(bootstrap->open(&place));
	last = place.world - 1;
	put_one(0, 4, 128);
	ok(bootstrap->fence(LONG));
	put_one(1, 4, 128);
	if (place.rank == last) {
		wait_until_announced("told", last);
		ok(bootstrap->fence(LONG));
	} else {
		zero_status status;
		double begin;

		announce("here");
		wait_until_announced("here", last);
		begin = now();
		status = bootstrap->fence(seconds);
		check(status == ZERO_E_COMM, "status %d", status);
		check(now() - begin >= seconds, "it waited for %g s only", now() - begin);
		printf("rank %d: %s\n", place.rank, sentence);
		fflush(stdout);
		fails(bootstrap->fence(seconds), ZERO_E_STATE, "have not come yet");
		get_one(last, 0, 4, 128);
		announce("told");
	}
	fence_again();
	for (int rank = 0; rank < place.world; rank++)
		get_one(rank, 1, 4, 128);
	ok(bootstrap->fence(LONG));
	bootstrap->close();
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

static void absent(const char *list, double seconds, bool gone)
{
	zero_status status;
	int present = 0;
	double begin;

	ok(bootstrap->open(&place));
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
	status = bootstrap->fence(seconds);
	check(status == ZERO_E_COMM, "status %d", status);
	printf("rank %d after %.1f s: %s\n", place.rank, now() - begin, sentence);
	fflush(stdout);
	announce("told");
	bootstrap->close();
}

/* ---- ids of NCCL ----------------------------------------------------------------------------- */

struct nccl_id {
	unsigned char bytes[128];
};

static void nccl(const char *library)
{
	struct nccl_id id = {{0}}, got, *all;
	size_t bytes;
	bool made = false;

	ok(bootstrap->open(&place));
	if (place.rank == 0) {
		int (*make_id)(struct nccl_id *);
		void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

		if (!handle)
			printf("SKIP: %s\n", dlerror());
		*(void **)&make_id = handle ? dlsym(handle, "ncclGetUniqueId") : NULL;
		made = make_id && make_id(&id) == 0;
		check(made || !handle, "ncclGetUniqueId failed");
		ok(bootstrap->put("id", &id, made ? sizeof(id) : 0));
	}
	ok(bootstrap->fence(LONG));
	ok(bootstrap->get(0, "id", &got, sizeof(got), &bytes));
	if (bytes) {
		check(bytes == sizeof(got), "an id of %zu bytes", bytes);
		ok(bootstrap->put("seen", &got, sizeof(got)));
		ok(bootstrap->fence(LONG));
		all = calloc(1, sizeof(*all));
		for (int rank = 0; rank < place.world; rank++) {
			ok(bootstrap->get(rank, "seen", all, sizeof(*all), &bytes));
			check(bytes == sizeof(*all) && memcmp(all, &got, bytes) == 0,
			      "rank %d has another id", rank);
		}
		free(all);
		bytes = 0;
		for (size_t i = 0; i < sizeof(got); i++)
			bytes += got.bytes[i] != 0;
		check(bytes > 4, "the id is empty");
		printf("nccl: rank=%d of %d has the id\n", place.rank, place.world);
	}
	ok(bootstrap->fence(LONG));
	bootstrap->close();
}

/* ---- how it ends ----------------------------------------------------------------------------- */

static int refuse(void)
{
	double begin = now();
	zero_status status = bootstrap->open(&place);

	check(status, "it opened: rank %d of %d", place.rank, place.world);
	printf("%s\n", sentence);
	check(now() - begin < LONG, "after %g s", now() - begin);
	return 0;
}

static void end_all(int status)
{
	ok(bootstrap->open(&place));
	ok(bootstrap->fence(LONG));
	if (place.rank == place.world - 1)
		bootstrap->abort(status, "because");
	pause_for(LONG);
}

/* ---- what it takes --------------------------------------------------------------------------- */

enum { OPEN, PUT, FENCE, GET, TOTAL, PHASES };

struct times {
	double seconds[PHASES];
};

/* What the loopback device has carried, in this network namespace. */
static double loopback_bytes(void)
{
	FILE *file = fopen("/proc/net/dev", "r");
	double bytes = 0;
	char line[512];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, " lo: %lf", &bytes) == 1)
			break;
	if (file)
		fclose(file);
	return bytes;
}

static void timed_get(int rank, const char *key, size_t want)
{
	char data[128];
	size_t bytes;

	ok(bootstrap->get(rank, key, data, sizeof(data), &bytes));
	check(bytes == want, "%s of rank %d: %zu bytes", key, rank, bytes);
}

/* The slowest rank's times, but for the fence, which for the last to come is the fence alone. */
static void report(double bytes)
{
	static const char *const names[PHASES] = {"open", "put", "fence", "get", "total"};
	struct times worst = {{0}}, times;
	double least = LONG;
	size_t got;

	for (int rank = 0; rank < place.world; rank++) {
		ok(bootstrap->get(rank, "times", &times, sizeof(times), &got));
		for (int i = 0; i < PHASES; i++)
			if (times.seconds[i] > worst.seconds[i])
				worst.seconds[i] = times.seconds[i];
		if (times.seconds[FENCE] < least)
			least = times.seconds[FENCE];
	}
	printf("{\"bench\": \"bootstrap\", \"ranks\": %d, \"local_ranks\": %d", place.world,
	       place.local_world);
	for (int i = 0; i < PHASES; i++)
		printf(", \"%s_ms\": %.3f", names[i], 1e3 * worst.seconds[i]);
	printf(", \"fence_least_ms\": %.3f, \"loopback_bytes\": %.0f, "
	       "\"loopback_bytes_per_rank\": %.0f}\n",
	       1e3 * least, bytes, bytes / place.world);
}

/* What each rank of a GPU job needs: the roots' ids and its neighbours' addresses. */
static void bench(void)
{
	struct times times;
	double begin = now(), before, last, bytes;
	char address[64] = "address", id[128] = "id";

	ok(bootstrap->open(&place));
	times.seconds[OPEN] = now() - begin;
	ok(bootstrap->fence(LONG)); /* all have begun */
	before = loopback_bytes();
	begin = last = now();
	ok(bootstrap->put("address", address, sizeof(address)));
	if (place.rank % RANKS_PER_ROOT == 0)
		ok(bootstrap->put("id", id, sizeof(id)));
	times.seconds[PUT] = now() - last;
	last = now();
	ok(bootstrap->fence(LONG));
	times.seconds[FENCE] = now() - last;
	last = now();
	for (int root = 0; root < place.world; root += RANKS_PER_ROOT)
		timed_get(root, "id", sizeof(id));
	timed_get((place.rank + 1) % place.world, "address", sizeof(address));
	timed_get((place.rank + place.world - 1) % place.world, "address", sizeof(address));
	times.seconds[GET] = now() - last;
	times.seconds[TOTAL] = now() - begin;
	ok(bootstrap->put("times", &times, sizeof(times)));
	ok(bootstrap->fence(LONG));
	/* All have got theirs; the times' own fence is in it. */
	bytes = loopback_bytes() - before;
	if (place.rank == 0)
		report(bytes);
	ok(bootstrap->fence(LONG));
	bootstrap->close();
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "";

	if (argc < 3) {
		fprintf(stderr, "bootstrap MODULE MODE [ARGUMENT...]\n");
		return 2;
	}
	load(argv[1]);
	if (strcmp(mode, "values") == 0)
		values();
	else if (strcmp(mode, "mpi") == 0)
		mpi();
	else if (strcmp(mode, "late") == 0 && argc == 4)
		late(atof(argv[3]));
	else if (strcmp(mode, "absent") == 0 && argc >= 5)
		absent(argv[3], atof(argv[4]), argc > 5);
	else if (strcmp(mode, "nccl") == 0 && argc == 4)
		nccl(argv[3]);
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
