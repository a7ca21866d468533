/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels on a rank's own data. Each is one file (adamw.c) that is compiled once for each
 * instruction set; the table for the machine is chosen once. All instruction sets give the same
 * bits: operations are IEEE, elementwise or with a fixed number of lanes, fma is explicit.
 */
#ifndef ZERO_KERNELS_H
#define ZERO_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"

struct zero_kernels {
	const char *isa; /* "avx512", "avx2", "scalar" */

	/* Between f32, f16 and bf16, or equal types (a copy of any type). To nearest even; a NaN
	   stays one of its sign and becomes quiet, subnormals and infinities are kept, and beyond
	   f16's range is infinity. out and in do not overlap, unless the types are equal. */
	void (*cast)(zero_dtype to, void *out, zero_dtype from, const void *in, size_t count);
	/* out[i] = in[0][i] + in[1][i] + ... + in[n-1][i], folded from the left; with `accumulate`
	   that sum is added to out[i]. The summands are f32, f16 or bf16, each widened to f32
	   before it is added. out may be one of in if they are f32, else overlaps none. n >= 1. A
	   NaN comes out as 0x7fc00000. */
	void (*sum)(float *out, zero_dtype from, const void *const *in, int n, size_t count,
		    bool accumulate);
	/* Sum of squares in f64 over 16 lanes (element i in lane i % 16), folded pairwise at the
	   end (lane k + lane k+8, then 4, 2, 1): a function of values and count alone. */
	double (*norm2)(const float *x, size_t count);
	/* AdamW; see struct zero_adamw_args:
	     g' = g * scale
	     m = beta1 * m + (1-beta1) * g';  v = beta2 * v + (1-beta2) * g'^2
	     p -= decay * p + lr * (m*correction1) / (sqrt(v*correction2) + eps)
	   The bracket of the last line is rounded once before it meets p: in f32, 1 - decay would
	   lose a decay of 1e-7. A NaN comes out as 0x7fc00000. The arrays do not overlap; low is
	   NULL, or of low_dtype f32, f16 or bf16. */
	void (*adamw)(const struct zero_adamw_args *args, float *p, float *m, float *v,
		      const float *g, void *low, zero_dtype low_dtype, size_t count);
	/* Philox 4x32-10; element i is made from word i % 4 of block i / 4 with key `seed` and
	   counter {block, stream}. f32, f16, bf16, f64. Calculated in f64 from the upper 24 bits of
	   the word (f64: from all 32, so it has no more than 2^32 values) and rounded to the
	   nearest value of dtype that is in [low, high); if there is none, it is the one next to
	   low. */
	void (*fill_uniform)(zero_dtype dtype, void *out, size_t first, size_t count, double low,
			     double high, uint64_t seed, uint64_t stream);
	/* For a device, which has the same arithmetic but for this: the type's own values at both
	   ends of [low, high), or the one next to low if there are none, and how many bits of a
	   word are not used. */
	int (*uniform_ends)(zero_dtype dtype, double low, double high, double *first, double *last);
	/* Box-Muller: words 0 and 1 of a block make its elements 0 and 1, words 2 and 3 the others.
	   In f64 with the kernel's own log, sin and cos, to about 1e-14, then to f32 and from there
	   to f16 and bf16. None is more than 6.8 standard deviations from the mean. */
	void (*fill_normal)(zero_dtype dtype, void *out, size_t first, size_t count, double mean,
			    double stddev, uint64_t seed, uint64_t stream);
};

/* The table that every build and machine has. */
extern const struct zero_kernels zero_kernels_scalar;

/* The table for "auto", or for the named set; NULL if this build or machine has it not. */
const struct zero_kernels *zero_kernels_choose(const char *isa);
/* Name i of the sets this machine runs, best first; NULL past the last. */
const char *zero_kernels_isa(size_t i);
/*
 * Any storage type: `value` repeated, converted to the nearest that the type has; integers end at
 * the type's limits and are 0 for NaN, a bool is value != 0.
 */
void zero_fill_constant(zero_dtype dtype, void *out, size_t count, double value);

/* Whether zero_convert knows the pair: both of f32, f16, bf16 and f64, or both of i64, i32, u8 and
   bool. */
bool zero_convertible(zero_dtype to, zero_dtype from);
/*
 * A convertible pair; equal types are a copy of the bits. Floats always succeed: rounded once to
 * nearest even, a NaN stays one of its sign and becomes quiet, subnormals and infinities are kept,
 * and beyond the range is infinity. Integers must fit exactly, into bool as 0 or 1: false if one
 * does not, with the first one's index in *bad and those before it converted. out and in are
 * aligned to their elements and do not overlap.
 */
bool zero_convert(const struct zero_kernels *kernels, zero_dtype to, void *out, zero_dtype from,
		  const void *in, size_t count, size_t *bad);
/*
 * out[c][r] = in[r][c] for r < rows and c < columns, rows of `out` (in) out_stride (in_stride)
 * elements apart. element_size is 1, 2, 4 or 8; nothing need be aligned, and they do not overlap.
 */
void zero_transpose(void *out, size_t out_stride, const void *in, size_t in_stride, size_t rows,
		    size_t columns, size_t element_size);

#endif
