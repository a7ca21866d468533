/* SPDX-License-Identifier: Apache-2.0 */
#include "vec.cuh"

struct finite_body {
	const float *x;
	uint32_t largest; /* without sign, the bits of floats are in their order, NaN last */

	template <int N, int U> ZERO_MEMBER void step(size_t i)
	{
		float v[U][N];

#pragma unroll
		for (int u = 0; u < U; u++)
			load_f32(v[u], x, i + u * STRIDE * N);
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int j = 0; j < N; j++)
				largest = max(largest, __float_as_uint(v[u][j]) & 0x7fffffff);
	}
};

ZERO_KERNEL zero_device_finite(const __grid_constant__ struct zero_device_finite args)
{
	finite_body body = {args.x, 0};

	sweep<4, 4>(body, args.count, past_boundary<4>(args.x, sizeof(float)));
	if (body.largest >= 0x7f800000)
		*args.bad = 1; /* whoever finds one: all write the same */
}
