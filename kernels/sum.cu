/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of many arrays in one pass, added from left to right in registers whatever n is. One
 * thread reads all summands of an element before it writes the sum, so out may be one of them. They
 * are rows of one array, so that any number of them fits in a kernel's arguments.
 */
#include "device.cuh"

enum { SUM_UNROLL = 4 };

template <zero_dtype from> struct sum_body {
	const zero_device_sum &args;

	ZERO_MEMBER const void *summand(int k) const
	{
		const size_t size = from == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
		const size_t row = (size_t)(k - (k > args.own_at));

		return k == args.own_at ? args.own
					: (const char *)args.others + row * args.count * size;
	}

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
		float s[U][N], x[U][N];

#pragma unroll
		for (int u = 0; u < U; u++)
			if (args.first)
				load_f32(s[u], args.first, i + u * STRIDE * N);
			else
				load_as<from>(s[u], summand(0), i + u * STRIDE * N);
		for (int k = args.first ? 0 : 1; k < args.n; k++) {
			const void *in = summand(k);

#pragma unroll
			for (int u = 0; u < U; u++)
				load_as<from>(x[u], in, i + u * STRIDE * N);
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
	const bool has_own = args.own_at < args.n;
	const int rows = args.n - has_own;
	unsigned int past = past_boundary<4>(args.out, sizeof(float));
	sum_body<from> body = {args};

	if ((args.first && past_boundary<4>(args.first, sizeof(float)) != past) ||
	    (has_own && past_boundary<4>(args.own, size) != past) ||
	    (rows > 0 && past_boundary<4>(args.others, size) != past) ||
	    (rows > 1 && args.count % 4))
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
