/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums, norms and AdamW against slow references, and every instruction set against the
 * scalar one: the same bits for any input.
 */
#include "sets.h"

/* ---- sum ------------------------------------------------------------------------------------- */

/* Elements of a type, and the same as f32. */
struct summand {
	struct array in;
	float *wide;
};

static struct summand random_summand(zero_dtype from, size_t count, size_t offset,
				     float (*draw)(void))
{
	struct summand s = {.in = random_array(count, offset, draw)};

	s.wide = malloc(count * sizeof(float) + 1);
	ck_assert_ptr_nonnull(s.wide);
	if (from == ZERO_F32) {
		memcpy(s.wide, s.in.x, count * sizeof(float));
		return s;
	}
	free(s.in.base);
	s.in.base = malloc((count + offset) * sizeof(uint16_t) + 1);
	ck_assert_ptr_nonnull(s.in.base);
	uint16_t *h = (uint16_t *)s.in.base + offset;
	s.in.x = (void *)h;
	for (size_t i = 0; i < count; i++) {
		h[i] = draw == random_any ? (uint16_t)random64() : (uint16_t)nearest(from, draw());
		s.wide[i] = (float)meaning_of(from, h[i]);
	}
	return s;
}

/* alias < 0: out is none of the inputs. */
static void sum_is_right(zero_dtype from, int n, size_t count, size_t offset, bool accumulate,
			 int alias, float (*draw)(void))
{
	struct summand *in = malloc((size_t)n * sizeof(*in));
	const void **pointers = malloc((size_t)n * sizeof(*pointers));
	struct array old = random_array(count, offset, draw);
	float *right = malloc(count * sizeof(float) + 1);
	struct output first = {0};

	for (int k = 0; k < n; k++)
		in[k] = random_summand(from, count, offset, draw);
	const float *before = alias < 0 ? old.x : in[alias].wide;
	for (size_t i = 0; i < count; i++) {
		right[i] = in[0].wide[i];
		for (int k = 1; k < n; k++)
			right[i] += in[k].wide[i];
		if (accumulate)
			right[i] = before[i] + right[i];
	}
	for (int s = 0; sets[s]; s++) {
		struct output o = output_of(before, count, offset);
		const float *out = o.out;

		for (int k = 0; k < n; k++)
			pointers[k] = k == alias ? out : in[k].in.x;
		sets[s]->sum(o.out, from, pointers, n, count, accumulate);
		for (size_t i = 0; i < count; i++)
			must(bits_of(out[i]) == (isnan(right[i]) ? 0x7fc00000 : bits_of(right[i])),
			     "%s: sum of %d of type %d, element %zu of %zu", sets[s]->isa, n, from,
			     i, count);
		same_as(&first, &o, "sum", sets[s]->isa, count);
	}
	for (int k = 0; k < n; k++) {
		free(in[k].in.base);
		free(in[k].wide);
	}
	free(in);
	free(pointers);
	free(right);
	free(old.base);
	free(first.base);
}

START_TEST(sums_fold_from_the_left)
{
	static const zero_dtype types[] = {ZERO_F32, ZERO_F16, ZERO_BF16};
	static const int few[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 40};

	for (size_t t = 0; t < COUNT_OF(few) * 3; t++) {
		const zero_dtype from = types[t % 3];
		const int n = few[t / 3];

		for (size_t c = 0; c < COUNT_OF(sizes) - 1; c++) {
			const int alias = from == ZERO_F32 ? (int)(random64() % (size_t)n) : -1;

			sum_is_right(from, n, sizes[c], c % 3, t % 2, -1, random_any);
			sum_is_right(from, n, sizes[c], t / 3 % 3, c % 2, alias, random_sane);
		}
	}
	for (size_t t = 0; t < 3; t++) {
		sum_is_right(types[t], 3, BIG, 0, false, -1, random_any);
		sum_is_right(types[t], 2, BIG, 1, true, -1, random_sane);
		sum_is_right(types[t], 9, BIG, 0, false, t ? -1 : 4, random_sane);
		sum_is_right(types[t], 5000, 300, t, t % 2, -1, random_sane);
	}
	for (int n = 256; n < 1100; n += 187)
		sum_is_right(ZERO_F32, n, 300, 0, n % 2, n - 1 - (int)(random64() % 200),
			     random_sane);
}
END_TEST

