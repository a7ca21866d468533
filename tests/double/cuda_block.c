/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of memory and where they are. One that was freed keeps its addresses for a while, out of
 * everybody's reach, so that who uses it late does not meet another one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda.h"

enum { PAGE = 4096, ALIGN = 512, KEPT = 4096 };

/* Ordered by address. Freed blocks stay until there are too many of them. */
static struct double_block **blocks;
static size_t block_count, block_size, gone_count;
static uint64_t numbers;

static void *map(size_t bytes, int access)
{
	void *data = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (data == MAP_FAILED)
		double_die("the host has no %zu bytes", bytes);
	return data;
}

/* Returns the first block that begins after the address. */
static size_t place_of(uintptr_t at)
{
	size_t low = 0, high = block_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (blocks[middle]->base <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void double_block_add(struct double_block *block)
{
	size_t place = place_of(block->base);

	if (block_count == block_size) {
		block_size = block_size ? 2 * block_size : 64;
		blocks = realloc(blocks, block_size * sizeof(struct double_block *));
		if (!blocks)
			double_die("the host has no memory for the list of blocks");
	}
	memmove(blocks + place + 1, blocks + place,
		(block_count - place) * sizeof(struct double_block *));
	blocks[place] = block;
	block_count++;
}

void double_block_remove(struct double_block *block)
{
	size_t place = place_of(block->base) - 1;

	block_count--;
	memmove(blocks + place, blocks + place + 1,
		(block_count - place) * sizeof(struct double_block *));
	free(block->records);
	free(block);
}

/* Forgets the block that was freed first. */
static void forget_one(void)
{
	size_t oldest = block_count;

	for (size_t i = 0; i < block_count; i++)
		if (blocks[i]->state == DOUBLE_GONE && !blocks[i]->pending &&
		    (oldest == block_count || blocks[i]->number < blocks[oldest]->number))
			oldest = i;
	if (oldest == block_count)
		return;
	munmap(blocks[oldest]->map, blocks[oldest]->map_bytes);
	double_block_remove(blocks[oldest]);
	gone_count--;
}

/* A block that is not whole pages begins at any address that a pool of the driver could return. */
struct double_block *double_block_new(size_t bytes, bool pinned, bool paged, CUcontext context)
{
	struct double_block *block = double_new(1, sizeof(*block));
	bool hidden = double_settings.protect && !pinned;
	size_t shift;

	block->number = ++numbers;
	shift = paged ? 0 : (block->number % 7 + 1) * ALIGN;
	block->bytes = bytes;
	block->map_bytes = (bytes + shift + PAGE) / PAGE * PAGE;
	block->map = map(block->map_bytes, hidden ? PROT_NONE : PROT_READ | PROT_WRITE);
	block->base = (uintptr_t)block->map + shift;
	block->data = hidden ? (char *)map(block->map_bytes, PROT_READ | PROT_WRITE) + shift
			     : (char *)block->base;
	block->pinned = pinned;
	block->context = context;
	double_block_add(block);
	return block;
}

void double_block_wait(const struct double_block *block)
{
	while (block->pending && block->context && block->context->fault)
		double_wait();
}

void double_block_gone(struct double_block *block)
{
	if (block->data != (char *)block->base)
		munmap(block->data - (block->base - (uintptr_t)block->map), block->map_bytes);
	mmap(block->map, block->map_bytes, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	block->data = NULL;
	block->state = DOUBLE_GONE;
	if (++gone_count > KEPT)
		forget_one();
}

struct double_block *double_block_find(uintptr_t at)
{
	size_t place = place_of(at);
	struct double_block *block = place ? blocks[place - 1] : NULL;

	return block && at - block->base < block->bytes ? block : NULL;
}

struct double_block *double_block_next(uintptr_t at)
{
	size_t place = place_of(at);

	if (place && at - blocks[place - 1]->base < blocks[place - 1]->bytes)
		place--;
	return place < block_count ? blocks[place] : NULL;
}

size_t double_cuda_pinned_bytes(void)
{
	size_t bytes = 0;

	double_lock();
	for (size_t i = 0; i < block_count; i++)
		if (blocks[i]->pinned && !blocks[i]->freed)
			bytes += blocks[i]->bytes;
	double_unlock();
	return bytes;
}

size_t double_tell_blocks(void)
{
	size_t alive = 0;

	for (size_t i = 0; i < block_count; i++) {
		if (blocks[i]->freed)
			continue;
		alive++;
		fprintf(stderr,
			"stand-in for CUDA: left alive: %s memory %p, %zu bytes, the %lluth "
			"allocated\n",
			blocks[i]->pinned     ? "pinned"
			: blocks[i]->physical ? "mapped"
					      : "device",
			(void *)blocks[i]->base, blocks[i]->bytes,
			(unsigned long long)blocks[i]->number);
	}
	return alive;
}
