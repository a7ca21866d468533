/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transposes tile by tile in a buffer on the stack, so that full cache lines are read and written:
 * rows that are a power of two apart map to few cache lines and evict each other. For the same
 * reason a large output is written past the cache (0.4 of the time). The next tile is prefetched,
 * since no processor predicts where it is.
 */
#include "simd.h"

enum {
	TILE = 64,        /* rows and columns */
	PITCH = TILE + 8, /* elements between the buffer's rows */
	LINE = 64,        /* bytes */
	LARGE = 1 << 20,  /* bytes of an output that leaves the cache before it is complete */
};

struct transpose {
	char *out;
	const char *in;
	size_t out_stride, in_stride; /* in bytes */
	bool stream;
};

/* Inlined with a constant size, so that the copy of an element is one instruction. */
static inline __attribute__((always_inline)) void transpose_tile(const struct transpose *t,
								 size_t row, size_t column,
								 size_t rows, size_t columns,
								 size_t size)
{
	char tile[TILE * PITCH * sizeof(uint64_t)];
	char *out = t->out + column * t->out_stride + row * size;
	const bool stream = t->stream && rows * size % LINE == 0;

	for (size_t r = 0; r < rows; r++) {
		const char *in = t->in + (row + r) * t->in_stride + column * size;

		for (size_t b = 0; b < columns * size; b += LINE)
			__builtin_prefetch((const void *)((uintptr_t)in + TILE * t->in_stride + b));
		for (size_t c = 0; c < columns; c++)
			memcpy(tile + (c * PITCH + r) * size, in + c * size, size);
	}
	for (size_t c = 0; c < columns; c++, out += t->out_stride) {
		const char *from = tile + c * PITCH * size;

		if (!stream)
			memcpy(out, from, rows * size);
		for (size_t b = 0; stream && b < rows * size; b += sizeof(vec))
			vec_stream((float *)(out + b), vec_load((const float *)(from + b)));
	}
}

static inline __attribute__((always_inline)) void
transpose_all(const struct transpose *t, size_t rows, size_t columns, size_t size)
{
	for (size_t c = 0; c < columns; c += TILE)
		for (size_t r = 0; r < rows; r += TILE)
			transpose_tile(t, r, c, rows - r < TILE ? rows - r : TILE,
				       columns - c < TILE ? columns - c : TILE, size);
}

void zero_transpose(void *out, size_t out_stride, const void *in, size_t in_stride, size_t rows,
		    size_t columns, size_t element_size)
{
	struct transpose t = {
		.out = out,
		.in = in,
		.out_stride = out_stride * element_size,
		.in_stride = in_stride * element_size,
	};

	t.stream = (uintptr_t)out % LINE == 0 && t.out_stride % LINE == 0 &&
		   rows * columns * element_size >= LARGE;
	switch (element_size) {
	case 1:
		transpose_all(&t, rows, columns, 1);
		break;
	case 2:
		transpose_all(&t, rows, columns, 2);
		break;
	case 4:
		transpose_all(&t, rows, columns, 4);
		break;
	case 8:
		transpose_all(&t, rows, columns, 8);
		break;
	}
	if (t.stream)
		vec_fence();
}
