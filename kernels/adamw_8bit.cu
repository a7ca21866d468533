/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW with 8-bit moments (Dettmers et al., arXiv 2110.02861), operation for operation as in
 * quantize.c and adamw.c. A block of threads steps a block of elements, one each: what a thread
 * reads and writes lies beside what its neighbours do.
 */
#include "device.cuh"

static_assert((int)ZERO_BLOCK == (int)ZERO_DEVICE_THREADS, "a thread for each element");

ZERO_INLINE float dequantize(const struct zero_dynamic_map &map, bool is_signed, uint32_t code,
			     float absmax)
{
	const float c = (float)((int)code - (is_signed ? 127 : 0));
	const uint32_t sign = __float_as_uint(c) & 0x80000000;
	const float j = fmaf(__uint_as_float(__float_as_uint(c) ^ sign), is_signed ? 2 : 1, 1);
	const uint32_t decade = __float_as_uint(j) >> 23 & 7;
	const float value = fmaf(j, map.value_by[decade], map.value_at[decade]);

	return __uint_as_float(__float_as_uint(value) | sign) * absmax;
}

/* `top` has the bits of the block's largest magnitude. */
ZERO_INLINE uint32_t quantize(const struct zero_dynamic_map &map, bool is_signed, float x,
			      uint32_t top)
{
	if (top < 0x00800000 || top >= 0x7f800000)
		return is_signed ? 127 : 0;
	const float q = x * __fdiv_rn(1, __uint_as_float(top));
	const uint32_t bits = __float_as_uint(q) & 0x7fffffff;
	const float a = __uint_as_float(bits);
	const float about = fmaf((float)(int)bits, 0x1.344136p-25F, 8 - 0.45F - 38.23081F);
	int decade = (int)(about > 0 ? about : 0);

	decade += a >= map.bound[decade];
	const float place = fmaf(a, map.code_by[decade], map.code_at[decade]);
	const float most = map.code_most[decade];
	int code = (int)(place < most ? place : most) + (a >= map.one);

	if (is_signed)
		code = __float_as_uint(q) >> 31 ? 127 - (code < 127 ? code : 127) : 127 + code;
	return (uint32_t)code;
}

ZERO_INLINE float absmax_of(uint32_t top)
{
	if (top < 0x00800000)
		return 0;
	return __uint_as_float(top >= 0x7f800000 ? 0x7fc00000 : top);
}

ZERO_INLINE uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The largest of the block's m and v; all threads get them. */
ZERO_INLINE void block_tops(uint32_t &m, uint32_t &v)
{
	__shared__ uint32_t of_warp[2][ZERO_DEVICE_THREADS / 32];

	for (int far = 16; far; far /= 2) {
		m = larger(m, __shfl_xor_sync(0xffffffff, m, far));
		v = larger(v, __shfl_xor_sync(0xffffffff, v, far));
	}
	__syncthreads(); /* the last ones have been read */
	if (threadIdx.x % 32 == 0) {
		of_warp[0][threadIdx.x / 32] = m;
		of_warp[1][threadIdx.x / 32] = v;
	}
	__syncthreads();
	for (int k = 0; k < ZERO_DEVICE_THREADS / 32; k++) {
		m = larger(m, of_warp[0][k]);
		v = larger(v, of_warp[1][k]);
	}
}

ZERO_INLINE void store_low(const struct zero_device_adamw &args, size_t i, float p)
{
	const float x[1] = {p};

	if (!args.low)
		return;
	if (args.low_dtype == ZERO_BF16)
		store_as<ZERO_BF16>(args.low, i, x);
	else if (args.low_dtype == ZERO_F16)
		store_as<ZERO_F16>(args.low, i, x);
	else
		store_as<ZERO_F32>(args.low, i, x);
}

ZERO_KERNEL zero_device_adamw_8bit(const __grid_constant__ struct zero_device_adamw args)
{
	/* threads look up different entries at a time */
	__shared__ struct zero_dynamic_map maps[2];
	const zero_moments &moments = args.moments;
	adamw_body<ZERO_DTYPE_PARAM> body;

	if (args.state && args.state->skipped)
		return;
	if (threadIdx.x < 2)
		maps[threadIdx.x] = args.maps[threadIdx.x];
	__syncthreads();
	body.c = adamw_constants_of(args.state ? zero_adamw_args_of_step(&args.args, args.state)
					       : args.args);
	for (size_t b = blockIdx.x; b * ZERO_BLOCK < args.count; b += gridDim.x) {
		const size_t i = b * ZERO_BLOCK + threadIdx.x;
		float p = 0, m = 0, v = 0;

		if (i < args.count) {
			p = __ldcs(args.p + i);
			m = dequantize(maps[true], true, moments.m_codes[i],
				       moments.m_absmax[b]);
			v = dequantize(maps[false], false, moments.v_codes[i],
				       moments.v_absmax[b]);
			body.element(p, m, v, __ldcs(args.g + i));
			__stcs(args.p + i, p);
			store_low(args, i, p);
		}
		uint32_t of_m = __float_as_uint(m) & 0x7fffffff;
		uint32_t of_v = __float_as_uint(v) & 0x7fffffff;

		/* After this all threads have read what thread 0 writes. */
		block_tops(of_m, of_v);
		if (i < args.count) {
			moments.m_codes[i] = (uint8_t)quantize(maps[true], true, m, of_m);
			moments.v_codes[i] = (uint8_t)quantize(maps[false], false, v, of_v);
		}
		if (threadIdx.x == 0) {
			moments.m_absmax[b] = absmax_of(of_m);
			moments.v_absmax[b] = absmax_of(of_v);
		}
	}
}
