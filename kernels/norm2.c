/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of squares in f64, in 16 lanes for every instruction set: see kernels.h. */
#include "simd.h"

enum {
	LANES = 16,
	AHEAD = 1024, /* prefetch distance in bytes */
};

static inline void add_squares(vecd lane[LANES / VECD], const float *x)
{
	for (size_t k = 0; k < LANES / VECD; k++) {
		const vecd v = vecd_load(x + k * VECD);

		lane[k] = vecd_fma(v, v, lane[k]);
	}
}

double ZERO_NAME(norm2)(const float *x, size_t count)
{
	const size_t whole = count - count % LANES;
	float rest[LANES] = {0};
	vecd lane[LANES / VECD] = {0};
	double sum[LANES];

	for (size_t i = 0; i < whole; i += LANES) {
		vec_prefetch(x + i, AHEAD);
		add_squares(lane, x + i);
	}
	if (whole < count) {
		memcpy(rest, x + whole, (count - whole) * sizeof(float));
		add_squares(lane, rest);
	}
	for (size_t k = 0; k < LANES / VECD; k++)
		vecd_store(sum + k * VECD, lane[k]);
	for (size_t half = LANES / 2; half; half /= 2)
		for (size_t k = 0; k < half; k++)
			sum[k] += sum[k + half];
	return isnan(sum[0]) ? (double)NAN : sum[0];
}
