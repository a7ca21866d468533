/* SPDX-License-Identifier: Apache-2.0 */
#include "vec.cuh"

struct scale_body {
	float *x;
	float factor;

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
		float v[U][N];

#pragma unroll
		for (int u = 0; u < U; u++)
			load_f32(v[u], x, i + u * STRIDE * N);
#pragma unroll
		for (int u = 0; u < U; u++) {
#pragma unroll
			for (int j = 0; j < N; j++)
				v[u][j] = canon(v[u][j] * factor);
			store_f32(x, i + u * STRIDE * N, v[u]);
		}
	}
};

ZERO_KERNEL zero_device_scale(const __grid_constant__ struct zero_device_scale args)
{
	scale_body body = {args.x, args.factor};

	sweep<4, 4>(body, args.count, past_boundary<4>(args.x, sizeof(float)));
}
