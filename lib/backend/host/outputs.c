/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outputs of gathers, each at one address for life. The memory is a block of the pool, which is
 * mapped at the output's address too, as long as the group is gathered; access is revoked after
 * that. The mapping itself stays, since a block that comes back to the same output is then there at
 * once, with its page tables.
 */
#include "outputs.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "backend/account.h"
#include "host.h"
#include "shared_arena.h"

struct output {
	struct output *next;
	char *address; /* what the tree is ordered by */
	size_t bytes;
	const void *base; /* the block that is mapped there; NULL: none */
};

struct zero_outputs {
	pthread_mutex_t lock;
	void *by_address; /* tsearch tree */
	struct output *list;
};

static int by_address(const void *a, const void *b)
{
	const struct output *x = a, *y = b;

	return (x->address > y->address) - (x->address < y->address);
}

struct zero_outputs *zero_outputs_new(void)
{
	struct zero_outputs *outputs = calloc(1, sizeof(*outputs));

	if (outputs)
		pthread_mutex_init(&outputs->lock, NULL);
	return outputs;
}

static void leave_node(void *node)
{
	(void)node;
}

void zero_outputs_delete(struct zero_outputs *outputs)
{
	struct output *next;

	if (!outputs)
		return;
	tdestroy(outputs->by_address, leave_node);
	for (struct output *output = outputs->list; output; output = next) {
		next = output->next;
		munmap(output->address, output->bytes);
		free(output);
	}
	pthread_mutex_destroy(&outputs->lock);
	free(outputs);
}

zero_status zero_outputs_reserve(struct zero_outputs *outputs, size_t bytes, void **address)
{
	struct output *output = calloc(1, sizeof(*output));

	*address = NULL;
	bytes = zero_round_to_pages(bytes);
	if (output)
		output->address = zero_arena_addresses(bytes);
	if (!output || !output->address) {
		free(output);
		return zero_core->fail(
			ZERO_E_MEMORY,
			"no memory for %zu bytes of %s: the process has no addresses "
			"left (ulimit -v)",
			bytes, zero_memory_kind_name(ZERO_MEM_GATHERED));
	}
	output->bytes = bytes;
	pthread_mutex_lock(&outputs->lock);
	if (tsearch(output, &outputs->by_address, by_address)) {
		output->next = outputs->list;
		outputs->list = output;
		*address = output->address;
	}
	pthread_mutex_unlock(&outputs->lock);
	if (*address)
		return ZERO_OK;
	munmap(output->address, bytes);
	free(output);
	return zero_core->fail(ZERO_E_MEMORY, "no memory for an output of %zu bytes", bytes);
}

/* Called with the lock held. */
static struct output *find(struct zero_outputs *outputs, const void *address)
{
	struct output key = {.address = (char *)(uintptr_t)address};
	void *node = tfind(&key, &outputs->by_address, by_address);

	return node ? *(struct output **)node : NULL;
}

void zero_outputs_unreserve(struct zero_outputs *outputs, void *address)
{
	struct output *output, **place;

	pthread_mutex_lock(&outputs->lock);
	output = find(outputs, address);
	if (output) {
		tdelete(output, &outputs->by_address, by_address);
		for (place = &outputs->list; *place != output;)
			place = &(*place)->next;
		*place = output->next;
		munmap(output->address, output->bytes);
		free(output);
	}
	pthread_mutex_unlock(&outputs->lock);
}

const void *zero_outputs_base(struct zero_outputs *outputs, const void *address)
{
	const struct output *output;
	const void *base;

	pthread_mutex_lock(&outputs->lock);
	output = find(outputs, address);
	base = output ? output->base : NULL;
	pthread_mutex_unlock(&outputs->lock);
	return base;
}

/* Maps part of a file there; anonymous memory if there is no file. */
static bool map(struct output *output, const void *base, int file, size_t at)
{
	int flags =
		MAP_FIXED | MAP_NORESERVE | (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);

	if (mmap(output->address, output->bytes, PROT_READ | PROT_WRITE, flags, file, (off_t)at) ==
	    MAP_FAILED)
		return false;
	/* Hints. A core file has the block already. */
	madvise(output->address, output->bytes, MADV_HUGEPAGE);
	madvise(output->address, output->bytes, MADV_DONTDUMP);
	output->base = base;
	return true;
}

/* Takes what is mapped there away. */
static void unmap(struct output *output)
{
	mmap(output->address, output->bytes, PROT_NONE,
	     MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	output->base = NULL;
}

zero_status zero_outputs_map(struct zero_outputs *outputs, void *address, const void *base,
			     int file, size_t at)
{
	struct output *output;
	bool mapped;

	pthread_mutex_lock(&outputs->lock);
	output = find(outputs, address);
	mapped = output && base && output->base == base &&
		 !mprotect(output->address, output->bytes, PROT_READ | PROT_WRITE);
	if (output && !mapped)
		mapped = map(output, base, file, at);
	pthread_mutex_unlock(&outputs->lock);
	if (mapped)
		return ZERO_OK;
	return zero_core->fail(ZERO_E_MEMORY,
			       "an output cannot be mapped: the process has too many "
			       "mappings (sysctl vm.max_map_count)");
}

bool zero_outputs_revoke(struct zero_outputs *outputs, void *address)
{
	struct output *output;

	pthread_mutex_lock(&outputs->lock);
	output = find(outputs, address);
	if (output && (!output->base || mprotect(output->address, output->bytes, PROT_NONE)))
		unmap(output);
	pthread_mutex_unlock(&outputs->lock);
	return output;
}

void zero_outputs_forget(struct zero_outputs *outputs, const void *base)
{
	pthread_mutex_lock(&outputs->lock);
	for (struct output *output = outputs->list; output; output = output->next)
		if (output->base == base)
			unmap(output);
	pthread_mutex_unlock(&outputs->lock);
}
