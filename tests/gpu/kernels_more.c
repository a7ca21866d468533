/* SPDX-License-Identifier: Apache-2.0 */
/* Norms, what a step makes of them, random numbers, and copies of many pieces. */
#include "kernels.h"
#include "backend/step_rule.h"

/* ---- norm2 ----------------------------------------------------------------------------------- */

static double norm2_of(const float *x, size_t count)
{
	long double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += (long double)x[i] * (long double)x[i];
	return (double)sum;
}

/* An emulated device runs no more than 7 blocks of a long array, once. */
static const size_t grids[] = {0, 1, 7, 0, 3000};

static void one_norm2(size_t count)
{
	float *values = memory(count * 4);
	bool once = count > longest && count > 1 << 20;
	double want, first = -1, *sum = device_alloc(sizeof(double));
	double *parts = device_alloc(ZERO_NORM2_PARTS * sizeof(double));

	for (size_t i = 0; i < count; i++)
		values[i] = (float)ldexp((double)(int32_t)draw(), (int)(draw() % 40) - 50);
	want = norm2_of(values, count);
	/* Neither where the array begins, nor how many blocks there are, nor how often it is
	   asked makes another bit. */
	for (size_t s = 0; s < (once ? 1 : SHIFTS); s++) {
		size_t times = sizeof(grids) / sizeof(grids[0]);
		struct array x = array_new(values, count * 4, shifts[s] * 4);

		times = once ? 1 : longest < SIZE_MAX ? 3 : times;
		for (size_t again = 0; again < times; again++) {
			double got = device_norm2((float *)x.data, count, parts, sum, grids[again]);

			expect(fabs(got - want) <= 1e-12 * want, "norm2 of %zu: %.17g, not %.17g",
			       count, got, want);
			expect(first < 0 || !memcmp(&got, &first, sizeof(got)),
			       "norm2 of %zu: %a, before it was %a", count, got, first);
			first = got;
		}
		array_free(&x);
	}
	for (int infinite = 0; count && !once && infinite < 2; infinite++) {
		const uint64_t nan = 0x7ff8000000000000;
		struct array x;
		double got;

		values[draw() % count] = infinite ? -INFINITY : -NAN;
		if (infinite)
			for (size_t i = 0; i < count; i++)
				values[i] = isnan(values[i]) ? -INFINITY : values[i];
		x = array_new(values, count * 4, 4);
		got = device_norm2((float *)x.data, count, parts, sum, 0);
		expect(infinite ? isinf(got) && got > 0 : !memcmp(&got, &nan, sizeof(got)),
		       "norm2 of %zu: %g", count, got);
		array_free(&x);
	}
	device_free(parts);
	device_free(sum);
	free(values);
}

void check_norm2(void)
{
	static const size_t powers[] = {0, 10, 14, 15, 20, 24, 25, 33, 40, 60};

	/* Parts cover all elements, also where they are longer than ZERO_NORM2_PART. */
	for (size_t p = 0; p < 10 * 1000; p++) {
		size_t count = ((size_t)1 << powers[p / 1000]) + draw() % 5000;
		size_t parts = zero_norm2_parts(count), length = zero_norm2_length(count);

		expect(parts && parts <= ZERO_NORM2_PARTS && length % 64 == 0 &&
			       length <= count / parts + 64 && length >= (count - 1) / parts + 1,
		       "%zu elements: %zu parts of %zu", count, parts, length);
	}
	for (size_t c = 0; c < COUNTS && counts[c] <= longest; c++)
		one_norm2(counts[c]);
	one_norm2((size_t)ZERO_NORM2_PART);
	one_norm2((size_t)ZERO_NORM2_PART + 1);
	one_norm2((size_t)ZERO_NORM2_PART * 6 + 5);
	one_norm2((size_t)ZERO_NORM2_PART * ZERO_NORM2_PARTS + 77777);
}

/* ---- what a step does with the norm ---------------------------------------------------------- */

enum { MOST_RANKS = 3000 };

static zero_loss_scale some_scale(void)
{
	return (zero_loss_scale){.scale = (float)(1 << draw() % 8),
				 .good_steps = (uint32_t)(draw() % 3),
				 .growth = draw() % 2 ? 2 : 1e30F,
				 .backoff = 0.5F,
				 .min = 4,
				 .max = draw() % 2 ? 3e38F : 64,
				 .interval = (uint32_t)(draw() % 3)};
}

/* By the words of zero.h. */
static zero_loss_scale next_scale(zero_loss_scale scale, bool finite)
{
	double next = (double)scale.scale;

	scale.good_steps = finite ? scale.good_steps + 1 : 0;
	if (!finite)
		next = fmax(next * (double)scale.backoff, (double)scale.min);
	else if (scale.interval && scale.good_steps >= scale.interval)
		next = fmin(next * (double)scale.growth, (double)scale.max);
	if (finite && scale.interval && scale.good_steps >= scale.interval)
		scale.good_steps = 0;
	scale.scale = (float)next;
	return scale;
}

