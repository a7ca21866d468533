/* SPDX-License-Identifier: Apache-2.0 */
/* The arena against a model that keeps every block: none overlap, all begin where they should, are
   zero when they come, and what was freed is one piece again. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/host/shared_arena.h"
#include "unit.h"

enum { BLOCKS = 64, HUGE_PAGE = 2 << 20, PAGES = 8 * 512, THREADS = 4 };

#define BYTES ((size_t)PAGES * ZERO_ARENA_PAGE)

struct block {
	char *data;
	size_t bytes;
	unsigned char mark;
};

static uint64_t seed;

/* Mostly a few pages, at times about as many as a huge page has, or more. */
static size_t random_bytes(uint64_t *state)
{
	size_t pages = random_below(state, 8) ? 1 + random_below(state, 20)
					      : 1 + random_below(state, 1500);

	return (random_below(state, 16) ? pages : HUGE_PAGE / ZERO_ARENA_PAGE) * ZERO_ARENA_PAGE;
}

/* Only the ends of each page: what overlaps or is not zero shows there too. */
static void mark(const struct block *block)
{
	for (size_t at = 0; at < block->bytes; at += ZERO_ARENA_PAGE) {
		memset(block->data + at, block->mark, 64);
		memset(block->data + at + ZERO_ARENA_PAGE - 64, block->mark, 64);
	}
}

static bool is_marked(const struct block *block, unsigned char want)
{
	for (size_t at = 0; at < block->bytes; at += ZERO_ARENA_PAGE)
		for (size_t i = 0; i < 64; i++)
			if ((unsigned char)block->data[at + i] != want ||
			    (unsigned char)block->data[at + ZERO_ARENA_PAGE - 1 - i] != want)
				return false;
	return true;
}

static bool overlaps(const struct block *a, const struct block *b)
{
	return a->data < b->data + b->bytes && b->data < a->data + a->bytes;
}

static struct zero_arena *new_arena(size_t bytes)
{
	struct zero_arena *arena = zero_arena_new(bytes);

	ck_assert_ptr_nonnull(arena);
	return arena;
}

/* Both in the file and in memory: a huge page is at the same place of either. */
static void check_place(const struct zero_arena *arena, const struct block *block, size_t bytes)
{
	size_t unit = block->bytes >= HUGE_PAGE ? HUGE_PAGE : ZERO_ARENA_PAGE;
	size_t at = (size_t)(block->data - zero_arena_base(arena));

	ck_assert_msg(at % unit == 0, "%zu bytes at %zu", block->bytes, at);
	ck_assert_uint_eq((uintptr_t)block->data % unit, 0);
	ck_assert_msg(at + block->bytes <= bytes, "%zu bytes at %zu", block->bytes, at);
	ck_assert(zero_arena_contains(arena, block->data));
	ck_assert(zero_arena_contains(arena, block->data + block->bytes - 1));
}

/* Whether a block of that size fits in between those that are there. */
static bool has_room(const struct zero_arena *arena, const struct block *blocks, size_t bytes)
{
	size_t unit = bytes >= HUGE_PAGE ? HUGE_PAGE : ZERO_ARENA_PAGE;
	const char *base = zero_arena_base(arena);

	for (size_t at = 0; at + bytes <= BYTES;) {
		size_t next = at;

		for (int i = 0; i < BLOCKS && next == at; i++) {
			size_t begin = (size_t)(blocks[i].data - base);

			if (blocks[i].data && begin < at + bytes && at < begin + blocks[i].bytes)
				next = (begin + blocks[i].bytes + unit - 1) / unit * unit;
		}
		if (next == at)
			return true;
		at = next;
	}
	return false;
}

static void alloc_one(struct zero_arena *arena, struct block *blocks, int which, uint64_t *state)
{
	struct block *block = &blocks[which];
	size_t bytes = random_bytes(state);
	bool room = has_room(arena, blocks, bytes);

	*block = (struct block){.data = zero_arena_alloc(arena, bytes),
				.bytes = bytes,
				.mark = (unsigned char)(1 + random_below(state, 255))};
	ck_assert_msg((block->data != NULL) == room, "%zu bytes: %p", bytes, (void *)block->data);
	if (!block->data)
		return;
	check_place(arena, block, BYTES);
	for (int i = 0; i < BLOCKS; i++)
		ck_assert_msg(i == which || !blocks[i].data || !overlaps(block, &blocks[i]),
			      "blocks overlap");
	ck_assert_msg(is_marked(block, 0), "not zero");
	mark(block);
}

static void free_one(struct zero_arena *arena, struct block *block)
{
	ck_assert_msg(is_marked(block, block->mark), "overwritten");
	zero_arena_free(arena, block->data, block->bytes);
	block->data = NULL;
}

/* As many bytes as the file has pages, which go when they are freed. */
static size_t used_bytes(const struct zero_arena *arena)
{
	struct stat info;

	ck_assert_int_eq(fstat(zero_arena_file(arena), &info), 0);
	return (size_t)info.st_blocks * 512;
}

/* All of it once more, in one piece. */
static void check_whole(struct zero_arena *arena, size_t bytes)
{
	char *all = zero_arena_alloc(arena, bytes);

	ck_assert_ptr_eq(all, zero_arena_base(arena));
	ck_assert_ptr_null(zero_arena_alloc(arena, ZERO_ARENA_PAGE));
	*all = 1;
	zero_arena_free(arena, all, bytes);
	ck_assert_uint_eq(used_bytes(arena), 0);
}

