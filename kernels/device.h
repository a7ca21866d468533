/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same kernels on a device. adamw.cu does what kernels.h says of adamw.c, with the same bits;
 * only norm2 adds in another order. A kernel takes one struct by value, so its name and these bytes
 * are enough to launch it. The library does so by the CUDA driver.
 *
 * Launch them with one dimension of blocks, of ZERO_DEVICE_THREADS threads each. Loops are
 * grid-stride, so any number of blocks gives the same values. Pointers
 * are aligned to their elements; counts may be 0 and may exceed 2^32.
 */
#ifndef ZERO_DEVICE_H
#define ZERO_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "dynamic_map.h"

#ifdef __CUDACC__
#define ZERO_DEVICE_TOO __host__ __device__
#else
#define ZERO_DEVICE_TOO
#endif

/* All kernels as a fat binary for cuModuleLoadData, with code for several generations of GPUs. */
extern const unsigned char zero_device_image[];

/* The kernels that libzero launches by number; see zero_launch in lib/backend/cuda/gpu.h. */
enum zero_kernel {
	ZERO_K_CAST,
	ZERO_K_SUM,
	ZERO_K_ADAMW,
	ZERO_K_ADAMW_8BIT,
	ZERO_K_NORM2,
	ZERO_K_NORM2_FOLD,
	ZERO_K_STEP_RULE,
	ZERO_K_GROUP_RULE,
	ZERO_K_FILL,
	ZERO_K_UNIFORM,
	ZERO_K_NORMAL,
	ZERO_K_COPY_MANY,
	ZERO_K_MUON_MOMENTUM,
	ZERO_K_MUON_UPDATE,
	ZERO_K_NORMALISE,
	ZERO_KERNELS,
};

enum {
	ZERO_DEVICE_THREADS = 256, /* of a block, in every kernel */
	ZERO_NORM2_PARTS = 1024,   /* most partial sums of a norm */
	ZERO_NORM2_PART = 16384,   /* elements of one, if that makes no more of them */
};

/* zero_device_cast: between f32, f16 and bf16. */
struct zero_device_cast {
	void *out;
	const void *in;
	size_t count;
	zero_dtype to, from;
};

/*
 * zero_device_sum: out = in[0] + ... + in[n-1], added from left to right whatever n is. in[own_at] is
 * `own`, and the other summands are the rows of `others`; own_at = n: all are. With `first` the sum
 * is first + in[0] + ... instead. out may be `first`, and `own` if that is f32. n >= 1.
 */
struct zero_device_sum {
	float *out;
	const float *first; /* or NULL */
	const void *own;
	const void *others; /* [n - 1][count], or [n][count] */
	size_t count;
	int n, own_at;
	zero_dtype from;
	bool accumulate; /* add the sum to out */
};

/* zero_device_adamw, and zero_device_adamw_8bit, which needs a block for each ZERO_BLOCK elements. With
   `state`, scale and corrections are read from there, and nothing is changed if the step is skipped. */
struct zero_device_adamw {
	struct zero_adamw_args args;
	const struct zero_step_state *state; /* NULL: none */
	float *p;
	struct zero_moments moments;
	const float *g;
	void *low; /* NULL, or p in low_dtype too */
	size_t count;
	zero_dtype low_dtype;
	struct zero_dynamic_map maps[2]; /* of values >= 0, and of either sign; for 8 bits alone */
};

/* zero_device_muon_momentum, which changes the momentum by the gradient `from` and writes `out`, and
   zero_device_muon_update, which changes values by the step `from`. Nothing is changed if the step is
   skipped. */
struct zero_device_muon {
	struct zero_muon_args args; /* but for its scale, which the state has */
	const struct zero_step_state *state;
	float *changed;
	const float *from;
	void *out; /* of an update: NULL, or the values in low_dtype too */
	size_t count;
	zero_dtype low_dtype;
};

/* zero_device_normalise: x /= max(sqrt(*sum), eps). */
struct zero_device_normalise {
	float *x;
	size_t count;
	const double *sum;
	float eps;
};

/*
 * zero_device_norm2, launched with zero_norm2_parts(count) blocks: block b writes the f64 sum of
 * squares of elements [b * length, (b + 1) * length), with length = zero_norm2_length(count). Then
 * zero_device_norm2_fold, launched with one block, adds the parts into *sum. The order of additions
 * depends on count alone. A NaN result is 0x7ff8000000000000.
 */
struct zero_device_norm2 {
	const float *x;
	size_t count;
	double *parts; /* [zero_norm2_parts(count)] */
};

struct zero_device_norm2_fold {
	const double *parts;
	size_t count;    /* of parts */
	double *sum;     /* may be host memory that the device writes */
	bool accumulate; /* add the sum to *sum */
};

/* zero_device_step_rule takes a struct zero_step_rule, and one block; zero_device_group_rule takes a
   struct zero_group_rule, and a thread for each group; see step_rule.h. */

static inline ZERO_DEVICE_TOO size_t zero_norm2_parts(size_t count)
{
	size_t parts = count / ZERO_NORM2_PART + (count % ZERO_NORM2_PART != 0);

	return parts < ZERO_NORM2_PARTS ? parts : (size_t)ZERO_NORM2_PARTS;
}

/* Elements of a part: a multiple of 64, so that all parts are aligned as x is. The last parts may
   be shorter or empty. count > 0. */
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
 * zero_device_uniform and zero_device_normal: elements first .. first + count of the sequence
 * (seed, stream). For uniform, first_value, last_value and cut are those of uniform_ends in
 * kernels.h.
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

/* An element of zero_device_copy_many: any alignment, without overlap. */
struct zero_device_piece {
	void *to;
	const void *from;
	size_t bytes;
};

/*
 * zero_device_copy_many copies all pieces in one launch. starts[count + 1] is the running sum of
 * their lengths in tiles of ZERO_COPY_TILE bytes, each rounded up, so that a block finds the piece
 * of a tile by bisection. Both tables are in memory of the device.
 */
enum { ZERO_COPY_TILE = 16384 };

struct zero_device_copy_many {
	const struct zero_device_piece *pieces;
	const uint64_t *starts;
	size_t count;
};

#endif
