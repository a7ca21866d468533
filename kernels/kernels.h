/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels on a rank's own data. Each is one file (adamw.c) that is compiled once for each
 * instruction set; dispatch.c chooses the set for the processor. All sets give the same bits:
 * operations are IEEE, elementwise or with a fixed number of lanes, and fma is explicit.
 */
#ifndef ZERO_KERNELS_H
#define ZERO_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "dynamic_map.h"

struct zero_kernels {
	const char *isa; /* "avx512", "avx2", "neon", "scalar" */

	/* out[i] = in[i], between f32, f16 and bf16, or a copy of any type. Rounds to nearest even.
	   A NaN keeps its sign and becomes quiet, subnormals and infinities stay, and what is
	   beyond f16's range becomes infinite. out and in may overlap only if the types are
	   equal. */
	void (*cast)(zero_dtype to, void *out, zero_dtype from, const void *in, size_t count);
	/* out[i] = in[0][i] + in[1][i] + ... + in[n-1][i], added from left to right; with
	   `accumulate` that sum is added to out[i]. The summands are f32, f16 or bf16 and are
	   widened to f32 first. out may be one of in if they are f32, else overlaps none. n >= 1.
	   NaN results are 0x7fc00000. */
	void (*sum)(float *out, zero_dtype from, const void *const *in, int n, size_t count,
		    bool accumulate);
	/* Returns the sum of squares, in f64. Element i is added to lane i % 16; at the end lanes
	   are added pairwise (k and k + 8, then 4, 2, 1). So the order depends on count alone. */
	double (*norm2)(const float *x, size_t count);
	/* clang-format off */
	/*
	 * AdamW (Loshchilov and Hutter, arXiv 1711.05101); see struct zero_adamw_args:
	 *	g' = g * scale
	 *	m = beta1 * m + (1 - beta1) * g'
	 *	v = beta2 * v + (1 - beta2) * g'^2
	 *	p -= decay * p + lr * (m * correction1) / (sqrt(v * correction2) + eps)
	 * The right side of the last line is calculated before it is subtracted from p, since
	 * 1 - decay in f32 would lose a decay of 1e-7. NaN results are 0x7fc00000. The arrays do
	 * not overlap. If `low` is not NULL, p is also written there as f32, f16 or bf16.
	 */
	/* clang-format on */
	void (*adamw)(const struct zero_adamw_args *args, float *p, float *m, float *v,
		      const float *g, void *low, zero_dtype low_dtype, size_t count);
	/*
	 * Muon (Jordan, 2024), what is done before and after a matrix is orthogonalised; see struct
	 * zero_muon_args:
	 *	g' = (1 - momentum) * (g * scale)
	 *	m = momentum * m + g'
	 *	out = momentum * m + g', or m without nesterov
	 * and
	 *	p -= decay * p + lr * update
	 * NaN results are 0x7fc00000. The arrays do not overlap. If `low` is not NULL, p is also
	 * written there as f32, f16 or bf16.
	 */
	void (*muon_momentum)(const struct zero_muon_args *args, float *m, const float *g,
			      float *out, size_t count);
	void (*muon_update)(const struct zero_muon_args *args, float *p, const float *update,
			    void *low, zero_dtype low_dtype, size_t count);
	/* codes[i] = the code of the value that is nearest to x[i] / absmax, which is written for
	   each block of ZERO_BLOCK elements, of which the last may be shorter. A block with a NaN
	   or an infinity becomes NaN, one of zeros and subnormals 0. x has no negative value where
	   the map has none. */
	void (*quantize)(const struct zero_dynamic_map *map, uint8_t *codes, float *absmax,
			 const float *x, size_t count);
	/* x[i] = absmax * the value of codes[i]. NaN results are 0x7fc00000. */
	void (*dequantize)(const struct zero_dynamic_map *map, float *x, const uint8_t *codes,
			   const float *absmax, size_t count);
	/* out[i] = element first + i of a uniform random sequence in [low, high); f32, f16, bf16 or
	   f64. Philox 4x32-10: element i uses word i % 4 of block i / 4, with key `seed` and
	   counter {block, stream}. It is calculated in f64 from the upper 24 bits of the word (for
	   f64 from all 32) and rounded to the nearest value of dtype in [low, high), or to the one
	   nearest to low if there is none in it. */
	void (*fill_uniform)(zero_dtype dtype, void *out, size_t first, size_t count, double low,
			     double high, uint64_t seed, uint64_t stream);
	/* What fill_uniform calculates before its loop, for a device's kernel: the first and last
	   value of the type in [low, high). Returns how many low bits of a word are not used. */
	int (*uniform_ends)(zero_dtype dtype, double low, double high, double *first, double *last);
	/* The same with a normal distribution, by Box and Muller: words 0 and 1 of a block make its
	   elements 0 and 1, words 2 and 3 the others. Calculated in f64 with the log, sine and
	   cosine of philox.h, then rounded to f32 and from there to f16 and bf16. No value is
	   more than 6.8 standard deviations from the mean. */
	void (*fill_normal)(zero_dtype dtype, void *out, size_t first, size_t count, double mean,
			    double stddev, uint64_t seed, uint64_t stream);

