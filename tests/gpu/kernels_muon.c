/* SPDX-License-Identifier: Apache-2.0 */
/* Muon's kernels on a device: the bits of the host's. */
#include "kernels.h"

static struct array state_of(bool skipped, float scale)
{
	struct zero_step_state state = {.scale = scale, .skipped = skipped};

	return array_new(&state, sizeof(state), 0);
}

static void same(struct array *array, const void *want, size_t size, size_t count, const char *what)
{
	char *got = array_take(array, what);

	for (size_t i = 0; i < count; i++)
		expect(!memcmp(got + i * size, (const char *)want + i * size, size),
		       "%s: element %zu of %zu", what, i, count);
	free(got);
}

static void one_momentum(size_t count, size_t shift, bool skipped)
{
	struct zero_muon_args args = {.momentum = unit(), .scale = unit(), .nesterov = draw() % 2};
	float *m = memory(count * 4), *g = memory(count * 4), *out = memory(count * 4);
	struct array state = state_of(skipped, args.scale), on_device[3];
	struct zero_device_muon device = {.args = args, .count = count};

	random_values(ZERO_F32, m, count);
	random_values(ZERO_F32, g, count);
	random_values(ZERO_F32, out, count);
	on_device[0] = array_new(m, count * 4, shift * 4);
	on_device[1] = array_new(g, count * 4, some_shift(shift) * 4);
	on_device[2] = array_new(out, count * 4, some_shift(shift) * 4);
	device.state = (const struct zero_step_state *)(const void *)state.data;
	device.changed = (float *)(void *)on_device[0].data;
	device.from = (const float *)(const void *)on_device[1].data;
	device.out = on_device[2].data;
	launch("zero_device_muon_momentum", &device, count, shift == 3 ? 1 : 0);
	if (!skipped)
		host->muon_momentum(&args, m, g, out, count);
	same(&on_device[0], m, 4, count, "muon, momentum");
	same(&on_device[2], out, 4, count, "muon, what is orthogonalised");
	array_free(&on_device[1]);
	array_free(&state);
	free(m);
	free(g);
	free(out);
}

static void one_update(zero_dtype low_dtype, size_t count, size_t shift, bool skipped)
{
	struct zero_muon_args args = {.lr = unit(), .decay = unit() * 1e-3F};
	size_t low_size = zero_dtype_size(low_dtype);
	float *p = memory(count * 4), *update = memory(count * 4);
	char *low = memory(count * 4);
	struct array state = state_of(skipped, 1), on_device[3];
	struct zero_device_muon device = {.args = args, .count = count, .low_dtype = low_dtype};

	random_values(ZERO_F32, p, count);
	random_values(ZERO_F32, update, count);
	random_values(ZERO_F32, low, count);
	on_device[0] = array_new(p, count * 4, shift * 4);
	on_device[1] = array_new(update, count * 4, some_shift(shift) * 4);
	on_device[2] = array_new(low, count * low_size, some_shift(shift) * low_size);
	device.state = (const struct zero_step_state *)(const void *)state.data;
	device.changed = (float *)(void *)on_device[0].data;
	device.from = (const float *)(const void *)on_device[1].data;
	device.out = low_size ? on_device[2].data : NULL;
	launch("zero_device_muon_update", &device, count, shift == 3 ? 1 : 0);
	if (!skipped)
		host->muon_update(&args, p, update, low_size ? low : NULL, low_dtype, count);
	same(&on_device[0], p, 4, count, "muon, values");
	same(&on_device[2], low, low_size, low_size ? count : 0, "muon, values of 16 bits");
	array_free(&on_device[1]);
	array_free(&state);
	free(p);
	free(update);
	free(low);
}

static void one_division(size_t count, size_t shift)
{
	double sum = draw() % 4 ? exp((double)unit() * 20 - 10) : 0, norm = sqrt(sum);
	float eps = 1e-3F, *x = memory(count * 4), factor;
	struct array on_device, of_sum = array_new(&sum, sizeof(sum), 0);
	struct zero_device_normalise device = {
		.count = count, .sum = (const double *)(const void *)of_sum.data, .eps = eps};

	random_values(ZERO_F32, x, count);
	on_device = array_new(x, count * 4, shift * 4);
	device.x = (float *)(void *)on_device.data;
	launch("zero_device_normalise", &device, count, shift == 3 ? 1 : 0);
	factor = (float)(1 / (norm > (double)eps ? norm : (double)eps));
	for (size_t i = 0; i < count; i++)
		x[i] = isnan(x[i]) ? x[i] : x[i] * factor;
	{
		float *got = (float *)array_take(&on_device, "normalise");

		for (size_t i = 0; i < count; i++)
			expect(isnan(x[i]) ? isnan(got[i]) : !memcmp(got + i, x + i, 4),
			       "normalise: %.9g at %zu, not %.9g", (double)got[i], i, (double)x[i]);
		free(got);
	}
	array_free(&of_sum);
	free(x);
}

void check_muon(void)
{
	static const zero_dtype lows[] = {ZERO_DTYPE_PARAM, ZERO_F32, ZERO_F16, ZERO_BF16};

	for (size_t c = 0; c < COUNTS && counts[c] <= longest; c++)
		for (size_t s = 0; s < SHIFTS; s++) {
			one_momentum(counts[c], shifts[s], draw() % 8 == 0);
			one_division(counts[c], shifts[s]);
			for (size_t low = 0; low < 4; low++)
				one_update(lows[low], counts[c], shifts[s], draw() % 8 == 0);
		}
}
