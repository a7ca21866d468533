/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2), operation for operation as in
 * adamw.c. One thread does all of an element, so four loads of 16 bytes are under way in each
 * thread without unrolling.
 */
#include "backend/step_rule.h"
#include "device.cuh"

struct adamw_constants {
	float scale, beta1, beta2, rest1, rest2, root, eps, rate, decay;
};

ZERO_INLINE adamw_constants adamw_constants_of(const zero_adamw_args &args)
{
	adamw_constants c;

	c.scale = args.scale;
	c.beta1 = args.beta1;
	c.beta2 = args.beta2;
	c.rest1 = 1.0f - args.beta1;
	c.rest2 = 1.0f - args.beta2;
	c.root = __fsqrt_rn(args.correction2);
	c.eps = args.eps;
	c.rate = args.lr * args.correction1;
	c.decay = args.decay;
	return c;
}

/* low: ZERO_DTYPE_PARAM if there is none. */
template <zero_dtype low> struct adamw_body {
	adamw_constants c;
	float *p, *m, *v;
	const float *g;
	void *copy;

	ZERO_MEMBER void element(float &pj, float &mj, float &vj, float gj) const
	{
		gj = gj * c.scale;
		mj = fmaf(c.beta1, mj, c.rest1 * gj);
		vj = fmaf(c.beta2, vj, c.rest2 * gj * gj);

		const float root = fmaf(c.root, __fsqrt_rn(vj), c.eps);
		/* Decay and step are added first, so that p is rounded once. */
		const float by = fmaf(c.decay, pj, __fdiv_rn(c.rate * mj, root));

		pj = canon(pj - by);
		mj = canon(mj);
		vj = canon(vj);
	}

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
		static_assert(U == 1, "enough loads as it is");
		float pi[N], mi[N], vi[N], gi[N];

		load_f32(pi, p, i);
		load_f32(mi, m, i);
		load_f32(vi, v, i);
		load_f32(gi, g, i);
#pragma unroll
		for (int j = 0; j < N; j++)
			element(pi[j], mi[j], vi[j], gi[j]);
		store_f32(p, i, pi);
		store_f32(m, i, mi);
		store_f32(v, i, vi);
		if constexpr (low != ZERO_DTYPE_PARAM)
			store_as<low>(copy, i, pi);
	}
};

template <zero_dtype low> ZERO_INLINE void adamw_as(const zero_device_adamw &args)
{
	const size_t low_size = low == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
	unsigned int past = past_boundary<4>(args.p, sizeof(float));
	adamw_body<low> body;

	body.c = adamw_constants_of(args.state ? zero_adamw_args_of_step(&args.args, args.state)
					       : args.args);
	body.p = args.p;
	body.m = args.moments.m;
	body.v = args.moments.v;
	body.g = args.g;
	body.copy = args.low;
	if (past_boundary<4>(args.moments.m, sizeof(float)) != past ||
	    past_boundary<4>(args.moments.v, sizeof(float)) != past ||
	    past_boundary<4>(args.g, sizeof(float)) != past ||
	    (low != ZERO_DTYPE_PARAM && past_boundary<4>(args.low, low_size) != past))
		past = 4;
	sweep<4, 1>(body, args.count, past);
}

ZERO_KERNEL zero_device_adamw(const __grid_constant__ struct zero_device_adamw args)
{
	if (args.state && args.state->skipped)
		return;
	if (!args.low)
		adamw_as<ZERO_DTYPE_PARAM>(args);
	else if (args.low_dtype == ZERO_BF16)
		adamw_as<ZERO_BF16>(args);
	else if (args.low_dtype == ZERO_F16)
		adamw_as<ZERO_F16>(args);
	else
		adamw_as<ZERO_F32>(args);
}
