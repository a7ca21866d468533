/* SPDX-License-Identifier: Apache-2.0 */
/* Checks kernels bit for bit against the host's kernels, and against references in f64. */
#include "kernels.h"

static const zero_dtype floats[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

static void same_bits(const void *got, const void *want, size_t size, size_t count,
		      const char *what)
{
	for (size_t i = 0; i < count; i++)
		expect(!memcmp((const char *)got + i * size, (const char *)want + i * size, size),
		       "%s: element %zu of %zu differs from the host's", what, i, count);
}

/* ---- cast ------------------------------------------------------------------------------------ */

/* One more than there are values of 16 bits. */
enum { HALVES = 65537 };

static void one_cast(zero_dtype to, zero_dtype from, size_t count, size_t to_shift,
		     size_t from_shift, size_t blocks)
{
	size_t to_size = zero_dtype_size(to), from_size = zero_dtype_size(from), at;
	void *values = memory(count * from_size), *want = memory(count * to_size), *got;
	struct array in, out = array_new(NULL, count * to_size, to_shift * to_size);
	struct zero_device_cast args = {.out = out.data, .count = count, .to = to, .from = from};
	char what[64];

	snprintf(what, sizeof(what), "cast from %s to %s", zero_dtype_name(from),
		 zero_dtype_name(to));
	random_bits(from, values, count);
	/* all values of 16 bits, if the array is long enough */
	for (size_t i = 0; from_size == 2 && count > 65536 && i < 65536; i++)
		((uint16_t *)values)[i] = (uint16_t)i;
	in = array_new(values, count * from_size, from_shift * from_size);
	args.in = in.data;
	launch("zero_device_cast", &args, count, blocks);
	got = array_take(&out, what);
	host->cast(to, want, from, values, count);
	same_bits(got, want, to_size, count, what);
	ref_cast(to, want, from, values, count);
	at = ref_difference(to, got, want, count);
	expect(at == count, "%s: element %zu of %zu is not the nearest", what, at, count);
	array_free(&in);
	free(values);
	free(want);
	free(got);
}

/* To the same type it copies the bits. */
static void one_copy(zero_dtype dtype, size_t count, size_t shift)
{
	size_t size = zero_dtype_size(dtype);
	char *values = memory(count * size), *got;
	struct array in, out = array_new(NULL, count * size, shift * size);
	struct zero_device_cast args = {
		.out = out.data, .count = count, .to = dtype, .from = dtype};

	for (size_t i = 0; i < count * size; i++)
		values[i] = (char)draw();
	in = array_new(values, count * size, some_shift(shift) * size);
	args.in = in.data;
	launch("zero_device_cast", &args, count, 0);
	got = array_take(&out, "a copy");
	same_bits(got, values, size, count, "a copy");
	array_free(&in);
	free(values);
	free(got);
}

void check_cast(void)
{
	for (size_t c = 0; c < COUNTS; c++)
		for (size_t s = 0; s < SHIFTS; s++) {
			for (size_t t = 0; t < 9; t++)
				if (t / 3 != t % 3 &&
				    (counts[c] == HALVES ? s == 0 : counts[c] <= longest))
					one_cast(floats[t / 3], floats[t % 3], counts[c], shifts[s],
						 some_shift(shifts[s]), s == 3 ? 1 : 0);
			for (zero_dtype t = ZERO_F32; t <= ZERO_F8_E5M2 && counts[c] <= longest;
			     t++)
				one_copy(t, counts[c], shifts[s]);
		}
}

/* ---- sum ------------------------------------------------------------------------------------- */

/* |sum - exact| of a fold in f32 is at most (n - 1) roundings of partial sums. */
static void near_exact(const float *got, const float *before, void *const *values, zero_dtype from,
		       int n, size_t count)
{
	size_t size = zero_dtype_size(from);

	for (size_t i = 0; i < count; i++) {
		double exact = before ? (double)before[i] : 0, most = fabs(exact);

		for (int k = 0; k < n; k++) {
			double x = (double)ref_widen(from, (char *)values[k] + i * size);

			exact += x;
			most += fabs(x);
		}
		if (!(most < 1e38))
			continue; /* infinities and NaN: the host's bits say what they become */
		expect(fabs((double)got[i] - exact) <= most * (n + 1) * 0x1p-24 + 1e-44,
		       "sum of %d: %g at %zu, not %g", n, (double)got[i], i, exact);
	}
}

enum base { ALONE, ACCUMULATE, FIRST }; /* what the sum is added to, or begins with */

/* want = the sum, or what `want` holds and the sum, one value after the other. */
static void right_sum(float *want, void *const *values, zero_dtype from, int n, size_t count,
		      enum base base)
{
	if (base != FIRST)
		host->sum(want, from, (const void *const *)values, n, count, base == ACCUMULATE);
	for (int k = 0; base == FIRST && k < n; k++)
		host->sum(want, from, (const void *[]){values[k]}, 1, count, true);
}

/* `place` is that of the summand that is apart from the others, n: none is. In place, the sum is
   where that one is. */
static void one_sum(zero_dtype from, int n, int place, size_t count, size_t shift, enum base base,
		    bool in_place)
{
	size_t size = zero_dtype_size(from), rows = (size_t)n - (place < n);
	struct zero_device_sum args = {.count = count,
				       .n = n,
				       .own_at = place,
				       .from = from,
				       .accumulate = base == ACCUMULATE};
	char *all = memory((size_t)n * count * size), *others = memory(rows * count * size);
	void **values = memory((size_t)n * sizeof(*values)), *got;
	struct array own = {0}, in, out;
	float *want = memory(count * 4);

	random_values(from, all, (size_t)n * count);
	for (int k = 0; k < n; k++) {
		values[k] = all + (size_t)k * count * size;
		if (k != place)
			memcpy(others + (size_t)(k - (k > place)) * count * size, values[k],
			       count * size);
	}
	in = array_new(others, rows * count * size, some_shift(shift) % 5 * size);
	args.others = in.data;
	if (place < n) {
		own = array_new(values[place], count * size, shift % 5 * size);
		args.own = own.data;
	}
	random_values(ZERO_F32, want, count);
	if (in_place)
		memcpy(want, values[place], count * 4);
	out = in_place ? own : array_new(want, count * 4, shift % 5 * 4);
	args.out = (float *)out.data;
	args.first = base == FIRST ? args.out : NULL;
	launch("zero_device_sum", &args, count, shift == 3 ? 1 : 0);
	got = array_take(&out, "sum");
	if (base == ALONE)
		near_exact(got, NULL, values, from, n, count);
	else
		near_exact(got, want, values, from, n, count);
	right_sum(want, values, from, n, count, base);
	same_bits(got, want, 4, count, "sum");
	array_free(&in);
	if (place < n && !in_place)
		array_free(&own);
	free(want);
	free(got);
	free(values);
	free(others);
	free(all);
}

void check_sum(void)
{
	static const int numbers[] = {1, 2, 3, 9, 64, 257, 512, 1000};

	for (size_t f = 0; f < 3; f++)
		for (size_t i = 0; i < 8; i++)
			for (size_t c = 0; c < COUNTS; c++) {
				const int n = numbers[i], place = (int)(draw() % (uint64_t)n);

				if (counts[c] > longest || (n > 3 && counts[c] > 70000) ||
				    (n > 64 && counts[c] > 300))
					continue;
				one_sum(floats[f], n, place, counts[c], shifts[c % SHIFTS], ALONE,
					false);
				one_sum(floats[f], n, c % 2 ? n : n - 1, counts[c],
					shifts[i % SHIFTS], ACCUMULATE, false);
				one_sum(floats[f], n, c % 2 ? 0 : n, counts[c], shifts[i % SHIFTS],
					FIRST, false);
				if (floats[f] == ZERO_F32)
					one_sum(ZERO_F32, n, c % 3 ? n / 2 : n - 1, counts[c],
						shifts[i % SHIFTS], c % 2 ? ACCUMULATE : ALONE,
						true);
			}
}

/* ---- adamw ----------------------------------------------------------------------------------- */

struct states {
	float *p, *m, *v, *g;
};

static struct states states_new(size_t count)
{
	struct states s = {memory(count * 4), memory(count * 4), memory(count * 4),
			   memory(count * 4)};

	random_values(ZERO_F32, s.p, count);
	random_values(ZERO_F32, s.m, count);
	random_values(ZERO_F32, s.v, count);
	random_values(ZERO_F32, s.g, count);
	for (size_t i = 0; i < count; i++)
		s.v[i] = fabsf(s.v[i]);
	return s;
}

static void states_free(struct states *s)
{
	free(s->p);
	free(s->m);
	free(s->v);
	free(s->g);
}

static void near_formula(const struct zero_adamw_args *a, const struct states *from,
			 const float *got, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		double g = (double)from->g[i] * (double)a->scale, p = (double)from->p[i];
		double m = (double)a->beta1 * (double)from->m[i] + (1 - (double)a->beta1) * g;
		double v = (double)a->beta2 * (double)from->v[i] + (1 - (double)a->beta2) * g * g;
		double move = (double)a->lr * m * (double)a->correction1 /
			      (sqrt(v * (double)a->correction2) + (double)a->eps);
		double want = p - (double)a->decay * p - move;
		/* beta1 * m and the new gradient may cancel */
		double most = (double)a->lr * (double)a->correction1 *
			      (fabs((double)from->m[i]) + fabs(g)) /
			      (sqrt(v * (double)a->correction2) + (double)a->eps);

		if (!(v < 1e30 && v > 1e-30 && fabs(want) < 1e30))
			continue;
		expect(fabs((double)got[i] - want) <= 1e-6 * (fabs(p) + most) + 1e-30,
		       "adamw: %.9g at %zu, not %.9g", (double)got[i], i, want);
	}
}

