/* SPDX-License-Identifier: Apache-2.0 */
#include "shared_arena.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	HUGE_PAGE = 2 << 20,
	NOEXEC = 8, /* MFD_NOEXEC_SEAL, which older headers do not have */
};

/* A free range of the file. The list is sorted by offset, and adjacent gaps are merged. */
struct gap {
	struct gap *next;
	size_t at, bytes;
};

struct zero_arena {
	pthread_mutex_t lock;
	struct gap *gaps;
	char *base;
	size_t bytes;
	int file;
};

/* ftruncate beyond the limit of file sizes (ulimit -f) would end the process by SIGXFSZ. */
static bool is_allowed(size_t bytes)
{
	struct rlimit limit;

	return !getrlimit(RLIMIT_FSIZE, &limit) &&
	       (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur);
}

char *zero_arena_addresses(size_t bytes)
{
	size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0, before;
	char *room;

	room = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		    0);
	if (room == MAP_FAILED)
		return NULL;
	before = slack ? -(uintptr_t)room % HUGE_PAGE : 0;
	if (before)
		munmap(room, before);
	if (slack > before)
		munmap(room + before + bytes, slack - before);
	return room + before;
}

void *zero_arena_map(int file, size_t bytes)
{
	char *room = zero_arena_addresses(bytes), *base;

	if (!room)
		return NULL;
	base = mmap(room, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
		    file, 0);
	if (base == MAP_FAILED) {
		munmap(room, bytes);
		return NULL;
	}
	/* A hint: few systems allow huge pages in such files. */
	madvise(base, bytes, MADV_HUGEPAGE);
	/* Else a core file would have all pages, also those that were never touched. */
	madvise(base, bytes, MADV_DONTDUMP);
	return base;
}

static int open_file(void)
{
	int file = zero_huge_file();

	if (file < 0)
		file = memfd_create("slurm-zero", MFD_CLOEXEC | NOEXEC);
	/* Linux has the flag since 6.3; some systems demand it. */
	if (file < 0 && errno == EINVAL)
		file = memfd_create("slurm-zero", MFD_CLOEXEC);
	return file;
}

struct zero_arena *zero_arena_new(size_t bytes)
{
	struct zero_arena *arena = calloc(1, sizeof(*arena));
	struct gap *all = calloc(1, sizeof(*all));
	void *base;

	if (!arena || !all || !is_allowed(bytes))
		goto no_memory;
	arena->file = open_file();
	if (arena->file < 0)
		goto no_memory;
	if (ftruncate(arena->file, (off_t)bytes))
		goto close_file;
	base = zero_arena_map(arena->file, bytes);
	if (!base)
		goto close_file;
	pthread_mutex_init(&arena->lock, NULL);
	arena->base = base;
	arena->bytes = bytes;
	all->bytes = bytes;
	arena->gaps = all;
	return arena;
close_file:
	close(arena->file);
no_memory:
	free(arena);
	free(all);
	return NULL;
}

void zero_arena_delete(struct zero_arena *arena)
{
	struct gap *next;

	if (!arena)
		return;
	for (struct gap *gap = arena->gaps; gap; gap = next) {
		next = gap->next;
		free(gap);
	}
	munmap(arena->base, arena->bytes);
	close(arena->file);
	pthread_mutex_destroy(&arena->lock);
	free(arena);
}

char *zero_arena_base(const struct zero_arena *arena)
{
	return arena->base;
}

int zero_arena_file(const struct zero_arena *arena)
{
	return arena->file;
}

bool zero_arena_contains(const struct zero_arena *arena, const void *data)
{
	const char *at = data;

	return at >= arena->base && at < arena->base + arena->bytes;
}

/* Large blocks begin at a multiple of the huge page size; what is before them stays a gap. */
static size_t align_up(size_t at, size_t bytes)
{
	size_t unit = bytes >= HUGE_PAGE ? HUGE_PAGE : ZERO_ARENA_PAGE;

	return (at + unit - 1) / unit * unit;
}

/* Removes [at, at + bytes) from the gap *place. False: no memory for a second gap. */
static bool cut(struct gap **place, size_t at, size_t bytes)
{
	struct gap *gap = *place, *rest;
	size_t before = at - gap->at, after = gap->at + gap->bytes - (at + bytes);

	if (before && after) {
		rest = malloc(sizeof(*rest));
		if (!rest)
			return false;
		*rest = (struct gap){.next = gap->next, .at = at + bytes, .bytes = after};
		gap->next = rest;
		gap->bytes = before;
	} else if (before) {
		gap->bytes = before;
	} else if (after) {
		gap->at = at + bytes;
		gap->bytes = after;
	} else {
		*place = gap->next;
		free(gap);
	}
	return true;
}

char *zero_arena_alloc(struct zero_arena *arena, size_t bytes)
{
	char *data = NULL;

	pthread_mutex_lock(&arena->lock);
	for (struct gap **place = &arena->gaps; *place && !data; place = &(*place)->next) {
		size_t at = align_up((*place)->at, bytes), end = (*place)->at + (*place)->bytes;

		if (at > end || end - at < bytes)
			continue;
		if (cut(place, at, bytes))
			data = arena->base + at;
		break;
	}
	pthread_mutex_unlock(&arena->lock);
	return data;
}

/* Merges the gap with the next one if they are adjacent. */
static void join(struct gap *gap)
{
	struct gap *next = gap->next;

	if (!next || gap->at + gap->bytes != next->at)
		return;
	gap->bytes += next->bytes;
	gap->next = next->next;
	free(next);
}

void zero_arena_free(struct zero_arena *arena, char *data, size_t bytes)
{
	size_t at = (size_t)(data - arena->base);
	struct gap **place, *gap = malloc(sizeof(*gap));

	/* Returns the pages to the system; they read as 0 when touched again. */
	fallocate(arena->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes);
	if (!gap)
		return; /* a range of addresses is lost, but no memory */
	pthread_mutex_lock(&arena->lock);
	place = &arena->gaps;
	while (*place && (*place)->at + (*place)->bytes < at)
		place = &(*place)->next;
	if (*place && (*place)->at + (*place)->bytes == at) {
		free(gap);
		(*place)->bytes += bytes;
		join(*place);
	} else {
		*gap = (struct gap){.next = *place, .at = at, .bytes = bytes};
		*place = gap;
		join(gap);
	}
	pthread_mutex_unlock(&arena->lock);
}
