/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

template <class T> struct fill_body {
	T *out, pattern;
	uint4 group; /* the pattern all over */

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
#pragma unroll
		for (int u = 0; u < U; u++) {
			if constexpr (N == 1)
				__stcs(out + i + u * STRIDE, pattern);
			else
				__stcs((uint4 *)(out + i + u * STRIDE * N), group);
		}
	}
};

template <class T> ZERO_INLINE void fill_as(const zero_device_fill &args)
{
	constexpr int group = 16 / sizeof(T);
	uint64_t p = (T)args.pattern;
	fill_body<T> body;

	for (unsigned int bits = 8 * sizeof(T); bits < 64; bits *= 2)
		p |= p << bits;
	body.out = (T *)args.out;
	body.pattern = (T)args.pattern;
	body.group = make_uint4((uint32_t)p, (uint32_t)(p >> 32), (uint32_t)p, (uint32_t)(p >> 32));
	sweep<group, 4>(body, args.count, past_boundary<group>(args.out, sizeof(T)));
}

ZERO_KERNEL zero_device_fill(const __grid_constant__ struct zero_device_fill args)
{
	if (args.size == 1)
		fill_as<uint8_t>(args);
	else if (args.size == 2)
		fill_as<uint16_t>(args);
	else if (args.size == 4)
		fill_as<uint32_t>(args);
	else
		fill_as<uint64_t>(args);
}
