/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts, sums, norms and AdamW against slow references, and every instruction set against the
 * scalar one: the same bits for any input.
 */
#include "sets.h"

static const zero_dtype halves[] = {ZERO_F16, ZERO_BF16};

/* ---- casts ----------------------------------------------------------------------------------- */

static void half_is_right(zero_dtype dtype, float from, uint16_t h)
{
	if (isnan(from)) {
		const uint16_t quiet = dtype == ZERO_F16 ? 0x7e00 : 0x7fc0;

		must((h & quiet) == quiet && h >> 15 == bits_of(from) >> 31, "NaN %08x became %04x",
		     bits_of(from), h);
		return;
	}
	must(h == nearest(dtype, from), "%08x (%g) became %04x, not %04x", bits_of(from), from, h,
	     nearest(dtype, from));
}

static void halves_are_right(const struct zero_kernels *k, zero_dtype dtype, const float *x,
			     size_t count)
{
	uint16_t *h = malloc(count * sizeof(*h));

	k->cast(dtype, h, ZERO_F32, x, count);
	for (size_t i = 0; i < count; i++)
		half_is_right(dtype, x[i], h[i]);
	free(h);
}

START_TEST(casts_widen_every_value)
{
	const struct zero_kernels *k = sets[_i];
	static uint16_t h[1 << 16], back[1 << 16];
	static float wide[1 << 16];

	for (size_t t = 0; t < COUNT_OF(halves); t++) {
		const uint16_t quiet = halves[t] == ZERO_F16 ? 0x200 : 0x40;

		for (size_t i = 0; i < COUNT_OF(h); i++)
			h[i] = (uint16_t)i;
		k->cast(ZERO_F32, wide, halves[t], h, COUNT_OF(h));
		k->cast(halves[t], back, ZERO_F32, wide, COUNT_OF(h));
		for (size_t i = 0; i < COUNT_OF(h); i++) {
			const double x = meaning_of(halves[t], h[i]);

			must(isnan(x) ? isnan(wide[i]) : wide[i] == x, "%04zx became %g, not %g", i,
			     wide[i], x);
			must(!isnan(x) || bits_of(wide[i]) & 0x400000, "%04zx is not quiet", i);
			must(!signbit(wide[i]) == !(h[i] & 0x8000), "%04zx lost its sign", i);
			must(back[i] == (isnan(x) ? h[i] | quiet : h[i]), "%04zx came back as %04x",
			     i, back[i]);
		}
	}
}
END_TEST

START_TEST(casts_round_to_nearest_even)
{
	const struct zero_kernels *k = sets[_i];
	float *x = malloc(MANY * sizeof(*x));
	size_t count;

	for (size_t i = 0; i < MANY; i++)
		x[i] = float_of((uint32_t)random64());
	for (size_t t = 0; t < COUNT_OF(halves); t++)
		halves_are_right(k, halves[t], x, MANY);

	/* Around the middle between any two neighbours. */
	for (size_t t = 0; t < COUNT_OF(halves); t++) {
		count = 0;
		for (uint16_t h = 0; isfinite(meaning_of(halves[t], h)); h++) {
			const uint16_t next = (uint16_t)(h + 1);
			const double low = meaning_of(halves[t], h);
			const double high = meaning_of(halves[t], next);
			const float middle = (float)(isinf(high) ? low : low + (high - low) / 2);

			x[count++] = middle;
			x[count++] = -middle;
			x[count++] = nextafterf(middle, 0);
			x[count++] = nextafterf(middle, INFINITY);
		}
		x[count++] = 65520;
		x[count++] = nextafterf(65520, 0);
		x[count++] = FLT_MAX;
		halves_are_right(k, halves[t], x, count);
	}
	free(x);
}
END_TEST

START_TEST(casts_are_the_same_bits)
{
	static const zero_dtype types[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

	for (size_t c = 0; c < COUNT_OF(sizes) * 9 * 3; c++) {
		const size_t count = sizes[c / 27], offset = c % 3;
		const zero_dtype to = types[c / 9 % 3], from = types[c / 3 % 3];
		const size_t size = to == ZERO_F32 ? 4 : 2;
		struct array in = random_array(count, offset, random_any);
		struct output first = {0};

		for (int s = 0; sets[s]; s++) {
			struct output o = output_new(count * size, offset * size);

			sets[s]->cast(to, o.out, from, in.x, count);
			same_as(&first, &o, "cast", sets[s]->isa, count);
		}
		free(first.base);
		free(in.base);
	}
}
END_TEST

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
	static const int few[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 40};

	for (size_t t = 0; t < COUNT_OF(few); t++) {
		for (size_t c = 0; c < COUNT_OF(sizes) - 1; c++) {
			sum_is_right(ZERO_F32, few[t], sizes[c], c % 3, t % 2, -1, random_any);
			sum_is_right(ZERO_F32, few[t], sizes[c], t % 3, c % 2,
				     (int)(random64() % (size_t)few[t]), random_sane);
		}
	}
	for (int n = 1; n < 10; n += 2) {
		sum_is_right(ZERO_F32, n, BIG, 0, false, -1, random_any);
		sum_is_right(ZERO_F32, n, BIG, 1, true, -1, random_sane);
		sum_is_right(ZERO_F32, n, BIG, 0, false, n / 2, random_sane);
	}
	sum_is_right(ZERO_F32, 5000, 300, 0, false, -1, random_sane);
	sum_is_right(ZERO_F32, 5000, 300, 1, true, 4999, random_any);
}
END_TEST