START_TEST(against_a_model)
{
	static struct block blocks[BLOCKS];
	struct zero_arena *arena = new_arena(BYTES);
	uint64_t state = seed + (uint64_t)_i;

	memset(blocks, 0, sizeof(blocks));
	for (int turn = 0; turn < 2000; turn++) {
		int which = (int)random_below(&state, BLOCKS);

		if (blocks[which].data)
			free_one(arena, &blocks[which]);
		else
			alloc_one(arena, blocks, which, &state);
	}
	for (int i = 0; i < BLOCKS; i++)
		if (blocks[i].data)
			free_one(arena, &blocks[i]);
	check_whole(arena, BYTES);
	zero_arena_delete(arena);
}
END_TEST

/* A peer sees through its own mapping what is written, and that it goes. */
START_TEST(a_peer)
{
	struct zero_arena *arena = new_arena(BYTES);
	char *data = zero_arena_alloc(arena, ZERO_ARENA_PAGE), *theirs;
	size_t at = (size_t)(data - zero_arena_base(arena));

	theirs = zero_arena_map(zero_arena_file(arena), BYTES);
	ck_assert_ptr_nonnull(theirs);
	ck_assert_uint_eq((uintptr_t)theirs % HUGE_PAGE, 0);
	data[5] = 'a';
	ck_assert_int_eq(theirs[at + 5], 'a');
	theirs[at + 6] = 'b';
	ck_assert_int_eq(data[6], 'b');
	ck_assert(!zero_arena_contains(arena, theirs + at));
	ck_assert(!zero_arena_contains(arena, zero_arena_base(arena) + BYTES));
	zero_arena_free(arena, data, ZERO_ARENA_PAGE);
	ck_assert_int_eq(theirs[at + 5], 0);
	data = zero_arena_alloc(arena, ZERO_ARENA_PAGE);
	data[7] = 'c';
	at = (size_t)(data - zero_arena_base(arena));
	zero_arena_delete(arena);
	ck_assert_int_eq(theirs[at + 7], 'c');
	munmap(theirs, BYTES);
}
END_TEST

struct worker {
	struct zero_arena *arena;
	uint64_t state;
	unsigned char mark;
	const char *wrong;
};

/* Check is not for threads: what is wrong is told at the end. */
static void *work(void *context)
{
	struct worker *worker = context;
	struct block blocks[8] = {{0}};

	for (int turn = 0; turn < 3000 && !worker->wrong; turn++) {
		struct block *block = &blocks[random_below(&worker->state, 8)];

		if (block->data) {
			if (!is_marked(block, worker->mark))
				worker->wrong = "another thread's block is in this one";
			zero_arena_free(worker->arena, block->data, block->bytes);
			block->data = NULL;
			continue;
		}
		block->bytes = (1 + random_below(&worker->state, 20)) * ZERO_ARENA_PAGE;
		block->mark = worker->mark;
		block->data = zero_arena_alloc(worker->arena, block->bytes);
		if (!block->data || !is_marked(block, 0))
			worker->wrong = block->data ? "not zero" : "no room";
		if (block->data)
			mark(block);
	}
	for (int i = 0; i < 8; i++)
		if (blocks[i].data)
			zero_arena_free(worker->arena, blocks[i].data, blocks[i].bytes);
	return NULL;
}

START_TEST(threads)
{
	struct zero_arena *arena = new_arena(BYTES);
	struct worker workers[THREADS];
	pthread_t handles[THREADS];

	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){.arena = arena,
					     .state = seed + 1000 * (uint64_t)i,
					     .mark = (unsigned char)(i + 1)};
		ck_assert_int_eq(pthread_create(&handles[i], NULL, work, &workers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(handles[i], NULL);
	for (int i = 0; i < THREADS; i++)
		ck_assert_msg(!workers[i].wrong, "%s", workers[i].wrong);
	check_whole(arena, BYTES);
	zero_arena_delete(arena);
}
END_TEST

START_TEST(too_large)
{
	struct zero_arena *arena = new_arena(BYTES);

	ck_assert_ptr_null(zero_arena_alloc(arena, SIZE_MAX / ZERO_ARENA_PAGE * ZERO_ARENA_PAGE));
	zero_arena_delete(arena);
	zero_arena_delete(NULL);
	ck_assert_ptr_null(zero_arena_new((size_t)1 << 62));
	ck_assert_ptr_null(zero_arena_map(-1, HUGE_PAGE));
}
END_TEST

static volatile sig_atomic_t signalled;

static void note(int number)
{
	(void)number;
	signalled = 1;
}

static bool mentions(const char *path, const char *words)
{
	FILE *file = fopen(path, "r");
	char line[1024];
	bool found = false;

	ck_assert_ptr_nonnull(file);
	while (fgets(line, sizeof(line), file))
		found |= strstr(line, words) != NULL;
	fclose(file);
	return found;
}

/* Where it can be had, it is a tmpfs's, and the process sees neither child nor mount. */
START_TEST(huge_file)
{
	struct statfs info;
	int file;

	signal(SIGCHLD, note);
	file = zero_huge_file();
	ck_assert(!signalled);
	ck_assert(waitpid(-1, NULL, __WALL) < 0 && errno == ECHILD);
	ck_assert(!mentions("/proc/self/mountinfo", "slurm-zero"));
	if (file < 0)
		return;
	ck_assert_int_eq(fcntl(file, F_GETFD), FD_CLOEXEC);
	ck_assert(!fstatfs(file, &info) && info.f_type == TMPFS_MAGIC);
	ck_assert(access("/tmp/slurm-zero", F_OK) < 0);
	close(file);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("arena");

	seed = seed_of_test();
	tcase_add_loop_test(tcase, against_a_model, 0, 5);
	tcase_add_test(tcase, a_peer);
	tcase_add_test(tcase, threads);
	tcase_add_test(tcase, too_large);
	tcase_add_test(tcase, huge_file);
	return run_cases(tcase, NULL);
}