static double correction(float beta, uint64_t steps)
{
	return (double)(1 / (1 - powl((long double)beta, (long double)steps)));
}

static bool near(double got, double want, double tolerance)
{
	return fabs(got - want) <= tolerance * fabs(want);
}

/* Against the definition, and bit by bit against the host's. */
static void one_rule(struct zero_step_state before, const struct zero_step_rule *on_host,
		     const struct zero_step_state *after)
{
	struct zero_step_rule rule = *on_host;
	struct zero_step_state same = before;
	double mean = rule.mean / (rule.scaled ? (double)before.loss_scale.scale : 1), factor;
	long double sum = 0;
	zero_loss_scale scale;

	rule.state = &same;
	zero_step_rule_apply(&rule);
	expect((isnan(same.norm) ? isnan(after->norm) : same.norm == after->norm) &&
		       same.steps == after->steps && same.skipped == after->skipped &&
		       same.scale == after->scale,
	       "the host's state is another one: %a and %a, %a and %a", same.norm, after->norm,
	       (double)same.scale, (double)after->scale);
	for (int rank = 0; rank < rule.world; rank++)
		sum += (long double)rule.norms[rank];
	expect(after->skipped == !isfinite((double)sum), "skipped %u of %g", after->skipped,
	       (double)sum);
	scale = rule.scaled ? next_scale(before.loss_scale, !after->skipped) : before.loss_scale;
	expect(!memcmp(&scale, &after->loss_scale, sizeof(scale)), "a loss scale of %g, not %g",
	       (double)after->loss_scale.scale, (double)scale.scale);
	expect(after->steps == before.steps + !after->skipped, "%llu steps",
	       (unsigned long long)after->steps);
	if (after->skipped)
		return;
	expect(near(after->norm, sqrt((double)sum) * mean, 1e-12), "a norm of %g", after->norm);
	factor = rule.clip > 0 && after->norm > (double)rule.clip ? (double)rule.clip / after->norm
								  : 1;
	expect(near((double)after->scale, factor * mean, 1e-6), "a factor of %g, not %g",
	       (double)after->scale, factor * mean);
}

/* Each group's state has its own steps, and corrections by them. */
static void groups_by(const struct zero_step_state *state, const struct array *state_at)
{
	enum { MOST = 700 };
	static struct zero_step_state before[MOST], *after;
	const size_t count = 1 + draw() % MOST;
	struct zero_group_rule rule = {
		.state = (const struct zero_step_state *)(const void *)state_at->data,
		.count = count,
		.beta1 = unit(),
		.beta2 = 1 - 1e-3F * (0.01F + unit())}; /* less than 1, which is refused */
	struct array groups;

	for (size_t i = 0; i < count; i++)
		before[i] = (struct zero_step_state){
			.steps = draw() % 5 ? draw() % 9 : draw() >> 44, .scale = unit()};
	groups = array_new(before, count * sizeof(*before), 0);
	rule.groups = (struct zero_step_state *)(void *)groups.data;
	launch("zero_device_group_rule", &rule, count, 0);
	after = array_take(&groups, "group_rule");
	rule.state = state;
	for (size_t i = 0; i < count; i++) {
		struct zero_step_state same = before[i];

		zero_group_rule_apply(&rule, &same);
		expect(!memcmp(&same, &after[i], sizeof(same)), "the host's group %zu of %zu", i,
		       count);
		expect(after[i].skipped == state->skipped &&
			       after[i].steps == before[i].steps + !state->skipped,
		       "%llu steps", (unsigned long long)after[i].steps);
		if (state->skipped)
			continue;
		expect(after[i].scale == state->scale &&
			       near((double)after[i].correction1,
				    correction(rule.beta1, after[i].steps), 1e-6) &&
			       near((double)after[i].correction2,
				    correction(rule.beta2, after[i].steps), 1e-6),
		       "corrections of step %llu: %g and %g", (unsigned long long)after[i].steps,
		       (double)after[i].correction1, (double)after[i].correction2);
	}
	free(after);
}

