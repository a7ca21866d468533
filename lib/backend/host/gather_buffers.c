/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gather buffers, each at one address for life. Memory comes to one when its group is gathered,
 * and goes when it is released. Both move a mapping with its page tables, which costs a fraction of
 * what finding or protecting its pages would: those are 4 KB, where memory is shared.
 *
 * A block of anonymous memory moves to the gather buffer and back. A block of an arena stays where
 * peers and communication access it; a second mapping of it, its view, moves.
 */
#include "gather_buffers.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "backend/account.h"
#include "host.h"
#include "shared_arena.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* A range of addresses: a reserved one, or where a view is while it is at no gather buffer. */
struct range {
	char *key;  /* of the tree: the reserved address, or the block of a view */
	char *from; /* where the memory at the gather buffer moves back to; NULL: nothing to move
		       back */
	char *address;
	size_t bytes;
	bool taken; /* `from` is a block, not a view */
};

struct zero_gather_buffers {
	pthread_mutex_t lock;
	void *reserved; /* tsearch trees of ranges */
	void *views;
};

static int by_key(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return (x->key > y->key) - (x->key < y->key);
}

struct zero_gather_buffers *zero_gather_buffers_new(void)
{
	struct zero_gather_buffers *buffers = calloc(1, sizeof(*buffers));

	if (buffers)
		pthread_mutex_init(&buffers->lock, NULL);
	return buffers;
}

static void free_range(void *node)
{
	struct range *range = node;

	munmap(range->address, range->bytes);
	free(range);
}

void zero_gather_buffers_delete(struct zero_gather_buffers *buffers)
{
	if (!buffers)
		return;
	tdestroy(buffers->reserved, free_range);
	tdestroy(buffers->views, free_range);
	pthread_mutex_destroy(&buffers->lock);
	free(buffers);
}

/* ---- ranges: called with the lock held ------------------------------------------------------- */

static struct range *find(void **tree, const void *key)
{
	struct range wanted = {.key = (char *)(uintptr_t)key};
	void *node = tfind(&wanted, tree, by_key);

	return node ? *(struct range **)node : NULL;
}

/* Adds a range without memory. A `key` of NULL is its address. NULL: no room. */
static struct range *add(void **tree, char *key, size_t bytes)
{
	struct range *range = calloc(1, sizeof(*range));

	if (!range)
		return NULL;
	range->bytes = bytes;
	range->address = zero_arena_addresses(bytes);
	range->key = key ? key : range->address;
	if (range->address && tsearch(range, tree, by_key))
		return range;
	if (range->address)
		munmap(range->address, bytes);
	free(range);
	return NULL;
}

static void drop(void **tree, struct range *range)
{
	tdelete(range, tree, by_key);
	free_range(range);
}

/* Moves a mapping. What is left has no pages, so that at no time another thread can map something
   there. Linux can do so since 5.7, and with memory of an arena since 5.13. */
static bool move(char *to, char *from, size_t bytes)
{
	return mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) !=
	       MAP_FAILED;
}

/* Maps the memory of an arena at `from` a second time: an old size of 0 says so. */
static bool map_again(char *to, char *from, size_t bytes)
{
	return mremap(from, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
}

static void take_away(const struct range *buffer)
{
	mmap(buffer->address, buffer->bytes, PROT_NONE,
	     MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* The view of a block, of so many bytes at least. */
static struct range *find_view(struct zero_gather_buffers *buffers, char *block, size_t bytes)
{
	struct range *view = find(&buffers->views, block);

	if (view && view->bytes < bytes) {
		drop(&buffers->views, view);
		view = NULL;
	}
	if (view)
		return view;
	view = add(&buffers->views, block, bytes);
	if (view && !map_again(view->address, block, bytes)) {
		drop(&buffers->views, view);
		view = NULL;
	}
	return view;
}

/* ---- for all --------------------------------------------------------------------------------- */

zero_status zero_gather_buffers_reserve(struct zero_gather_buffers *buffers, size_t bytes,
					void **address)
{
	const struct range *buffer;

	bytes = zero_round_to_pages(bytes);
	pthread_mutex_lock(&buffers->lock);
	buffer = add(&buffers->reserved, NULL, bytes);
	*address = buffer ? buffer->address : NULL;
	pthread_mutex_unlock(&buffers->lock);
	if (*address)
		return ZERO_OK;
	return zero_core->fail(ZERO_E_MEMORY,
			       "no memory for %zu bytes of %s: the process has no addresses left "
			       "(ulimit -v)",
			       bytes, zero_memory_kind_name(ZERO_MEM_GATHERED));
}

void zero_gather_buffers_unreserve(struct zero_gather_buffers *buffers, void *address)
{
	struct range *buffer;

	pthread_mutex_lock(&buffers->lock);
	buffer = find(&buffers->reserved, address);
	if (buffer)
		drop(&buffers->reserved, buffer);
	pthread_mutex_unlock(&buffers->lock);
}

bool zero_gather_buffers_move_in(struct zero_gather_buffers *buffers, void *address, void *block)
{
	struct range *buffer;
	bool taken;

	pthread_mutex_lock(&buffers->lock);
	buffer = find(&buffers->reserved, address);
	taken = move(buffer->address, block, buffer->bytes);
	buffer->from = taken ? block : NULL;
	buffer->taken = taken;
	pthread_mutex_unlock(&buffers->lock);
	return taken;
}

static zero_status fail_to_map(void)
{
	return zero_core->fail(ZERO_E_MEMORY,
			       "a gather buffer cannot be mapped: the process has too many "
			       "mappings (sysctl vm.max_map_count)");
}

zero_status zero_gather_buffers_fill(struct zero_gather_buffers *buffers, void *address)
{
	const struct range *buffer;
	bool mapped;

	pthread_mutex_lock(&buffers->lock);
	buffer = find(&buffers->reserved, address);
	mapped = mmap(buffer->address, buffer->bytes, PROT_READ | PROT_WRITE,
		      MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
	if (mapped)
		madvise(buffer->address, buffer->bytes, MADV_HUGEPAGE);
	pthread_mutex_unlock(&buffers->lock);
	return mapped ? ZERO_OK : fail_to_map();
}

zero_status zero_gather_buffers_map(struct zero_gather_buffers *buffers, void *address, void *block)
{
	struct range *buffer, *view;
	bool shown;

	pthread_mutex_lock(&buffers->lock);
	buffer = find(&buffers->reserved, address);
	view = find_view(buffers, block, buffer->bytes);
	shown = view && move(buffer->address, view->address, buffer->bytes);
	buffer->from = shown ? view->address : NULL;
	if (!shown)
		shown = map_again(buffer->address, block, buffer->bytes);
	pthread_mutex_unlock(&buffers->lock);
	return shown ? ZERO_OK : fail_to_map();
}

bool zero_gather_buffers_unmap(struct zero_gather_buffers *buffers, void *address, void **block)
{
	struct range *buffer;

	pthread_mutex_lock(&buffers->lock);
	buffer = find(&buffers->reserved, address);
	if (block)
		*block = buffer && buffer->taken ? buffer->from : NULL;
	if (buffer) {
		if (buffer->from)
			move(buffer->from, buffer->address, buffer->bytes);
		buffer->from = NULL;
		buffer->taken = false;
		take_away(buffer);
	}
	pthread_mutex_unlock(&buffers->lock);
	return buffer;
}
