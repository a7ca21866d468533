/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The naive ways, by plain MPI: what a framework does that has no flat buffer to send from and to
 * receive into. Their spare buffers are the caller's, so that a warm one may be timed.
 */
#include <limits.h>
#include <string.h>

#include "bench.h"

static void broadcast(void *data, size_t bytes)
{
	/* MPI counts in int: of the widest type that fits. */
	must_be(bytes % 2 == 0 && bytes / 2 <= INT_MAX, "a broadcast is of at most 4 GB");
	MPI_Bcast(data, (int)(bytes / 2), MPI_UINT16_T, 0, MPI_COMM_WORLD);
}

static size_t slice_of(size_t bytes, size_t *first)
{
	int rank, world;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &world);
	*first = bytes / (size_t)world * (size_t)rank;
	return bytes / (size_t)world;
}

static double bytes_broadcast(size_t bytes)
{
	int world;

	MPI_Comm_size(MPI_COMM_WORLD, &world);
	return (double)bytes * (world - 1);
}

double naive_broadcast_whole(void *shard, void *tensor, void *spare, size_t bytes)
{
	size_t first, slice = slice_of(bytes, &first);
	void *whole = tensor ? tensor : spare;

	broadcast(whole, bytes);
	memcpy(shard, (char *)whole + first, slice);
	return bytes_broadcast(bytes);
}

/* Of each chunk a rank keeps what lies in its slice. */
double naive_broadcast_chunks(void *shard, void *tensor, void *spare, size_t bytes, size_t chunk)
{
	size_t first, slice = slice_of(bytes, &first);

	for (size_t at = 0; at < bytes; at += chunk) {
		size_t end = bytes - at < chunk ? bytes : at + chunk;
		size_t from = at > first ? at : first;
		size_t to = end < first + slice ? end : first + slice;
		char *here = tensor ? (char *)tensor + at : spare;

		broadcast(here, end - at);
		if (from < to)
			memcpy((char *)shard + (from - first), here + (from - at), to - from);
	}
	return bytes_broadcast(bytes);
}

void naive_gather_then_cast(const struct zero_kernels *kernels, uint16_t *low, float *whole,
			    const float *shard, size_t part, int world)
{
	MPI_Allgather(shard, (int)part, MPI_FLOAT, whole, (int)part, MPI_FLOAT, MPI_COMM_WORLD);
	kernels->cast(ZERO_BF16, low, ZERO_F32, whole, part * (size_t)world);
}

void bare_gather_16(uint16_t *whole, const uint16_t *shard, size_t part)
{
	MPI_Allgather(shard ? shard : MPI_IN_PLACE, (int)part, MPI_UINT16_T, whole, (int)part,
		      MPI_UINT16_T, MPI_COMM_WORLD);
}

void bare_reduce(float *shard, const float *gradient, size_t part)
{
	MPI_Reduce_scatter_block(gradient, shard, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void naive_flatten(void *flat, const void *const *tensors, size_t count, size_t bytes)
{
	for (size_t i = 0; i < count; i++)
		memcpy((char *)flat + i * bytes, tensors[i], bytes);
}
