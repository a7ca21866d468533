/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices: their runs are the parameter, each element once; values, sums, steps and checkpoints are
 * those of the same model without slices, to the bit; and neither the parameter nor its gradient
 * is whole anywhere. Shapes, settings and the order of slices are random, by ZERO_TEST_SEED.
 */
#include "ranks.h"

enum { MOST = 120000, STEPS = 3, PLAIN = 999 };

static int world, rank, sliced;

struct model {
	zero_job *job;
	zero_group *sliced, *plain;
	zero_param *large, *small;
	zero_dtype dtype, gradient, gather;
	size_t count;
	char options[160];
};

static float value(size_t i)
{
	return signed_unit(mixed(i + 77));
}

/* A rank's gradient of an element, in one of its reduces of a step. */
static float gradient(int step, int turn, size_t i)
{
	return signed_unit(mixed(((size_t)(rank * 8 + step) * 4 + (size_t)turn) * MOST + i)) / 4;
}

static float widened(const void *data, zero_dtype dtype, size_t i)
{
	union {
		uint32_t bits;
		float f;
	} u;

	if (dtype == ZERO_F32)
		return ((const float *)data)[i];
	u.bits = (uint32_t)((const uint16_t *)data)[i] << 16;
	return u.f;
}

static void put(void *data, zero_dtype dtype, size_t i, float f)
{
	union {
		float f;
		uint32_t bits;
	} u = {.f = f};

	if (dtype == ZERO_F32)
		((float *)data)[i] = f;
	else
		((uint16_t *)data)[i] = (uint16_t)(u.bits >> 16);
}

static zero_status fill(void *context, void *data, size_t first, size_t count)
{
	const struct model *m = context;

	for (size_t i = 0; i < count; i++)
		put(data, m->dtype, i, value(first + i));
	return ZERO_OK;
}

/* `slices`: bytes of each, 0 for none. */
static void begin(struct model *m, const size_t *shape, int ndim, size_t slices)
{
	zero_param_spec spec = {.name = "large",
				.dtype = m->dtype,
				.ndim = ndim,
				.shape = shape,
				.trainable = true};
	zero_source source = zero_from_callback(fill, m);
	zero_source one = zero_from_constant(1);

	m->job = open_job("%s", m->options);
	ok(zero_group_new(m->job, "experts", NULL, &m->sliced));
	ok(zero_group_new(m->job, "rest", NULL, &m->plain));
	ok(zero_group_set_slices(m->sliced, slices));
	ok(zero_group_gradient_dtype(m->sliced, m->gradient));
	ok(zero_param_new(m->sliced, &spec, &m->large));
	m->small = new_param(m->plain, "small", ZERO_F32, PLAIN, true);
	m->count = zero_param_numel(m->large);
	ok(zero_layout(m->job));
	ok(zero_load(m->large, &source));
	ok(zero_load(m->small, &one));
}

/* Reads all slices in an order that is the same on all ranks. */
static void read_slices(struct model *m, uint64_t seed, float *all)
{
	size_t slices = zero_group_slice_count(m->sliced), seen = 0;
	zero_run runs[16], longest;

	zero_slice_runs(zero_group_slice(m->sliced, 0), runs);
	longest = runs[0];
	check(longest.first == 0, "the first run begins with %zu", longest.first);
	for (size_t n = 0, at = below(&seed, slices); n < slices; n++, at = (at + 1) % slices) {
		zero_group *slice = zero_group_slice(m->sliced, at);
		zero_group *next = zero_group_slice(m->sliced, (at + 1) % slices);
		zero_dtype as = m->gather == ZERO_DTYPE_PARAM ? m->dtype : m->gather;
		size_t count, last = 0;
		const void *data;

		ok(zero_gather(slice, m->gather));
		if (n + 1 < slices && seed % 2)
			ok(zero_prefetch(&next, 1, m->gather));
		data = zero_slice_data(slice);
		count = zero_slice_runs(slice, runs);
		check(count <= (size_t)world, "%zu runs", count);
		if (zero_slice_address(slice, m->gather))
			check(zero_slice_address(slice, m->gather) == data, "at another address");
		for (size_t r = 0; r < count; r++) {
			check(runs[r].count && runs[r].first >= last, "run %zu", r);
			check(runs[r].count <= longest.count, "run %zu is longer than the first",
			      r);
			last = runs[r].first + runs[r].count;
			check(last <= m->count, "beyond the end");
			for (size_t i = 0; i < runs[r].count; i++)
				all[runs[r].first + i] = widened(data, as, runs[r].at + i);
			seen += runs[r].count;
		}
		ok(zero_release(slice));
	}
	check(seen == m->count, "%zu of %zu elements", seen, m->count);
	check(!zero_group_slice(m->sliced, slices), "a slice too many");
}

/* Some slices twice, and in the last step some not at all. */
static bool is_reduced(int step, int turn, size_t slice)
{
	return turn == 0 ? step < STEPS - 1 || slice % 3 : (slice + (size_t)step) % 2;
}

