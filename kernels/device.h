/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same kernels on a device: each adamw.cu lies beside its adamw.c and does what kernels.h says
 * of that, bit for bit but for the sums of norm2. A kernel takes one struct by value, so that
 * whoever launches it needs its name and these bytes alone: the library by the CUDA driver, a
 * stand-in for the driver by calling the host's kernel.
 *
 * Launched as one dimension of blocks and of threads; grid-stride, so that any number of blocks
 * gives the same values. Pointers are to memory that the device reads and writes, aligned to their
 * elements and no more; counts may be 0 and beyond 2^32.
 */
#ifndef ZERO_DEVICE_H
#define ZERO_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"

#ifdef __CUDACC__
#define ZERO_DEVICE_TOO __host__ __device__
#else
#define ZERO_DEVICE_TOO
#endif

/* All kernels, for cuModuleLoadData: code for several generations of devices in one. */
extern const unsigned char zero_device_image[];

enum {
	ZERO_DEVICE_THREADS = 256,  /* of a block, in every kernel */
	ZERO_DEVICE_SUMMANDS = 256, /* of one launch of zero_device_sum */
	ZERO_NORM2_PARTS = 1024,    /* most partial sums of a norm */
	ZERO_NORM2_PART = 16384,    /* elements of one, if that makes no more of them */
};

/* zero_device_cast: between f32, f16 and bf16. */
struct zero_device_cast {
	void *out;
	const void *in;
	size_t count;
	zero_dtype to, from;
};

/* zero_device_sum: out = in[0] + ... + in[n-1], folded from the left; out may be one of in if they
   are f32. n >= 1. */
struct zero_device_sum {
	float *out;
	const void *in[ZERO_DEVICE_SUMMANDS];
	size_t count;
	int n;
	zero_dtype from;
	bool accumulate; /* out += that sum */
};

/* zero_device_adamw */
struct zero_device_adamw {
	struct zero_adamw_args args;
	float *p, *m, *v;
	const float *g;
	void *low; /* NULL, or p in low_dtype too */
	size_t count;
	zero_dtype low_dtype;
};

/*
 * zero_device_norm2, by zero_norm2_parts(count) blocks: block b writes the f64 sum of squares of
 * the elements of part b, [b * length, (b + 1) * length) with length = zero_norm2_length(count).
 * Then zero_device_norm2_fold, one block, adds the parts into *sum. Each in an order that is a
 * function of count alone, whatever the device. A NaN comes out as 0x7ff8000000000000.
 */
struct zero_device_norm2 {
	const float *x;
	size_t count;
	double *parts; /* [zero_norm2_parts(count)] */
};

struct zero_device_norm2_fold {
	const double *parts;
	size_t count; /* of parts */
	double *sum;  /* may be host memory that the device writes */
};

static inline ZERO_DEVICE_TOO size_t zero_norm2_parts(size_t count)
{
	size_t parts = count / ZERO_NORM2_PART + (count % ZERO_NORM2_PART != 0);

	return parts < ZERO_NORM2_PARTS ? parts : (size_t)ZERO_NORM2_PARTS;
}

/* A multiple of 64, so that all parts are aligned as x is; the last ones may be shorter or empty.
   count > 0. */
static inline ZERO_DEVICE_TOO size_t zero_norm2_length(size_t count)
{
	const size_t parts = zero_norm2_parts(count);
	const size_t length = count / parts + (count % parts != 0);

	return (length + 63) / 64 * 64;
}

/* zero_device_fill: `count` elements of `size` bytes (1, 2, 4 or 8), all `pattern`. */
struct zero_device_fill {
	void *out;
	size_t count;
	uint64_t pattern; /* in its lower bytes */
	size_t size;
};

/*
 * zero_device_uniform and zero_device_normal: elements first .. first + count of the stream. The
 * host finds first_value and last_value, the type's own values at both ends of [a, b), and cut, the
 * bits of a word that are not used: see kernels/philox.c.
 */
struct zero_device_random {
	void *out;
	size_t first, count;
	uint64_t seed, stream;
	double a, b; /* low and high, or mean and standard deviation */
	double first_value, last_value;
	int cut;
	zero_dtype dtype; /* f32, f16, bf16 or f64 */
};

/* What zero_device_copy_many copies: any bytes, any alignment, without overlap. */
struct zero_device_piece {
	void *to;
	const void *from;
	size_t bytes;
};

/*
 * zero_device_copy_many: all of them in one launch. `starts`[count + 1] is the running sum of
 * their lengths in tiles of ZERO_COPY_TILE bytes, each rounded up, so that a block finds the piece
 * of its tile by bisection; both tables are on the device.
 */
enum { ZERO_COPY_TILE = 16384 };

struct zero_device_copy_many {
	const struct zero_device_piece *pieces;
	const uint64_t *starts;
	size_t count;
};

#endif