	/* The same in each table: what is below, for those who are not linked with it. */
	void (*fill_constant)(zero_dtype dtype, void *out, size_t count, double value);
	bool (*convertible)(zero_dtype to, zero_dtype from);
	bool (*convert)(const struct zero_kernels *kernels, zero_dtype to, void *out,
			zero_dtype from, const void *in, size_t count, size_t *bad);
	void (*transpose)(void *out, size_t out_stride, const void *in, size_t in_stride,
			  size_t rows, size_t columns, size_t element_size);
	const struct zero_dynamic_map *(*dynamic_map)(bool is_signed);
};

/* Those that are compiled for each instruction set; zero_kernels_avx2 has their forms for AVX2. */
#define ZERO_ISA_KERNELS(X) \
	X(cast)             \
	X(sum)              \
	X(norm2)            \
	X(adamw)            \
	X(muon_momentum)    \
	X(muon_update)      \
	X(quantize)         \
	X(dequantize)       \
	X(fill_uniform)     \
	X(uniform_ends)     \
	X(fill_normal)

/* The table that every build and machine has. */
extern const struct zero_kernels zero_kernels_scalar;

/* The best table for "auto", or that of the named set; NULL if this build or machine lacks it. */
const struct zero_kernels *zero_kernels_choose(const char *isa);
/* The name of the i-th best set that this machine supports; NULL if there are fewer. */
const char *zero_kernels_isa(size_t i);
/*
 * out[i] = value, of any storage type, converted to the nearest value of the type. Integers
 * saturate at the type's limits, a NaN becomes 0, and a bool is value != 0.
 */
void zero_fill_constant(zero_dtype dtype, void *out, size_t count, double value);

/* Whether zero_convert knows the pair: both of f32, f16, bf16, f64 and f8, or both of i64, i32, u8
   and bool. */
bool zero_convertible(zero_dtype to, zero_dtype from);
/* Between f32 and a type of f8, rounded as zero_load says. */
void zero_f8_widen(zero_dtype from, float *out, const uint8_t *in, size_t count);
void zero_f8_narrow(zero_dtype to, uint8_t *out, const float *in, size_t count);
/*
 * out[i] = in[i] for a convertible pair; equal types are copied bit by bit. Floating values are
 * rounded once, as by cast. Integers must fit exactly, and into a bool only 0 and 1 do: else it
 * returns false, with the index of the first that does not fit in *bad and those before it
 * converted. out and in are aligned to their elements and do not overlap.
 */
bool zero_convert(const struct zero_kernels *kernels, zero_dtype to, void *out, zero_dtype from,
		  const void *in, size_t count, size_t *bad);
/*
 * out[c][r] = in[r][c] for r < rows and c < columns, rows of `out` (in) out_stride (in_stride)
 * elements apart. element_size is 1, 2, 4 or 8; nothing need be aligned, and they do not overlap.
 */
void zero_transpose(void *out, size_t out_stride, const void *in, size_t in_stride, size_t rows,
		    size_t columns, size_t element_size);

/* ---- on a device ----------------------------------------------------------------------------- */