/* Whether the slice that has element i was reduced, of a model without slices as well: they share
   what `of` says. */
static void reduce_slices(struct model *m, int step, const size_t *of)
{
	zero_run runs[16];

	for (int turn = 0; turn < 2; turn++)
		for (size_t s = zero_group_slice_count(m->sliced); s-- > 0;) {
			zero_group *slice = zero_group_slice(m->sliced, s);
			size_t count = zero_slice_runs(slice, runs);
			void *data;

			if (zero_group_slice_count(m->sliced) > 1 && !is_reduced(step, turn, s))
				continue;
			data = zero_slice_gradient(slice, m->gradient);
			check(data, "%s", zero_last_error());
			for (size_t r = 0; r < count; r++)
				for (size_t i = 0; i < runs[r].count; i++) {
					size_t e = runs[r].first + i;

					put(data, m->gradient, runs[r].at + i,
					    is_reduced(step, turn, of[e]) ? gradient(step, turn, e)
									  : 0);
				}
			ok(zero_reduce(slice));
		}
}

static void train(struct model *m, int step, const size_t *of)
{
	const zero_adamw adamw = {.lr = 0.125F,
				  .beta1 = 0.5F,
				  .beta2 = 0.75F,
				  .eps = 0.5F,
				  .weight_decay = 0.125F,
				  .micro_batches = 1};
	float *small;

	reduce_slices(m, step, of);
	small = zero_gradient(m->small);
	for (size_t i = 0; i < PLAIN; i++)
		small[i] = gradient(step, 3, i);
	ok(zero_reduce(m->plain));
	ok(zero_step(m->job, &adamw, NULL));
}

/* The slice of each element; UINT64_MAX where there is none. */
static void number(struct model *m, size_t *of)
{
	zero_run runs[16];

	for (size_t i = 0; i < m->count; i++)
		of[i] = SIZE_MAX;
	for (size_t s = 0; s < zero_group_slice_count(m->sliced); s++) {
		size_t count = zero_slice_runs(zero_group_slice(m->sliced, s), runs);

		for (size_t r = 0; r < count; r++)
			for (size_t i = 0; i < runs[r].count; i++) {
				check(of[runs[r].first + i] == SIZE_MAX, "an element of two");
				of[runs[r].first + i] = s;
			}
	}
	for (size_t i = 0; i < m->count; i++)
		check(of[i] != SIZE_MAX, "element %zu is of none", i);
}

/* Two slices are there at a time, of so many bytes or of one row for each rank, and the group that
   has none. */
static void check_memory(struct model *m, size_t row, size_t slice_bytes)
{
	size_t rows = row, least;
	zero_memory memory;

	if (zero_group_slice_count(m->sliced) == 1 || on_gpu())
		return;
	while (rows % 256)
		rows += row;
	least = rows * (size_t)world * 4;
	ok(zero_memory_now(m->job, &memory));
	slice_bytes = (slice_bytes > least ? slice_bytes : least) + 4096;
	check(memory.gathered.peak <= 2 * slice_bytes, "%zu gathered in slices of %zu",
	      memory.gathered.peak, slice_bytes);
}

static void same(const float *a, const float *b, size_t count, const char *when)
{
	for (size_t i = 0; i < count; i++)
		check(a[i] == b[i], "%s: element %zu is %g, not %g", when, i, (double)a[i],
		      (double)b[i]);
}