static void one_adamw(zero_dtype low, size_t count, size_t shift)
{
	struct zero_device_adamw args = {.args = {.lr = unit(),
						  .beta1 = unit(),
						  .beta2 = unit(),
						  .eps = draw() % 3 ? 1e-8F : 0,
						  .decay = unit() * 1e-3F,
						  .correction1 = 1 + unit(),
						  .correction2 = 1 + unit(),
						  .scale = draw() % 5 ? unit() : 1},
					 .count = count,
					 .low_dtype = low};
	size_t low_size = zero_dtype_size(low);
	struct states values = states_new(count), before = states_new(count);
	void *want_low = memory(count * 4), *got[4];
	size_t other = some_shift(shift);
	struct array p, m, v, g, out;

	memcpy(before.p, values.p, count * 4);
	memcpy(before.m, values.m, count * 4);
	memcpy(before.v, values.v, count * 4);
	memcpy(before.g, values.g, count * 4);
	p = array_new(values.p, count * 4, shift * 4);
	m = array_new(values.m, count * 4, other * 4);
	v = array_new(values.v, count * 4, some_shift(shift) * 4);
	g = array_new(values.g, count * 4, other * 4);
	out = array_new(NULL, count * low_size, some_shift(shift) * low_size);
	args.p = (float *)p.data;
	args.moments.m = (float *)m.data;
	args.moments.v = (float *)v.data;
	args.g = (float *)g.data;
	args.low = low_size ? out.data : NULL;
	launch("zero_device_adamw", &args, count, shift == 3 ? 1 : 0);
	got[0] = array_take(&p, "adamw");
	got[1] = array_take(&m, "adamw");
	got[2] = array_take(&v, "adamw");
	got[3] = array_take(&out, "adamw");
	host->adamw(&args.args, values.p, values.m, values.v, values.g, low_size ? want_low : NULL,
		    low, count);
	same_bits(got[0], values.p, 4, count, "adamw, p");
	same_bits(got[1], values.m, 4, count, "adamw, m");
	same_bits(got[2], values.v, 4, count, "adamw, v");
	same_bits(got[3], want_low, low_size, count, "adamw, p of 16 bits");
	near_formula(&args.args, &before, got[0], count);
	array_free(&g);
	for (int i = 0; i < 4; i++)
		free(got[i]);
	states_free(&values);
	states_free(&before);
	free(want_low);
}

