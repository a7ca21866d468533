/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many copies at once, as when a group's tensors become flat: a launch for each would take longer
 * than the bytes. A table of all goes to the device first.
 */
#include <stdlib.h>

#include "gpu.h"

/* Fewer, or longer ones on average, are as well copied one by one. */
enum { FEW = 4, LONG = 4 << 20 };

static void copy_one(struct zero_device *device, const struct zero_copy *copy)
{
	if (copy->bytes)
		zero_device_note(device,
				 zero_driver.copy((CUdeviceptr)(uintptr_t)copy->to,
						  (CUdeviceptr)(uintptr_t)copy->from, copy->bytes,
						  device->compute),
				 "cuMemcpyAsync");
}

static bool by_kernel(const struct zero_copy *copy)
{
	bool from, to;

	return copy->bytes && copy->bytes < LONG && zero_device_reads(copy->from, &from) && from &&
	       zero_device_reads(copy->to, &to) && to;
}

/* The table in both memories: pieces, then their first tiles. */
struct table {
	struct zero_device_piece *pieces;
	uint64_t *starts;
	size_t count, bytes;
	void *on_device;
};

static bool make_table(struct zero_device *device, struct zero_memory_pool *memory, size_t count,
		       struct table *table)
{
	void *host = NULL;

	table->bytes = count * sizeof(*table->pieces) + (count + 1) * sizeof(*table->starts);
	if (zero_memory_alloc(memory, ZERO_MEM_PINNED, table->bytes, false, device->compute, &host))
		return false;
	if (zero_memory_alloc(memory, ZERO_MEM_STAGING, table->bytes, false, device->compute,
			      &table->on_device)) {
		zero_memory_free(memory, host, device->compute);
		return false;
	}
	table->pieces = host;
	table->starts = (uint64_t *)(void *)(table->pieces + count);
	return true;
}

/* `fast` says which go by the kernel. */
static void fill_table(struct table *table, const struct zero_copy *copies, const bool *fast,
		       size_t count)
{
	uint64_t tiles = 0;

	for (size_t i = 0; i < count; i++) {
		const struct zero_copy *copy = &copies[i];

		if (!fast[i])
			continue;
		table->pieces[table->count] = (struct zero_device_piece){
			.to = copy->to, .from = copy->from, .bytes = copy->bytes};
		table->starts[table->count++] = tiles;
		tiles += copy->bytes / ZERO_COPY_TILE + (copy->bytes % ZERO_COPY_TILE != 0);
	}
	table->starts[table->count] = tiles;
}

static void launch(struct zero_device *device, struct table *table)
{
	size_t tiles = table->starts[table->count], most = (size_t)device->processors * 16;
	struct zero_copy up = {
		.to = table->on_device, .from = table->pieces, .bytes = table->bytes};
	const char *starts = (const char *)table->on_device +
			     ((const char *)table->starts - (const char *)table->pieces);
	struct zero_device_copy_many many = {
		.pieces = table->on_device,
		.starts = (const uint64_t *)(const void *)starts,
		.count = table->count,
	};

	copy_one(device, &up);
	zero_launch_blocks(device, device->compute, ZERO_K_COPY_MANY, &many,
			   tiles < most ? tiles : most);
}

void zero_launch_copies(struct zero_device *device, struct zero_memory_pool *memory,
			const struct zero_copy *copies, size_t count)
{
	bool *fast = calloc(count + 1, sizeof(*fast));
	struct table table = {0};
	size_t small = 0;

	for (size_t i = 0; fast && i < count; i++)
		small += fast[i] = by_kernel(&copies[i]);
	/* Without memory for a table they go one by one. */
	if (small >= FEW && make_table(device, memory, small, &table)) {
		fill_table(&table, copies, fast, count);
		launch(device, &table);
		zero_memory_free(memory, table.pieces, device->compute);
		zero_memory_free(memory, table.on_device, device->compute);
	} else {
		small = 0;
	}
	for (size_t i = 0; i < count; i++)
		if (!small || !fast[i])
			copy_one(device, &copies[i]);
	free(fast);
}