/* A step takes scale and corrections from the state, and nothing if it is skipped. */
static void one_step_by(const struct zero_step_state *state, const struct array *state_at)
{
	enum { FEW = 37 };
	struct zero_device_adamw args = {
		.args = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-8F},
		.state = (const struct zero_step_state *)(const void *)state_at->data,
		.count = FEW};
	float values[4][FEW], *got;
	struct array arrays[4];

	random_values(ZERO_F32, values, 4 * FEW);
	for (int i = 0; i < FEW; i++)
		values[2][i] = fabsf(values[2][i]);
	for (int i = 0; i < 4; i++)
		arrays[i] = array_new(values[i], sizeof(values[i]), 0);
	args.p = (float *)arrays[0].data;
	args.moments.m = (float *)arrays[1].data;
	args.moments.v = (float *)arrays[2].data;
	args.g = (float *)arrays[3].data;
	launch("zero_device_adamw", &args, FEW, 0);
	args.args = zero_adamw_args_of_step(&args.args, state);
	if (!state->skipped)
		host->adamw(&args.args, values[0], values[1], values[2], values[3], NULL,
			    ZERO_DTYPE_PARAM, FEW);
	for (int i = 0; i < 3; i++) {
		got = array_take(&arrays[i], "a step by the state");
		expect(!memcmp(got, values[i], sizeof(values[i])), "array %d, skipped %u", i,
		       state->skipped);
		free(got);
	}
	array_free(&arrays[3]);
}

void check_step_rule(void)
{
	static const int worlds[] = {1, 2, 3, 17, 256, MOST_RANKS};
	double *norms = memory(MOST_RANKS * sizeof(double));

	for (int turn = 0; turn < 300; turn++) {
		struct zero_step_state before = {.steps = draw() % 5 ? draw() % 9 : draw() >> 44,
						 .loss_scale = some_scale()},
				       *after;
		struct zero_step_rule rule = {.norms = norms,
					      .world = worlds[turn % 6],
					      .scaled = draw() % 2,
					      .mean = 1.0 / (1 + (double)(draw() % 64)),
					      .clip = draw() % 2 ? unit() : 0},
				      on_device = rule;
		struct array state, of_ranks;

		for (int rank = 0; rank < rule.world; rank++)
			norms[rank] = ldexp((double)(draw() >> 11), (int)(draw() % 40) - 60);
		if (draw() % 4 == 0)
			norms[draw() % (size_t)rule.world] = draw() % 2 ? INFINITY : (double)NAN;
		of_ranks = array_new(norms, (size_t)rule.world * sizeof(double), 0);
		state = array_new(&before, sizeof(before), 0);
		on_device.norms = (const double *)(const void *)of_ranks.data;
		on_device.state = (struct zero_step_state *)(void *)state.data;
		launch("zero_device_step_rule", &on_device, 1, 1);
		after = memory(sizeof(*after));
		download(after, state.data, sizeof(*after));
		synchronise();
		one_rule(before, &rule, after);
		groups_by(after, &state);
		one_step_by(after, &state);
		free(array_take(&state, "step_rule"));
		array_free(&of_ranks);
		free(after);
	}
	free(norms);
}

/* ---- random numbers -------------------------------------------------------------------------- */

static void one_random(bool uniform, zero_dtype dtype, size_t first, size_t count, size_t shift,
		       double a, double b)
{
	size_t size = zero_dtype_size(dtype);
	struct array out = array_new(NULL, count * size, shift * size);
	uint64_t stream = draw();
	struct zero_device_random args =
		random_args(dtype, out.data, first, count, a, b, stream, uniform);
	const char *name = uniform ? "zero_device_uniform" : "zero_device_normal";
	char *want = memory(count * size), *got;

	launch(name, &args, count, shift == 3 ? 1 : 0);
	got = array_take(&out, name);
	if (uniform)
		host->fill_uniform(dtype, want, first, count, a, b, seed, stream);
	else
		host->fill_normal(dtype, want, first, count, a, b, seed, stream);
	for (size_t i = 0; i < count; i++)
		expect(!memcmp(got + i * size, want + i * size, size),
		       "%s of %s, %g and %g: element %zu + %zu of %zu differs", name,
		       zero_dtype_name(dtype), a, b, first, i, count);
	free(got);
	free(want);
}

void check_random(void)
{
	static const zero_dtype types[] = {ZERO_F32, ZERO_F16, ZERO_BF16, ZERO_F64};
	const size_t firsts[] = {0, 1, 5, 1022, ((size_t)1 << 34) + draw() % 8};
	static const double ends[][2] = {
		{-1, 1}, {0, 1}, {-0.02, 0.02}, {1, 1.0001}, {3.25, 70000}};

	for (size_t t = 0; t < 4; t++)
		for (size_t f = 0; f < 5; f++)
			for (size_t c = 0; c < COUNTS && counts[c] <= longest; c++) {
				size_t shift = shifts[(c + f) % SHIFTS];
				const double *e = ends[(c + f + t) % 5];

				one_random(true, types[t], firsts[f], counts[c], shift, e[0], e[1]);
				one_random(false, types[t], firsts[f], counts[c], shift, e[0],
					   e[1]);
			}
}

/* ---- copies of many pieces ------------------------------------------------------------------- */

struct pieces {
	size_t count, bytes;
	struct zero_device_piece *pieces; /* offsets, until they are added to arrays */
	uint64_t *starts;
};

