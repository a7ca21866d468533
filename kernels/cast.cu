/* SPDX-License-Identifier: Apache-2.0 */
/* Between f32, f16 and bf16. Between the 16-bit types it goes by way of f32, which is exact. */
#include "device.cuh"

enum { CAST_UNROLL = 4 };

template <zero_dtype to, zero_dtype from> struct cast_body {
	void *out;
	const void *in;

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
		float x[U][N];

#pragma unroll
		for (int u = 0; u < U; u++)
			load_as<from>(x[u], in, i + u * STRIDE * N);
#pragma unroll
		for (int u = 0; u < U; u++) {
#pragma unroll
			for (int j = 0; j < N && to == ZERO_F32; j++)
				x[u][j] =
					quiet(x[u][j]); /* stores of 16 bits do it by themselves */
			store_as<to>(out, i + u * STRIDE * N, x[u]);
		}
	}

	static ZERO_MEMBER float quiet(float x)
	{
		return x != x ? __uint_as_float(__float_as_uint(x) | 0x400000) : x;
	}
};

/* Equal types: copies the bits. */
template <class T> struct cast_copy {
	T *out;
	const T *in;

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
		if constexpr (N == 1) {
#pragma unroll
			for (int u = 0; u < U; u++)
				__stcs(out + i + u * STRIDE, __ldcs(in + i + u * STRIDE));
		} else {
			uint4 x[U];

#pragma unroll
			for (int u = 0; u < U; u++)
				x[u] = __ldcs((const uint4 *)(in + i + u * STRIDE * N));
#pragma unroll
			for (int u = 0; u < U; u++)
				__stcs((uint4 *)(out + i + u * STRIDE * N), x[u]);
		}
	}
};

template <class T> ZERO_INLINE void cast_same(const zero_device_cast &args)
{
	constexpr int group = 16 / sizeof(T);
	const unsigned int past = past_boundary<group>(args.out, sizeof(T));
	cast_copy<T> body = {(T *)args.out, (const T *)args.in};

	sweep<group, CAST_UNROLL>(
		body, args.count,
		past_boundary<group>(args.in, sizeof(T)) == past ? past : (unsigned int)group);
}

template <zero_dtype to, zero_dtype from> ZERO_INLINE void cast_as(const zero_device_cast &args)
{
	const size_t to_size = to == ZERO_F32 ? 4 : 2, from_size = from == ZERO_F32 ? 4 : 2;
	const unsigned int past = past_boundary<4>(args.out, to_size);
	cast_body<to, from> body = {args.out, args.in};

	sweep<4, CAST_UNROLL>(body, args.count,
			      past_boundary<4>(args.in, from_size) == past ? past : 4);
}

ZERO_INLINE void cast_equal(const zero_device_cast &args)
{
	switch (args.to) {
	case ZERO_F64:
	case ZERO_I64:
		cast_same<uint64_t>(args);
		break;
	case ZERO_F32:
	case ZERO_I32:
		cast_same<uint32_t>(args);
		break;
	case ZERO_F16:
	case ZERO_BF16:
		cast_same<uint16_t>(args);
		break;
	case ZERO_U8:
	case ZERO_BOOL:
	case ZERO_F8_E4M3:
	case ZERO_F8_E5M2:
		cast_same<uint8_t>(args);
		break;
	default:
		break;
	}
}

ZERO_KERNEL zero_device_cast(const __grid_constant__ struct zero_device_cast args)
{
	if (args.to == args.from)
		cast_equal(args);
	else if (args.to == ZERO_BF16 && args.from == ZERO_F32)
		cast_as<ZERO_BF16, ZERO_F32>(args);
	else if (args.to == ZERO_F16 && args.from == ZERO_F32)
		cast_as<ZERO_F16, ZERO_F32>(args);
	else if (args.to == ZERO_F32 && args.from == ZERO_BF16)
		cast_as<ZERO_F32, ZERO_BF16>(args);
	else if (args.to == ZERO_F32 && args.from == ZERO_F16)
		cast_as<ZERO_F32, ZERO_F16>(args);
	else if (args.to == ZERO_F16 && args.from == ZERO_BF16)
		cast_as<ZERO_F16, ZERO_BF16>(args);
	else if (args.to == ZERO_BF16 && args.from == ZERO_F16)
		cast_as<ZERO_BF16, ZERO_F16>(args);
}