static void one_case(uint64_t *seed)
{
	static const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16};
	static const char *const more[] = {"", " offload=optimizer", " allgather=single"};
	static float now[MOST], whole[MOST], restored[MOST];
	static size_t of[MOST];
	/* rows of mostly powers of two: others are padded to many */
	size_t shape[3] = {1 + below(seed, 5), 1 + below(seed, 60),
			   ((size_t)8 << below(seed, 5)) * (1 + below(seed, 3))};
	int ndim = 3 - (int)below(seed, 5) / 2, shard = world, stage = below(seed, 8) ? 3 : 1;
	struct model m = {.dtype = dtypes[below(seed, 2)],
			  .gradient = dtypes[below(seed, 2)],
			  .gather = ZERO_DTYPE_PARAM},
		     other;
	size_t slice_bytes;
	char folder[1200];

	if (ndim == 1)
		shape[2] *= 300;
	if (below(seed, 3) == 0 && m.dtype == ZERO_F32)
		m.gather = ZERO_BF16;
	for (int part = 1 + (int)below(seed, 3); part > 1; part--)
		if (world % part == 0 && stage == 3 && (world > part || below(seed, 8) == 0))
			shard = world / part;
	slice_bytes = 1 + below(seed, 8000);
	snprintf(m.options, sizeof(m.options), "stage=%d share=1%s", stage, more[below(seed, 3)]);
	if (shard < world)
		snprintf(m.options + strlen(m.options), 32, " shard=%d", shard);
	if (below(seed, 4) == 0)
		strcat(m.options, " check=1");
	other = m;
	begin(&m, shape + 3 - ndim, ndim, slice_bytes);
	number(&m, of);
	sliced += zero_group_slice_count(m.sliced) > 1;
	for (int step = 0; step < STEPS; step++) {
		read_slices(&m, draw(seed), now);
		for (size_t i = 0; !step && i < m.count; i++)
			put(&whole[i], ZERO_F32, 0, now[i]);
		train(&m, step, of);
	}
	read_slices(&m, draw(seed), now);
	check_memory(&m, ndim > 1 ? shape[2] : 1, slice_bytes);
	snprintf(folder, sizeof(folder), "%s", file_path("slices"));
	ok(zero_save(m.job, folder, NULL));
	ok(zero_close(m.job));
	/* the same without slices, which takes up what the other has saved */
	begin(&other, shape + 3 - ndim, ndim, 0);
	for (int step = 0; step < STEPS; step++)
		train(&other, step, of);
	read_slices(&other, 0, whole);
	same(now, whole, m.count, m.options);
	ok(zero_close(other.job));
	begin(&other, shape + 3 - ndim, ndim, below(seed, 2) ? 0 : 1 + below(seed, 50000));
	ok(zero_restore(other.job, folder, NULL));
	read_slices(&other, draw(seed), restored);
	same(now, restored, m.count, "restored");
	ok(zero_close(other.job));
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(void)
{
	size_t shape[] = {64, 512};
	struct model m = {.dtype = ZERO_F32,
			  .gradient = ZERO_F32,
			  .gather = ZERO_DTYPE_PARAM,
			  .options = "stage=3 share=1 check=1"};
	zero_group *slice;
	zero_job *job;
	float *data;

	job = open_job("stage=3");
	slice = new_group(job, "two");
	ok(zero_group_set_slices(slice, 1));
	new_param(slice, "a", ZERO_F32, 10, true);
	new_param(slice, "b", ZERO_F32, 10, true);
	fails(zero_layout(job), ZERO_E_INVALID, "has 2 parameters");
	ok(zero_close(job));

	begin(&m, shape, 2, 40000);
	fails(zero_group_set_slices(m.sliced, 1), ZERO_E_STATE, "before zero_layout");
	slice = zero_group_slice(m.sliced, 0);
	if (zero_group_slice_count(m.sliced) > 1) {
		check(!zero_slice_data(slice), "it is not gathered");
		check(!zero_gradient(m.large), "a whole gradient");
		check(strstr(zero_last_error(), "zero_slice_gradient"), "%s", zero_last_error());
		fails(zero_reduce(m.sliced), ZERO_E_STATE, "reduce each of them");
		check(!zero_slice_gradient(slice, ZERO_BF16), "another dtype");
		check(strstr(zero_last_error(), "slice 0 has no gradient of bf16: f32"), "%s",
		      zero_last_error());
	}
	ok(zero_gather(slice, ZERO_DTYPE_PARAM));
	fails(zero_step_begin(m.job, &m.sliced, 1), ZERO_E_STATE, "release it before");
	fails(zero_write_begin(m.sliced), ZERO_E_STATE, "gathered");
	fails(zero_save(m.job, file_path("not"), NULL), ZERO_E_STATE, "gathered");
	ok(zero_release(slice));
	fails(zero_release(slice), ZERO_E_STATE, "not gathered");
	ok(zero_step_begin(m.job, &m.sliced, 1));
	fails(zero_gather(slice, ZERO_DTYPE_PARAM), ZERO_E_STATE, "zero_step_end");
	ok(zero_step_end(m.job, NULL));
	/* a gradient of one rank alone that was not reduced */
	if (zero_group_slice_count(m.sliced) > 1) {
		const zero_adamw adamw = {.lr = 1, .eps = 1};

		if (zero_rank(m.job) == 0)
			check(zero_slice_gradient(slice, ZERO_F32), "%s", zero_last_error());
		fails(zero_step(m.job, &adamw, NULL), ZERO_E_STATE,
		      "slice 0 has a gradient that was not reduced");
		ok(zero_step(m.job, &adamw, NULL));
	}
	/* an exception: what was begun is gone */
	ok(zero_gather(slice, ZERO_DTYPE_PARAM));
	check(zero_slice_gradient(slice, ZERO_F32), "%s", zero_last_error());
	ok(zero_reset(m.job));
	check(!zero_slice_data(slice), "it is gathered after a reset");
	if (zero_group_slice_count(m.sliced) > 1) {
		ok(zero_gather(slice, ZERO_DTYPE_PARAM));
		data = zero_slice_data(slice);
		data[3]++;
		fails(zero_release(slice), ZERO_E_STATE, "'large' was changed");
	}
	ok(zero_close(m.job));
}

int main(void)
{
	uint64_t seed = test_seed();
	zero_job *job = open_job("stage=3");
	const char *more = getenv("ZERO_TEST_SEEDS");

	world = zero_world(job);
	rank = zero_rank(job);
	ok(zero_close(job));
	refused();
	for (int i = 0; i < 25 * (more ? atoi(more) : 1); i++)
		one_case(&seed);
	check(world == 1 || sliced > 0, "%d cases had slices", sliced);
	return 0;
}