START_TEST(sums_of_16_bits_are_f32)
{
	static const int few[] = {1, 2, 3, 8, 9, 17};

	for (size_t t = 0; t < COUNT_OF(few) * 2; t++) {
		const zero_dtype from = halves[t % 2];
		const int n = few[t / 2];

		for (size_t c = 0; c < COUNT_OF(sizes) - 1; c++) {
			sum_is_right(from, n, sizes[c], c % 3, c % 2, -1, random_any);
			sum_is_right(from, n, sizes[c], t % 3, t / 2 % 2, -1, random_sane);
		}
	}
	for (size_t t = 0; t < 2; t++) {
		sum_is_right(halves[t], 3, BIG, 0, false, -1, random_any);
		sum_is_right(halves[t], 2, BIG, 1, true, -1, random_sane);
		sum_is_right(halves[t], 2000, 300, t, t, -1, random_sane);
	}
}
END_TEST

/* 1024 values of about 1, added as bf16, would stay at 256. */
START_TEST(sums_of_16_bits_widen_every_value)
{
	static uint16_t h[1 << 16];
	static float sum[1 << 16];
	const void *in[1024];

	for (size_t i = 0; i < COUNT_OF(h); i++)
		h[i] = (uint16_t)i;
	for (size_t k = 0; k < COUNT_OF(in); k++)
		in[k] = h;
	for (size_t t = 0; t < COUNT_OF(halves); t++) {
		for (int n = 1; n <= 1024; n *= 32) {
			sets[_i]->sum(sum, halves[t], in, n, COUNT_OF(h), false);
			for (size_t i = 0; i < COUNT_OF(h); i++) {
				const double x = meaning_of(halves[t], h[i]) * n;

				must(isnan(x) ? bits_of(sum[i]) == 0x7fc00000 : sum[i] == (float)x,
				     "%d times %04zx became %g, not %g", n, i, sum[i], x);
				must(isnan(x) || !signbit(sum[i]) == !signbit(x),
				     "%04zx lost its sign", i);
			}
		}
	}
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
		long double exact = 0;

		for (size_t i = 0; i < sizes[c]; i++)
			exact += (long double)sane.x[i] * (long double)sane.x[i];
		for (int s = 0; sets[s]; s++) {
			const double norm2 = sets[s]->norm2(sane.x, sizes[c]);
			const double odd = sets[s]->norm2(any.x, sizes[c]);

			ck_assert(norm2 == lanes_of(sane.x, sizes[c]));
			ck_assert(fabsl(norm2 - exact) <= exact * 1e-12L);
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

/* ---- any split ------------------------------------------------------------------------------- */

struct flat {
	float p[5000], m[5000], v[5000], sum[5000];
	uint16_t low[5000], cast[5000];
};

static void run_part(const struct zero_kernels *k, struct flat *f, const float *g, size_t first,
		     size_t n)
{
	const void *in[] = {g + first, f->p + first, f->sum + first};
	const void *low[] = {f->low + first, f->low + first};

	k->adamw(&adamw_args, f->p + first, f->m + first, f->v + first, g + first, f->low + first,
		 ZERO_BF16, n);
	k->sum(f->sum + first, ZERO_F32, in, 3, n, false);
	k->sum(f->sum + first, ZERO_BF16, low, 2, n, true);
	k->cast(ZERO_F16, f->cast + first, ZERO_F32, f->p + first, n);
}

START_TEST(any_split_is_the_same)
{
	static struct flat whole, parts;
	struct array g = random_array(5000, 0, random_any);

	for (int t = 0; t < 20; t++) {
		memset(&whole, 0, sizeof whole);
		memset(&parts, 0, sizeof parts);
		run_part(sets[_i], &whole, g.x, 0, 5000);
		for (size_t first = 0, n; first < 5000; first += n) {
			n = random64() % (t < 10 ? 40 : 3000);
			n = n < 5000 - first ? n : 5000 - first;
			run_part(sets[_i], &parts, g.x, first, n);
		}
		ck_assert(!memcmp(&whole, &parts, sizeof whole));
	}
	free(g.base);
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

	tcase_set_timeout(tests, 120);
	tcase_add_loop_test(tests, casts_widen_every_value, 0, count);
	tcase_add_loop_test(tests, casts_round_to_nearest_even, 0, count);
	tcase_add_test(tests, casts_are_the_same_bits);
	tcase_add_test(tests, sums_fold_from_the_left);
	tcase_add_test(tests, sums_of_16_bits_are_f32);
	tcase_add_loop_test(tests, sums_of_16_bits_widen_every_value, 0, count);
	tcase_add_test(tests, norms_are_those_of_16_lanes);
	tcase_add_loop_test(tests, adamw_follows_the_paper, 0, count);
	tcase_add_test(tests, adamw_is_the_same_bits);
	tcase_add_loop_test(tests, any_split_is_the_same, 0, count);
	tcase_add_test(tests, sets_are_chosen_by_name);
	return run_cases(tests, NULL);
}
