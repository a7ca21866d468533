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
	/* codes[i] = the code of the value that is nearest to x[i] / absmax, which is written for each
	   block of ZERO_BLOCK elements, of which the last may be shorter. A block with a NaN or an
	   infinity becomes NaN, one of zeros and subnormals 0. x has no negative value where the map
	   has none. */
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
	   cosine of log_sin_cos.h, then rounded to f32 and from there to f16 and bf16. No value is
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

#endif