/* ---- norm2 ----------------------------------------------------------------------------------- */

/* The definition in kernels.h. */
static double lanes_of(const float *x, size_t count)
{
	double lane[16] = {0};

	for (size_t i = 0; i < count; i++)
		lane[i % 16] += (double)x[i] * (double)x[i];
	for (int half = 8; half; half /= 2)
		for (int k = 0; k < half; k++)
			lane[k] += lane[k + half];
	return lane[0];
}

START_TEST(norms_are_those_of_16_lanes)
{
	for (size_t c = 0; c < COUNT_OF(sizes); c++) {
		struct array sane = random_array(sizes[c], c % 3, random_sane);
		struct array any = random_array(sizes[c], c % 2, random_any);
		const double sum = lanes_of(any.x, sizes[c]);

		for (int s = 0; sets[s]; s++) {
			const double norm2 = sets[s]->norm2(sane.x, sizes[c]);
			const double odd = sets[s]->norm2(any.x, sizes[c]);

			ck_assert(norm2 == lanes_of(sane.x, sizes[c]));
			ck_assert(isnan(sum) ? isnan(odd) && !signbit(odd) : odd == sum);
		}
		free(sane.base);
		free(any.base);
	}
}
END_TEST

/* ---- adamw ----------------------------------------------------------------------------------- */

static const struct zero_adamw_args adamw_args = {
	.lr = 1e-2f,
	.beta1 = 0.9f,
	.beta2 = 0.99f,
	.eps = 1e-8f,
	.decay = 1e-4f,
	.correction1 = 1 / (1 - 0.9f),
	.correction2 = 1 / (1 - 0.99f),
	.scale = 0.25f,
};

START_TEST(adamw_follows_the_paper)
{
	const struct zero_kernels *k = sets[_i];
	enum { COUNT = 1000 };
	struct array p = random_array(COUNT, 1, random_sane);
	float m[COUNT] = {0}, v[COUNT] = {0}, m0[COUNT], v0[COUNT], p0[COUNT];

	for (int t = 1; t <= 20; t++) {
		struct array g = random_array(COUNT, 0, random_sane);
		struct zero_adamw_args a = adamw_args;

		a.correction1 = (float)(1 / (1 - pow(a.beta1, t)));
		a.correction2 = (float)(1 / (1 - pow(a.beta2, t)));
		memcpy(p0, p.x, sizeof p0);
		memcpy(m0, m, sizeof m0);
		memcpy(v0, v, sizeof v0);
		k->adamw(&a, p.x, m, v, g.x, NULL, ZERO_DTYPE_PARAM, COUNT);
		for (size_t i = 0; i < COUNT; i++) {
			const double beta1 = a.beta1, beta2 = a.beta2, ulp = 0x1p-23;
			const double gradient = g.x[i] * (double)a.scale;
			const double em = beta1 * m0[i] + (1 - beta1) * gradient;
			const double ev = beta2 * v0[i] + (1 - beta2) * gradient * gradient;
			const double by = a.decay * (double)p0[i] +
					  a.lr * (m[i] * (double)a.correction1) /
						  (sqrt(v[i] * (double)a.correction2) + a.eps);

			must(fabs(m[i] - em) <= ulp * (fabs(em) + fabs(gradient)),
			     "step %d: m is %.9g, not %.9g", t, m[i], em);
			must(fabs(v[i] - ev) <= 3 * ulp * ev, "step %d: v is %.9g, not %.9g", t,
			     v[i], ev);
			/* Half a unit of p, and little of the step. */
			must(fabs(p.x[i] - (p0[i] - by)) <=
				     ulp / 2 * fabs(p.x[i]) + 8 * ulp * fabs(by),
			     "step %d: %.9g - %.9g is not %.9g", t, p0[i], by, p.x[i]);
		}
		free(g.base);
	}
	free(p.base);
}
END_TEST

