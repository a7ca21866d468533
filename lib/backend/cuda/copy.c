/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies on the device. When the tensors of a group become flat there are many copies, and a launch
 * for each would take longer than copying the bytes. A table of all copies goes to the device then,
 * and one kernel makes them.
 */
#include <stdlib.h>

#include "gpu.h"

/* Fewer than FEW copies, and any of LONG bytes, are made one by one. */
enum { FEW = 4, LONG = 4 << 20 };

void zero_device_copy(struct zero_device *device, CUstream stream, void *to, const void *from,
		      size_t bytes)
{
	if (to != from && bytes)
		zero_device_check(device,
				  zero_driver.copy((CUdeviceptr)(uintptr_t)to,
						   (CUdeviceptr)(uintptr_t)from, bytes, stream),
				  "cuMemcpyAsync");
}

static bool suits_kernel(const struct zero_copy *copy)
{
	bool from, to;

	return copy->bytes && copy->bytes < LONG && zero_device_can_read(copy->from, &from) &&
	       from && zero_device_can_read(copy->to, &to) && to;
}

/* The table in host and device memory: the pieces, then the first tile of each. */
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
	if (zero_memory_alloc(memory, ZERO_MEM_PINNED, table->bytes, false, device->compute_stream,
			      &host))
		return false;
	if (zero_memory_alloc(memory, ZERO_MEM_STAGING, table->bytes, false, device->compute_stream,
			      &table->on_device)) {
		zero_memory_free(memory, host, device->compute_stream);
		return false;
	}
	table->pieces = host;
	table->starts = (uint64_t *)(void *)(table->pieces + count);
	return true;
}

/* `fast` marks the copies that the kernel makes. */
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
	size_t tiles = table->starts[table->count], most = device->most_blocks[ZERO_K_COPY_MANY];
	const char *starts = (const char *)table->on_device +
			     ((const char *)table->starts - (const char *)table->pieces);
	struct zero_device_copy_many many = {
		.pieces = table->on_device,
		.starts = (const uint64_t *)(const void *)starts,
		.count = table->count,
	};

	zero_device_copy(device, device->compute_stream, table->on_device, table->pieces,
			 table->bytes);
	zero_launch_blocks(device, device->compute_stream, ZERO_K_COPY_MANY, &many,
			   tiles < most ? tiles : most);
}

void zero_device_copy_many(struct zero_device *device, struct zero_memory_pool *memory,
			   const struct zero_copy *copies, size_t count)
{
	bool *fast = calloc(count + 1, sizeof(*fast));
	struct table table = {0};
	size_t small = 0;

	for (size_t i = 0; fast && i < count; i++)
		small += fast[i] = suits_kernel(&copies[i]);
	/* Without memory for a table all copies are made one by one. */
	if (small >= FEW && make_table(device, memory, small, &table)) {
		fill_table(&table, copies, fast, count);
		launch(device, &table);
		zero_memory_free(memory, table.pieces, device->compute_stream);
		zero_memory_free(memory, table.on_device, device->compute_stream);
	} else {
		small = 0;
	}
	for (size_t i = 0; i < count; i++)
		if (!small || !fast[i])
			zero_device_copy(device, device->compute_stream, copies[i].to,
					 copies[i].from, copies[i].bytes);
	free(fast);
}