/* Moments that a step can have come to, but for one block of NaN. */
static void states_8bit(struct zero_moments *moments, const struct states *states, size_t count)
{
	size_t blocks = count / ZERO_BLOCK + 1;

	*moments = (struct zero_moments){.m_codes = memory(count),
					 .v_codes = memory(count),
					 .m_absmax = memory(blocks * 4),
					 .v_absmax = memory(blocks * 4)};
	host->quantize(zero_dynamic_map(true), moments->m_codes, moments->m_absmax, states->m,
		       count);
	host->quantize(zero_dynamic_map(false), moments->v_codes, moments->v_absmax, states->v,
		       count);
}

static void one_adamw_8bit(zero_dtype low, size_t count)
{
	struct zero_device_adamw args = {
		.args = {.lr = unit(),
			 .beta1 = unit(),
			 .beta2 = unit(),
			 .eps = 1e-8F,
			 .decay = unit() * 1e-3F,
			 .correction1 = 1 + unit(),
			 .correction2 = 1 + unit(),
			 .scale = unit()},
		.count = count,
		.low_dtype = low,
		.maps = {*zero_dynamic_map(false), *zero_dynamic_map(true)}};
	size_t low_size = zero_dtype_size(low), blocks = (count + ZERO_BLOCK - 1) / ZERO_BLOCK;
	struct states values = states_new(count);
	struct zero_moments want;
	void *want_low = memory(count * 4), *got[6];
	struct array p, g, out, codes[2], absmax[2];

	states_8bit(&want, &values, count);
	p = array_new(values.p, count * 4, 0);
	g = array_new(values.g, count * 4, 0);
	out = array_new(NULL, count * low_size, 0);
	codes[0] = array_new(want.m_codes, count, 0);
	codes[1] = array_new(want.v_codes, count, 0);
	absmax[0] = array_new(want.m_absmax, blocks * 4, 0);
	absmax[1] = array_new(want.v_absmax, blocks * 4, 0);
	args.p = (float *)p.data;
	args.moments = (struct zero_moments){.m_codes = (uint8_t *)codes[0].data,
					     .v_codes = (uint8_t *)codes[1].data,
					     .m_absmax = (float *)absmax[0].data,
					     .v_absmax = (float *)absmax[1].data};
	args.g = (float *)g.data;
	args.low = low_size ? out.data : NULL;
	launch("zero_device_adamw_8bit", &args, count, 0);
	got[0] = array_take(&p, "adamw of 8 bits");
	got[1] = array_take(&codes[0], "adamw of 8 bits");
	got[2] = array_take(&codes[1], "adamw of 8 bits");
	got[3] = array_take(&absmax[0], "adamw of 8 bits");
	got[4] = array_take(&absmax[1], "adamw of 8 bits");
	got[5] = array_take(&out, "adamw of 8 bits");
	host->dequantize(zero_dynamic_map(true), values.m, want.m_codes, want.m_absmax, count);
	host->dequantize(zero_dynamic_map(false), values.v, want.v_codes, want.v_absmax, count);
	host->adamw(&args.args, values.p, values.m, values.v, values.g, low_size ? want_low : NULL,
		    low, count);
	host->quantize(zero_dynamic_map(true), want.m_codes, want.m_absmax, values.m, count);
	host->quantize(zero_dynamic_map(false), want.v_codes, want.v_absmax, values.v, count);
	same_bits(got[0], values.p, 4, count, "adamw of 8 bits, p");
	same_bits(got[1], want.m_codes, 1, count, "adamw of 8 bits, codes of m");
	same_bits(got[2], want.v_codes, 1, count, "adamw of 8 bits, codes of v");
	same_bits(got[3], want.m_absmax, 4, blocks, "adamw of 8 bits, absmax of m");
	same_bits(got[4], want.v_absmax, 4, blocks, "adamw of 8 bits, absmax of v");
	same_bits(got[5], want_low, low_size, count, "adamw of 8 bits, p of 16 bits");
	array_free(&g);
	for (int i = 0; i < 6; i++)
		free(got[i]);
	states_free(&values);
	free(want.m_codes);
	free(want.v_codes);
	free(want.m_absmax);
	free(want.v_absmax);
	free(want_low);
}