static void adamw_is_the_same(size_t count, size_t offset, zero_dtype low_dtype,
			      float (*draw)(void))
{
	const size_t size = low_dtype == ZERO_F32 ? 4 : 2;
	const bool any = draw == random_any;
	struct array in[4];
	struct output first[4] = {0};

	for (int a = 0; a < 4; a++)
		in[a] = random_array(count, offset, draw);
	for (size_t i = 0; i < count && !any; i++)
		in[2].x[i] = fabsf(in[2].x[i]);
	for (int s = 0; sets[s]; s++) {
		struct output p = output_of(in[0].x, count, offset);
		struct output m = output_of(in[1].x, count, (offset + 1) % 3);
		struct output v = output_of(in[2].x, count, (offset + 2) % 3);
		struct output low = output_new(count * size, offset * size);
		struct output cast = output_new(count * size, offset * size);

		sets[s]->adamw(&adamw_args, p.out, m.out, v.out, in[3].x,
			       low_dtype == ZERO_DTYPE_PARAM ? NULL : low.out, low_dtype, count);
		if (low_dtype != ZERO_DTYPE_PARAM) {
			scalar->cast(low_dtype, cast.out, ZERO_F32, p.out, count);
			ck_assert(count == 0 || !memcmp(cast.out, low.out, low.bytes));
		}
		free(cast.base);
		same_as(&first[0], &p, "adamw (p)", sets[s]->isa, count);
		same_as(&first[1], &m, "adamw (m)", sets[s]->isa, count);
		same_as(&first[2], &v, "adamw (v)", sets[s]->isa, count);
		same_as(&first[3], &low, "adamw (low)", sets[s]->isa, count);
	}
	for (int a = 0; a < 4; a++) {
		free(in[a].base);
		free(first[a].base);
	}
}

START_TEST(adamw_is_the_same_bits)
{
	static const zero_dtype lows[] = {ZERO_DTYPE_PARAM, ZERO_BF16, ZERO_F16, ZERO_F32};

	for (size_t c = 0; c < COUNT_OF(sizes) * 4; c++) {
		adamw_is_the_same(sizes[c / 4], c / 4 % 3, lows[c % 4], random_any);
		adamw_is_the_same(sizes[c / 4], 0, lows[c % 4], random_sane);
	}
}
END_TEST

/* ---- Muon ------------------------------------------------------------------------------------ */

static float near(double want, double size)
{
	return (float)(fabs(want) * 0x1p-23 + size * 0x1p-23);
}

START_TEST(muon_follows_its_formula)
{
	const struct zero_kernels *k = sets[_i];
	struct zero_muon_args args = {
		.lr = 1e-2f, .decay = 1e-3f, .momentum = 0.875f, .scale = 0.5f};
	enum { COUNT = 1003 };

	for (int nesterov = 0; nesterov < 2; nesterov++) {
		struct array m = random_array(COUNT, 1, random_sane),
			     g = random_array(COUNT, 0, random_sane);
		struct array p = random_array(COUNT, 2, random_sane);
		float m0[COUNT], p0[COUNT], out[COUNT];

		args.nesterov = nesterov;
		memcpy(m0, m.x, sizeof m0);
		memcpy(p0, p.x, sizeof p0);
		k->muon_momentum(&args, m.x, g.x, out, COUNT);
		k->muon_update(&args, p.x, out, NULL, ZERO_F32, COUNT);
		for (size_t i = 0; i < COUNT; i++) {
			const double gradient = 0.125 * (g.x[i] * 0.5),
				     em = 0.875 * m0[i] + gradient;
			const double eo = nesterov ? 0.875 * m.x[i] + gradient : (double)m.x[i];
			const double by = 1e-3 * (double)p0[i] + 1e-2 * (double)out[i];

			must(fabs(m.x[i] - em) <= near(em, fabs(gradient)), "m is %.9g, not %.9g",
			     m.x[i], em);
			must(fabs(out[i] - eo) <= near(eo, fabs(gradient)), "out is %.9g, not %.9g",
			     out[i], eo);
			must(fabs(p.x[i] - (p0[i] - by)) <= near(p.x[i], 8 * fabs(by)),
			     "%.9g - %.9g is not %.9g", p0[i], by, p.x[i]);
		}
		free(m.base);
		free(g.base);
		free(p.base);
	}
}
END_TEST

