/* SPDX-License-Identifier: Apache-2.0 */
/* What a step of Muon does to a rank's own elements, operation for operation as in muon.c; and the
   division of a matrix by its norm, which the device has computed. */
#include "device.cuh"

struct muon_momentum_body {
	float scale, keep, rest;
	bool nesterov;
	float *m, *out;
	const float *g;

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
		static_assert(U == 1, "enough loads as it is");
		float mi[N], gi[N];

		load_f32(mi, m, i);
		load_f32(gi, g, i);
#pragma unroll
		for (int j = 0; j < N; j++) {
			gi[j] = rest * (gi[j] * scale);
			mi[j] = canon(fmaf(keep, mi[j], gi[j]));
			gi[j] = nesterov ? canon(fmaf(keep, mi[j], gi[j])) : mi[j];
		}
		store_f32(m, i, mi);
		store_f32(out, i, gi);
	}
};

ZERO_KERNEL zero_device_muon_momentum(const __grid_constant__ struct zero_device_muon args)
{
	unsigned int past = past_boundary<4>(args.changed, sizeof(float));
	muon_momentum_body body;

	if (args.state->skipped)
		return;
	body.scale = args.state->scale;
	body.keep = args.args.momentum;
	body.rest = 1.0f - args.args.momentum;
	body.nesterov = args.args.nesterov;
	body.m = args.changed;
	body.g = args.from;
	body.out = (float *)args.out;
	if (past_boundary<4>(args.from, sizeof(float)) != past ||
	    past_boundary<4>(args.out, sizeof(float)) != past)
		past = 4;
	sweep<4, 1>(body, args.count, past);
}

/* low: ZERO_DTYPE_PARAM if there is none. */
template <zero_dtype low> struct muon_update_body {
	float rate, decay;
	float *p;
	const float *update;
	void *copy;

	template <int N, int U> ZERO_MEMBER void step(size_t i) const
	{
		static_assert(U == 1, "enough loads as it is");
		float pi[N], ui[N];

		load_f32(pi, p, i);
		load_f32(ui, update, i);
#pragma unroll
		for (int j = 0; j < N; j++)
			pi[j] = canon(pi[j] - fmaf(decay, pi[j], rate * ui[j]));
		store_f32(p, i, pi);
		if constexpr (low != ZERO_DTYPE_PARAM)
			store_as<low>(copy, i, pi);
	}
};

template <zero_dtype low> ZERO_INLINE void muon_update_as(const zero_device_muon &args)
{
	const size_t low_size = low == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
	unsigned int past = past_boundary<4>(args.changed, sizeof(float));
	muon_update_body<low> body;

	body.rate = args.args.lr;
	body.decay = args.args.decay;
	body.p = args.changed;
	body.update = args.from;
	body.copy = args.out;
	if (past_boundary<4>(args.from, sizeof(float)) != past ||
	    (low != ZERO_DTYPE_PARAM && past_boundary<4>(args.out, low_size) != past))
		past = 4;
	sweep<4, 1>(body, args.count, past);
}

ZERO_KERNEL zero_device_muon_update(const __grid_constant__ struct zero_device_muon args)
{
	if (args.state->skipped)
		return;
	if (!args.out)
		muon_update_as<ZERO_DTYPE_PARAM>(args);
	else if (args.low_dtype == ZERO_BF16)
		muon_update_as<ZERO_BF16>(args);
	else if (args.low_dtype == ZERO_F16)
		muon_update_as<ZERO_F16>(args);
	else
		muon_update_as<ZERO_F32>(args);
}

ZERO_KERNEL zero_device_normalise(const __grid_constant__ struct zero_device_normalise args)
{
	const double norm = sqrt(*args.sum), least = (double)args.eps;
	const float factor = (float)(1 / (norm > least ? norm : least));
	const size_t far = (size_t)gridDim.x * blockDim.x;

	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < args.count; i += far)
		args.x[i] *= factor;
}
