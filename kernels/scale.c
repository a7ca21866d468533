/* SPDX-License-Identifier: Apache-2.0 */
#include "vec.h"

enum { AHEAD = 1024 }; /* bytes */

void ZERO_NAME(scale)(float *x, size_t count, float factor)
{
	const size_t whole = count - count % VEC;
	const vec by = vec_set(factor);
	float rest[VEC] = {0};

	for (size_t i = 0; i < whole; i += VEC) {
		vec_prefetch(x + i, AHEAD);
		vec_store(x + i, vec_canon(vec_load(x + i) * by));
	}
	if (whole < count) {
		memcpy(rest, x + whole, (count - whole) * sizeof(float));
		vec_store(rest, vec_canon(vec_load(rest) * by));
		memcpy(x + whole, rest, (count - whole) * sizeof(float));
	}
}