static void muon_is_the_same(size_t count, size_t offset, zero_dtype low_dtype)
{
	const struct zero_muon_args args = {.lr = 1e-2f,
					    .decay = 1e-3f,
					    .momentum = 0.9f,
					    .scale = 0.3f,
					    .nesterov = count % 2};
	struct array in[3];
	struct output first[4] = {0};

	for (int a = 0; a < 3; a++)
		in[a] = random_array(count, offset, random_any);
	for (int s = 0; sets[s]; s++) {
		struct output m = output_of(in[0].x, count, offset),
			      out = output_new(count * 4, offset * 4);
		struct output p = output_of(in[2].x, count, (offset + 1) % 3);
		struct output low = output_new(count * 2, offset * 2);

		sets[s]->muon_momentum(&args, m.out, in[1].x, out.out, count);
		sets[s]->muon_update(&args, p.out, out.out,
				     low_dtype == ZERO_DTYPE_PARAM ? NULL : low.out, low_dtype,
				     count);
		same_as(&first[0], &m, "muon (m)", sets[s]->isa, count);
		same_as(&first[1], &out, "muon (out)", sets[s]->isa, count);
		same_as(&first[2], &p, "muon (p)", sets[s]->isa, count);
		same_as(&first[3], &low, "muon (low)", sets[s]->isa, count);
	}
	for (int a = 0; a < 3; a++)
		free(in[a].base);
	for (int a = 0; a < 4; a++)
		free(first[a].base);
}

START_TEST(muon_is_the_same_bits)
{
	static const zero_dtype lows[] = {ZERO_DTYPE_PARAM, ZERO_BF16, ZERO_F16};

	for (size_t c = 0; c < COUNT_OF(sizes) * 3; c++)
		muon_is_the_same(sizes[c / 3], c / 3 % 3, lows[c % 3]);
}
END_TEST

/* ---- the choice ------------------------------------------------------------------------------ */

START_TEST(sets_are_chosen_by_name)
{
	size_t count = 0;

	for (const char *isa; (isa = zero_kernels_isa(count)); count++)
		ck_assert_str_eq(zero_kernels_choose(isa)->isa, isa);
	ck_assert_uint_ge(count, 1);
	ck_assert_str_eq(zero_kernels_isa(count - 1), "scalar");
	ck_assert_ptr_eq(zero_kernels_choose("auto"), zero_kernels_choose(zero_kernels_isa(0)));
	ck_assert_ptr_null(zero_kernels_choose("sse9"));
	ck_assert_ptr_null(zero_kernels_choose(""));
}
END_TEST

int main(void)
{
	const int count = find_sets();
	TCase *tests = tcase_create("kernels");

	tcase_add_test(tests, sums_fold_from_the_left);
	tcase_add_test(tests, norms_are_those_of_16_lanes);
	tcase_add_loop_test(tests, adamw_follows_the_paper, 0, count);
	tcase_add_test(tests, adamw_is_the_same_bits);
	tcase_add_loop_test(tests, muon_follows_its_formula, 0, count);
	tcase_add_test(tests, muon_is_the_same_bits);
	tcase_add_test(tests, sets_are_chosen_by_name);
	return run_cases(tests, NULL);
}
