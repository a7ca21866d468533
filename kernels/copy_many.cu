/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many copies in one launch: a launch for each of thousands of small tensors would take longer than
 * the copies. Each block of copy_many takes neighbouring tiles, so that it searches for a piece
 * once and then goes from piece to piece; pieces of pack are all as long and need no search.
 */
#include "device.cuh"

enum { COPY_UNROLL = 4 };

/* The piece of a tile: starts[piece] <= tile < starts[piece + 1]. */
ZERO_INLINE size_t piece_of(const uint64_t *starts, size_t count, uint64_t tile)
{
	size_t low = 0, high = count;

	while (high - low > 1) {
		const size_t middle = low + (high - low) / 2;

		if (starts[middle] <= tile)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Bytes in units of T, by a block; `to` and `from` are aligned to them. */
template <class T> ZERO_INLINE void copy_units(T *to, const T *from, size_t count)
{
	size_t i = threadIdx.x;

	for (; i + (COPY_UNROLL - 1) * STRIDE < count; i += COPY_UNROLL * STRIDE) {
		T x[COPY_UNROLL];

#pragma unroll
		for (int u = 0; u < COPY_UNROLL; u++)
			x[u] = __ldcs(from + i + u * STRIDE);
#pragma unroll
		for (int u = 0; u < COPY_UNROLL; u++)
			__stcs(to + i + u * STRIDE, x[u]);
	}
	for (; i < count; i += STRIDE)
		__stcs(to + i, __ldcs(from + i));
}

/* Copies in units of T, and single bytes before the first and after the last unit. */
template <class T> ZERO_INLINE void copy_by(char *to, const char *from, size_t bytes)
{
	const size_t to_boundary = (0 - (uintptr_t)to) % sizeof(T);
	const size_t head = to_boundary < bytes ? to_boundary : bytes;
	const size_t units = (bytes - head) / sizeof(T), end = head + units * sizeof(T);

	copy_units((T *)(to + head), (const T *)(from + head), units);
	if (threadIdx.x < head)
		to[threadIdx.x] = from[threadIdx.x];
	else if (threadIdx.x - head < bytes - end)
		to[end + threadIdx.x - head] = from[end + threadIdx.x - head];
}

/* In the widest units of which both pointers reach a boundary at the same byte. */
ZERO_INLINE void copy_tile(char *to, const char *from, size_t bytes)
{
	const uintptr_t apart = (uintptr_t)to ^ (uintptr_t)from;

	if (apart % 16 == 0)
		copy_by<uint4>(to, from, bytes);
	else if (apart % 8 == 0)
		copy_by<uint2>(to, from, bytes);
	else if (apart % 4 == 0)
		copy_by<unsigned int>(to, from, bytes);
	else if (apart % 2 == 0)
		copy_by<unsigned short>(to, from, bytes);
	else
		copy_by<unsigned char>(to, from, bytes);
}

ZERO_KERNEL zero_device_copy_many(const __grid_constant__ struct zero_device_copy_many args)
{
	const uint64_t tiles = args.count ? args.starts[args.count] : 0;
	const uint64_t each = tiles / gridDim.x, more = tiles % gridDim.x;
	const uint64_t first = blockIdx.x * each + (blockIdx.x < more ? blockIdx.x : more);
	const uint64_t end = first + each + (blockIdx.x < more);
	size_t k = 0;

	for (uint64_t tile = first; tile < end; tile++) {
		if (tile == first)
			k = piece_of(args.starts, args.count, tile);
		while (args.starts[k + 1] <= tile) /* pieces of no bytes have no tile */
			k++;
		const zero_device_piece piece = args.pieces[k];
		const size_t at = (tile - args.starts[k]) * ZERO_COPY_TILE;
		const size_t left = piece.bytes - at;

		copy_tile((char *)piece.to + at, (const char *)piece.from + at,
			  left < ZERO_COPY_TILE ? left : (size_t)ZERO_COPY_TILE);
	}
}

ZERO_KERNEL zero_device_pack(const __grid_constant__ struct zero_device_pack args)
{
	const size_t tiles = zero_device_pack_tiles(args.bytes);

	for (size_t tile = blockIdx.x; tile < tiles * args.count; tile += gridDim.x) {
		const size_t k = tile / tiles, at = tile % tiles * ZERO_COPY_TILE;
		const size_t from = args.order ? (size_t)args.order[k] : k;
		const size_t left = args.bytes - at;

		copy_tile((char *)args.out + k * args.bytes + at,
			  (const char *)args.in + from * args.stride + at,
			  left < ZERO_COPY_TILE ? left : (size_t)ZERO_COPY_TILE);
	}
}