/* Odd lengths with odd gaps between them, some empty, some of several tiles. */
static struct pieces pieces_new(size_t count)
{
	struct pieces p = {.count = count,
			   .pieces = memory(count * sizeof(*p.pieces)),
			   .starts = memory((count + 1) * sizeof(*p.starts))};
	size_t from = 0, to = 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = draw();
		size_t bytes = bits % 7 == 0   ? 0
			       : bits % 7 == 1 ? ZERO_COPY_TILE * (bits >> 8 & 3)
			       : bits % 7 == 2 ? (bits >> 8) % (3 * ZERO_COPY_TILE)
					       : (bits >> 8) % 700;

		p.pieces[i] = (struct zero_device_piece){(void *)to, (void *)from, bytes};
		/* half of them where both ends are aligned alike */
		from += bits & 64 ? bytes + 1 : (bytes / 16 + 1) * 16;
		to += bits & 64 ? bytes + 3 : (bytes / 16 + 2) * 16;
	}
	p.bytes = to > from ? to : from;
	return p;
}

static void one_copy_many(size_t count)
{
	struct pieces p = pieces_new(count);
	char *values = memory(p.bytes), *want = memory(p.bytes), *got;
	struct array in, out, pieces, starts;
	struct zero_device_copy_many args = {.count = count};

	for (size_t i = 0; i < p.bytes; i++)
		values[i] = (char)draw();
	memset(want, 0xa5, p.bytes);
	in = array_new(values, p.bytes, 0);
	out = array_new(NULL, p.bytes, 0);
	for (size_t i = 0; i < count; i++) {
		size_t from = (size_t)p.pieces[i].from, to = (size_t)p.pieces[i].to;

		memcpy(want + to, values + from, p.pieces[i].bytes);
		p.pieces[i].from = in.data + from;
		p.pieces[i].to = out.data + to;
	}
	tiles_of(p.pieces, count, p.starts);
	pieces = array_new(p.pieces, count * sizeof(*p.pieces), 0);
	starts = array_new(p.starts, (count + 1) * sizeof(*p.starts), 0);
	args.pieces = (void *)pieces.data;
	args.starts = (void *)starts.data;
	launch("zero_device_copy_many", &args, p.bytes, count % 2 ? 1 : 0);
	got = array_take(&out, "copy_many");
	for (size_t i = 0; i < p.bytes; i++)
		expect(got[i] == want[i], "copy_many of %zu: byte %zu of %zu", count, i, p.bytes);
	array_free(&in);
	array_free(&pieces);
	array_free(&starts);
	free(p.pieces);
	free(p.starts);
	free(values);
	free(want);
	free(got);
}

void check_copy_many(void)
{
	static const size_t numbers[] = {0, 1, 2, 3, 5, 17, 100, 300, 1000, 10001};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]) && numbers[i] <= longest / 64;
	     i++)
		one_copy_many(numbers[i]);
}

/* Blocks of any length, from any places, in the order of a table or one after the other. */
static void one_pack(size_t count, size_t bytes, size_t apart, bool ordered)
{
	size_t stride = bytes + apart, all = count * bytes;
	char *values = memory(count * stride + 1), *want = memory(all), *got;
	int *order = memory(count * sizeof(*order));
	struct array in, out, table;
	struct zero_device_pack args = {.bytes = bytes, .stride = stride, .count = count};

	for (size_t i = 0; i < count * stride; i++)
		values[i] = (char)draw();
	for (size_t k = 0; k < count; k++)
		order[k] = (int)(ordered ? draw() % count : k);
	for (size_t k = 0; k < count; k++)
		memcpy(want + k * bytes, values + (size_t)order[k] * stride, bytes);
	in = array_new(values, count * stride, 0);
	out = array_new(NULL, all, 0);
	table = array_new(order, count * sizeof(*order), 0);
	args.in = in.data;
	args.out = out.data;
	args.order = ordered ? (void *)table.data : NULL;
	launch("zero_device_pack", &args, all, all % 2 ? 1 : 0);
	got = array_take(&out, "pack");
	for (size_t i = 0; i < all; i++)
		expect(got[i] == want[i], "pack of %zu of %zu bytes: byte %zu", count, bytes, i);
	array_free(&in);
	array_free(&table);
	free(order);
	free(values);
	free(want);
	free(got);
}

void check_pack(void)
{
	static const size_t lengths[] = {1, 2, 30, 128, 4095, ZERO_COPY_TILE, ZERO_COPY_TILE + 6};
	static const size_t numbers[] = {1, 2, 3, 24};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
			if (lengths[i] * numbers[k] <= longest) {
				one_pack(numbers[k], lengths[i], 0, false);
				one_pack(numbers[k], lengths[i], 2 * (size_t)(draw() % 500), true);
			}
}
