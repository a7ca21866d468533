/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of many arrays in one pass, each element folded from the left in registers, whatever n is: a
 * device follows any number of streams. All of an element's summands are read before it is written,
 * by the one thread that does: out may be one of them.
 */
#include "device.cuh"

enum { SUM_UNROLL = 4 };

template <zero_dtype from> struct sum_body {
	const zero_device_sum &args;

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
		float s[U][N], x[U][N];

#pragma unroll
		for (int u = 0; u < U; u++)
			load_as<from>(s[u], args.in[0], i + u * STRIDE * N);
		for (int k = 1; k < args.n; k++) {
#pragma unroll
			for (int u = 0; u < U; u++)
				load_as<from>(x[u], args.in[k], i + u * STRIDE * N);
			add<N, U>(s, x);
		}
		if (args.accumulate) {
#pragma unroll
			for (int u = 0; u < U; u++)
				load_f32(x[u], args.out, i + u * STRIDE * N);
			add<N, U>(s, x);
		}
#pragma unroll
		for (int u = 0; u < U; u++) {
#pragma unroll
			for (int j = 0; j < N; j++)
				s[u][j] = canon(s[u][j]);
			store_f32(args.out, i + u * STRIDE * N, s[u]);
		}
	}

	template <int N, int U>
	static ZERO_MEMBER void add(float (&s)[U][N], const float (&x)[U][N])
	{
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int j = 0; j < N; j++)
				s[u][j] += x[u][j];
	}
};

template <zero_dtype from> ZERO_INLINE void sum_as(const zero_device_sum &args)
{
	const size_t size = from == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
	unsigned int past = past_boundary<4>(args.out, sizeof(float));
	sum_body<from> body = {args};

	for (int k = 0; k < args.n && past < 4; k++)
		if (past_boundary<4>(args.in[k], size) != past)
			past = 4;
	sweep<4, SUM_UNROLL>(body, args.count, past);
}

ZERO_KERNEL zero_device_sum(const __grid_constant__ struct zero_device_sum args)
{
	if (args.from == ZERO_F32)
		sum_as<ZERO_F32>(args);
	else if (args.from == ZERO_F16)
		sum_as<ZERO_F16>(args);
	else
		sum_as<ZERO_BF16>(args);
}
