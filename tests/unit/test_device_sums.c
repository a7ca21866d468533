/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's sums, emulated, against the host's: the same bits. The norm has an order of its own,
 * which is the same for any grid.
 */
#include "device_arrays.h"

/* ---- sums ------------------------------------------------------------------------------------ */

/* `own`: the summand that out is, or -1. */
static void sum_is_the_hosts(zero_dtype from, int n, size_t count, bool accumulate, int own)
{
	const size_t same = random64() % 5;
	struct output in[ZERO_DEVICE_SUMMANDS], right = random_elements(ZERO_F32, count, same), o;
	struct zero_device_sum args = {
		.count = count, .n = n, .from = from, .accumulate = accumulate};

	for (int k = 0; k < n; k++) {
		in[k] = random_elements(from, count, same);
		/* NaNs and infinities are for the sums of few: of many, all would be NaN. */
		for (size_t i = 0; from == ZERO_F32 && n > 2 && i < count; i++)
			((float *)in[k].out)[i] = random_sane();
		args.in[k] = in[k].out;
	}
	if (own >= 0)
		memcpy(right.out, in[own].out, right.bytes);
	o = copy_of(&right);
	args.out = o.out;
	if (own >= 0)
		args.in[own] = right.out;
	scalar->sum(right.out, from, args.in, n, count, accumulate);
	if (own >= 0)
		args.in[own] = o.out;
	launch("zero_device_sum", &args);
	same_bits(&right, &o, "sum", count);
	for (int k = 0; k < n; k++)
		free(in[k].base);
}

START_TEST(sums_are_the_hosts)
{
	static const int ns[] = {1, 2, 3, 8, 9, 16, 17, 64};

	for (size_t c = 0; c < COUNT_OF(counts); c++)
		for (size_t k = 0; k < COUNT_OF(ns); k++)
			for (size_t t = 0; t < 3; t++) {
				const int own = (int)(random64() % (uint64_t)ns[k]);

				sum_is_the_hosts(floats[t], ns[k], counts[c], false, -1);
				sum_is_the_hosts(floats[t], ns[k], counts[c], true, -1);
				if (floats[t] == ZERO_F32)
					sum_is_the_hosts(ZERO_F32, ns[k], counts[c], c % 2, own);
			}
}
END_TEST

/* ---- norms ----------------------------------------------------------------------------------- */

static double norm2_of(const float *x, size_t count)
{
	const size_t parts = zero_norm2_parts(count);
	struct output o = output_new(parts * sizeof(double), 0), of = output_new(sizeof(double), 8);
	const struct zero_device_norm2 args = {x, count, o.out};
	const struct zero_device_norm2_fold fold = {o.out, parts, of.out};
	double sum;

	if (random64() % 2 && parts)
		zero_emulate_kernel("zero_device_norm2", (unsigned int)parts, &args, random64());
	else
		launch("zero_device_norm2", &args);
	zero_emulate_kernel("zero_device_norm2_fold", 1, &fold, random64());
	guards_stand(&o, "norm2");
	guards_stand(&of, "norm2_fold");
	memcpy(&sum, of.out, sizeof sum);
	free(o.base);
	free(of.base);
	return sum;
}

START_TEST(norms_are_right_and_always_the_same)
{
	static const size_t long_counts[] = {16384, 16385, 40000, BIG};

	for (size_t c = 0; c < COUNT_OF(counts) + COUNT_OF(long_counts); c++) {
		const size_t count =
			c < COUNT_OF(counts) ? counts[c] : long_counts[c - COUNT_OF(counts)];
		struct array a = random_array(count, 0, random_sane);
		const double sum = norm2_of(a.x, count);
		long double exact = 0;

		for (size_t i = 0; i < count; i++)
			exact += (long double)a.x[i] * (long double)a.x[i];
		must(fabsl(sum - exact) <= exact * 1e-13L, "norm2 of %zu: %.17g, not %.17Lg", count,
		     sum, exact);
		for (size_t offset = 0; offset < 5; offset++) {
			struct output o = output_of(a.x, count, offset);
			const double again = norm2_of(o.out, count);

			must(again == sum, "norm2 of %zu at +%zu: %.17g, then %.17g", count, offset,
			     sum, again);
			free(o.base);
		}
		free(a.base);
	}
}
END_TEST

START_TEST(norms_have_one_nan)
{
	const size_t count = 20000;
	struct array a = random_array(count, 1, random_sane);
	uint64_t bits;
	double sum;

	a.x[random64() % count] = -INFINITY;
	sum = norm2_of(a.x, count);
	ck_assert(isinf(sum) && sum > 0);
	a.x[random64() % count] = float_of(0xffc01234);
	sum = norm2_of(a.x, count);
	memcpy(&bits, &sum, sizeof bits);
	ck_assert_uint_eq(bits, 0x7ff8000000000000);
	free(a.base);
}
END_TEST

/* Also with more than ZERO_NORM2_PART elements in each of ZERO_NORM2_PARTS. */
START_TEST(parts_cover_all_elements)
{
	static const size_t powers[] = {0, 10, 14, 15, 20, 24, 25, 33, 40, 60};

	for (size_t p = 0; p < COUNT_OF(powers); p++)
		for (int t = 0; t < 1000; t++) {
			const size_t count = ((size_t)1 << powers[p]) + random64() % 5000;
			const size_t parts = zero_norm2_parts(count),
				     length = zero_norm2_length(count);

			must(parts && parts <= ZERO_NORM2_PARTS && length % 64 == 0 &&
				     length <= count / parts + 64 && count / parts <= length &&
				     length >= (count - 1) / parts + 1,
			     "%zu elements: %zu parts of %zu", count, parts, length);
		}
}
END_TEST

START_TEST(norms_of_many_parts)
{
	const size_t count = (size_t)ZERO_NORM2_PARTS * ZERO_NORM2_PART + 12345;
	struct array a = random_array(count, 0, random_sane);
	const double sum = norm2_of(a.x, count);
	long double exact = 0;

	for (size_t i = 0; i < count; i++)
		exact += (long double)a.x[i] * (long double)a.x[i];
	must(fabsl(sum - exact) <= exact * 1e-13L, "%.17g, not %.17Lg", sum, exact);
	free(a.base);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("device sums");
	TCase *tests = tcase_create("device sums");
	SRunner *runner = srunner_create(suite);

	find_sets();
	suite_add_tcase(suite, tests);
	tcase_set_timeout(tests, 300);
	tcase_add_test(tests, sums_are_the_hosts);
	tcase_add_test(tests, norms_are_right_and_always_the_same);
	tcase_add_test(tests, norms_have_one_nan);
	tcase_add_test(tests, parts_cover_all_elements);
	tcase_add_test(tests, norms_of_many_parts);

	srunner_run_all(runner, CK_VERBOSE);
	const int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
