/* SPDX-License-Identifier: Apache-2.0 */
/* The iterations that orthogonalise a matrix, over the gemm of a backend. */
#ifndef ZERO_NEWTON_SCHULZ_H
#define ZERO_NEWTON_SCHULZ_H

#include "backend.h"

/* All matrices are f32, stored row by row without gaps. */
struct zero_gemm_ops {
	/* c[m][n] = alpha * a b + beta * c, where a is [m][k], or [k][m] if `transpose_a`, and
	   likewise b. c is neither a nor b. */
	void (*gemm)(void *context, bool transpose_a, bool transpose_b, size_t m, size_t n,
		     size_t k, float alpha, const float *a, const float *b, float beta, float *c);
	void (*copy)(void *context, float *to, const float *from, size_t count);
	/* x /= max(|x|, eps), with the Frobenius norm. */
	void (*normalise)(void *context, float *x, size_t count, float eps);
};

/* See orthogonalise in backend.h. */
void zero_newton_schulz(const struct zero_gemm_ops *ops, void *context,
			const struct zero_newton_schulz *rule, float *x, size_t rows,
			size_t columns, float *scratch);

#endif