/*
 * The same kernels on a device. adamw.cu does what is said above of adamw.c, with the same bits;
 * only norm2 adds in another order. A kernel takes one struct by value, so its name and these bytes
 * are enough to launch it. The library does so by the CUDA driver.
 *
 * Launch them with one dimension of blocks, of ZERO_DEVICE_THREADS threads each. Loops are
 * grid-stride, so any number of blocks gives the same values. Pointers are aligned to their
 * elements; counts may be 0 and may exceed 2^32.
 */
#ifdef __CUDACC__
#define ZERO_DEVICE_TOO __host__ __device__
#else
#define ZERO_DEVICE_TOO
#endif

/* All kernels as a fat binary for cuModuleLoadData, with code for several generations of GPUs. */
extern const unsigned char zero_device_image[];

/*
 * The kernels that libzero launches by number: ZERO_K_CAST is zero_device_cast. Then how many
 * elements an item of its work has, and the place of their number in its arguments; with 0 it has
 * as many blocks as the caller says, or one. See zero_launch in lib/backend/cuda/gpu.h.
 */
#define ZERO_DEVICE_KERNELS(X)                                                       \
	X(CAST, cast, 4, offsetof(struct zero_device_cast, count))                   \
	X(SUM, sum, 4, offsetof(struct zero_device_sum, count))                      \
	X(ADAMW, adamw, 4, offsetof(struct zero_device_adamw, count))                \
	X(ADAMW_8BIT, adamw_8bit, 1, offsetof(struct zero_device_adamw, count))      \
	X(NORM2, norm2, 0, 0)                                                        \
	X(NORM2_FOLD, norm2_fold, 0, 0)                                              \
	X(STEP_RULE, step_rule, 0, 0)                                                \
	X(GROUP_RULE, group_rule, 1, offsetof(struct zero_group_rule, count))        \
	X(FILL, fill, 4, offsetof(struct zero_device_fill, count))                   \
	X(UNIFORM, uniform, 4, offsetof(struct zero_device_random, count))           \
	X(NORMAL, normal, 4, offsetof(struct zero_device_random, count))             \
	X(COPY_MANY, copy_many, 0, 0)                                                \
	X(PACK, pack, 0, 0)                                                          \
	X(MUON_MOMENTUM, muon_momentum, 4, offsetof(struct zero_device_muon, count)) \
	X(MUON_UPDATE, muon_update, 4, offsetof(struct zero_device_muon, count))     \
	X(NORMALISE, normalise, 1, offsetof(struct zero_device_normalise, count))

#define ZERO_NUMBER(number, ...) ZERO_K_##number,
enum zero_kernel { ZERO_DEVICE_KERNELS(ZERO_NUMBER) ZERO_KERNELS };
#undef ZERO_NUMBER

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
 * zero_device_sum: out = in[0] + ... + in[n-1], added from left to right whatever n is. in[own_at]
 * is `own`, and the other summands are the rows of `others`; own_at = n: all are. With `first` the
 * sum is first + in[0] + ... instead. out may be `first`, and `own` if that is f32. n >= 1.
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

/* zero_device_adamw, and zero_device_adamw_8bit, which needs a block for each ZERO_BLOCK elements.
   With `state`, scale and corrections are read from there, and nothing is changed if the step is
   skipped. */
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

/* zero_device_muon_momentum, which changes the momentum by the gradient `from` and writes `out`,
   and zero_device_muon_update, which changes values by the step `from`. Nothing is changed if the
   step is skipped. */
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

/* zero_device_step_rule takes a struct zero_step_rule, and one block; zero_device_group_rule takes
   a struct zero_group_rule, and a thread for each group; see step_rule.h. */

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
 * (seed, stream). For uniform, first_value, last_value and cut are those of uniform_ends.
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

/*
 * zero_device_pack: `count` blocks of `bytes`, one after the other in `out`; the k-th is what lies
 * order[k] times `stride` bytes behind `in`, or k times if order is NULL. `order` is memory of the
 * device. Any alignment, without overlap.
 */
struct zero_device_pack {
	void *out;
	const void *in;
	const int *order;
	size_t bytes, stride, count;
};

/* Tiles of a block: with as many blocks of threads as all blocks have, each takes one. */
static ZERO_DEVICE_TOO inline size_t zero_device_pack_tiles(size_t bytes)
{
	return bytes / ZERO_COPY_TILE + (bytes % ZERO_COPY_TILE != 0);
}

#endif
