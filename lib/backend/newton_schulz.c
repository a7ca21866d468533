/* SPDX-License-Identifier: Apache-2.0 */
#include "newton_schulz.h"

void zero_newton_schulz(const struct zero_gemm_ops *ops, void *context,
			const struct zero_newton_schulz *rule, float *x, size_t rows,
			size_t columns, float *scratch)
{
	bool tall = rows > columns;
	size_t s = tall ? columns : rows, l = tall ? rows : columns, count = rows * columns;
	float *now = x, *next = scratch, *gram = scratch + count, *sum = gram + s * s;

	ops->normalise(context, x, count, rule->eps);
	for (int i = 0; i < rule->steps; i++) {
		float *last = now;

		ops->gemm(context, tall, !tall, s, s, l, 1, now, now, 0, gram);
		ops->copy(context, sum, gram, s * s);
		ops->gemm(context, false, false, s, s, s, rule->c, gram, gram, rule->b, sum);
		ops->copy(context, next, now, count);
		if (tall)
			ops->gemm(context, false, false, l, s, s, 1, now, sum, rule->a, next);
		else
			ops->gemm(context, false, false, s, l, s, 1, sum, now, rule->a, next);
		now = next;
		next = last;
	}
	if (now != x)
		ops->copy(context, x, now, count);
}