void check_adamw(void)
{
	static const zero_dtype lows[] = {ZERO_DTYPE_PARAM, ZERO_F32, ZERO_F16, ZERO_BF16};

	for (size_t low = 0; low < 4; low++)
		for (size_t c = 0; c < COUNTS && counts[c] <= longest; c++)
			for (size_t s = 0; s < SHIFTS; s++)
				one_adamw(lows[low], counts[c], shifts[s]);
	for (size_t low = 0; low < 4; low++)
		for (size_t c = 0; c < COUNTS && counts[c] <= longest; c++)
			one_adamw_8bit(lows[low], counts[c]);
}

/* ---- fill ------------------------------------------------------------------------------------ */

void check_fill(void)
{
	for (size_t size = 1; size <= 8; size *= 2)
		for (size_t c = 0; c < COUNTS && counts[c] <= longest; c++)
			for (size_t s = 0; s < SHIFTS; s++) {
				size_t count = counts[c];
				struct array out = array_new(NULL, count * size, shifts[s] * size);
				struct zero_device_fill args = {.out = out.data,
								.count = count,
								.pattern = draw(),
								.size = size};
				char *got;

				launch("zero_device_fill", &args, count, s == 3 ? 1 : 0);
				got = array_take(&out, "fill");
				for (size_t i = 0; i < count; i++)
					expect(!memcmp(got + i * size, &args.pattern, size),
					       "fill: element %zu of %zu, %zu bytes", i, count,
					       size);
				free(got);
			}
}
