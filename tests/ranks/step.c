/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step can do beside its plain form: batches of uneven size, a loss scale, optimizer states
 * in host memory, gradients of 16 bits, new values that are still under way. Parameters are
 * compared bit for bit with a reference in plain arrays, at every stage, with and without shared
 * memory.
 */
#include <math.h>

#include "step_model.h"

enum { STEPS = 4 };

/* ---- uneven batches -------------------------------------------------------------------------- */

/* Of which rank's gradient is how many samples; 0 of any. */
static double samples(int pass, int from)
{
	uint64_t bits = mixed(seed + (uint64_t)(pass * 64 + from));

	if (pass == 0) /* only one rank has any */
		return from == last ? 7 : 0;
	if (pass == 1) /* as if there were no samples */
		return 0;
	return (double)(bits % 3 ? bits % 1000 : 0) * 0.25 + (from == 0);
}

static void uneven(const char *settings)
{
	zero_adamw adamw = plain;
	struct model m;

	begin(&m, settings, NULL);
	for (int pass = 0; pass < STEPS; pass++) {
		double total = 0;

		for (int from = 0; from < world; from++)
			total += samples(pass, from);
		adamw.samples = samples(pass, rank);
		adamw.micro_batches = pass % 2;
		adamw.clip = pass == 3 ? 1e-3F : 0;
		backward(&m, 1);
		step(&m, &adamw, total > 0 ? 1 / total : 1 / (double)world);
		compare(&m);
	}
	end(&m);
}

static void refused_samples(void)
{
	static const double wrong[] = {-1, NAN, INFINITY, 1e17};
	zero_adamw adamw = plain;
	struct model m;

	begin(&m, "", NULL);
	for (size_t i = 0; i < 4; i++) {
		adamw.samples = rank == last ? wrong[i] : 1;
		fails(zero_step(m.job, &adamw, NULL), ZERO_E_INVALID, "it must be 0 to 2^53");
		check(zero_last_error_rank() == last, "%d", zero_last_error_rank());
	}
	adamw.micro_batches = 2;
	adamw.samples = rank == last ? 0.5 : 0;
	fails(zero_step(m.job, &adamw, NULL), ZERO_E_INVALID, "leave micro_batches 0");
	compare(&m);
	end(&m);
}

/* ---- loss scale ------------------------------------------------------------------------------ */

/* All values and norms of a training, as one number. */
static uint64_t scaled_training(const char *settings, float factor, float clip)
{
	zero_adamw adamw = plain;
	zero_loss_scale scale;
	uint64_t digest = 0, bits;
	struct model m;

	zero_loss_scale_init(&scale);
	scale.scale = scale.min = factor;
	adamw.loss_scale = factor > 0 ? &scale : NULL;
	adamw.clip = clip;
	begin(&m, settings, NULL);
	for (int pass = 0; pass < STEPS; pass++) {
		double mean = 1 / (double)world, norm;

		backward(&m, factor > 0 ? factor : 1);
		norm = step(&m, &adamw, factor > 0 ? mean / (double)factor : mean);
		memcpy(&bits, &norm, sizeof(bits));
		digest = mixed(digest ^ bits);
		compare(&m);
	}
	for (size_t p = 0; p < PARAMS; p++)
		for (size_t i = 0; i < tensors[p].count * zero_dtype_size(tensors[p].dtype); i++)
			digest = mixed(digest + m.refs[p].values[i]);
	end(&m);
	return digest;
}

/* Powers of two leave no trace; others are divided out. */
static void static_scales(const char *settings)
{
	for (int clip = 0; clip < 2; clip++) {
		uint64_t want = scaled_training(settings, 0, 0.5F * (float)clip);

		check(scaled_training(settings, 0x1p13F, 0.5F * (float)clip) == want, "2^13");
		check(scaled_training(settings, 0x1p-7F, 0.5F * (float)clip) == want, "2^-7");
	}
	scaled_training(settings, 3, 0);
}

static void dynamic_scale(const char *settings)
{
	zero_loss_scale scale;
	zero_adamw adamw = plain;
	/* after each step; in steps 2 and 6 to 8 one rank's gradient is not finite */
	static const float want[] = {8, 16, 8, 8, 16, 16, 8, 4, 4, 4, 8, 8, 16, 16, 20, 20, 20};
	static const unsigned good[] = {1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0};
	struct model m;

	zero_loss_scale_init(&scale);
	check(scale.scale == 65536 && scale.growth == 2 && scale.backoff == 0.5F &&
		      scale.interval == 2000 && !scale.good_steps,
	      "the first scale");
	scale.scale = 8;
	scale.interval = 2;
	scale.min = 4;
	scale.max = 20;
	adamw.loss_scale = &scale;
	begin(&m, settings, NULL);
	for (int pass = 0; pass < 17; pass++) {
		bool bad = pass == 2 || (pass >= 6 && pass <= 8);
		int from = pass % world;
		float value = pass % 2 ? INFINITY : NAN, *own;
		double mean = 1 / (double)world / (double)scale.scale;

		backward(&m, scale.scale);
		m.refs[0].pending[from][2999] = bad ? value : m.refs[0].pending[from][2999];
		if (bad && rank == from) {
			own = zero_gradient(m.params[0]);
			check(own, "%s", zero_last_error());
			own[2999] = value;
		}
		/* It may have come after a reduce: now it counts for this step. */
		ok(zero_reduce(m.groups[0]));
		ref_reduce(&m.refs[0], m.reduced[0]);
		ref_reduce(&m.refs[1], m.reduced[0]);
		m.reduced[0] = true;
		step(&m, &adamw, mean);
		check(scale.scale == want[pass] && scale.good_steps == good[pass],
		      "%s, step %d: scale %g after %u", settings, pass, (double)scale.scale,
		      scale.good_steps);
		compare(&m);
	}
	end(&m);
}

static void refused_scales(void)
{
	static const zero_loss_scale wrong[] = {
		{.scale = 0, .growth = 2, .backoff = 0.5F, .max = 9},
		{.scale = NAN, .growth = 2, .backoff = 0.5F, .min = 1, .max = 9},
		{.scale = 1, .growth = 2, .backoff = 0.5F, .min = 2, .max = 9},
		{.scale = 10, .growth = 2, .backoff = 0.5F, .min = 2, .max = 9},
		{.scale = 8, .growth = 2, .backoff = 0.5F, .min = 2, .max = INFINITY},
		{.scale = 8, .growth = 0.5F, .backoff = 0.5F, .min = 2, .max = 9},
		{.scale = 8, .growth = 2, .backoff = 1.5F, .min = 2, .max = 9},
		{.scale = 8, .growth = 2, .backoff = 0, .min = 2, .max = 9},
	};
	zero_loss_scale scale;
	zero_adamw adamw = plain;
	struct model m;

	begin(&m, "", NULL);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		scale = wrong[i];
		adamw.loss_scale = &scale;
		fails(zero_step(m.job, &adamw, NULL), ZERO_E_INVALID, "the loss scale is");
		check(!memcmp(&scale, &wrong[i], sizeof(scale)), "changed by a failed step");
	}
	compare(&m);
	if (world > 1) {
		zero_loss_scale_init(&scale);
		scale.good_steps = rank == last;
		fails(zero_step(m.job, &adamw, NULL), ZERO_E_ORDER,
		      "step 1 with loss scale 65536 after 1 good steps");
	}
	end(&m);
}

/* ---- optimizer states in host memory --------------------------------------------------------- */

/* In pieces of `chunk`, if they are staged; 0: states where the values are. */
static void offloaded(const char *settings, size_t chunk, bool staged)
{
	zero_memory memory;
	struct model m;
	char text[128];

	snprintf(text, sizeof(text), "%s%s staged=%d stream_chunk=%zu", settings,
		 chunk ? " offload=optimizer" : "", staged, chunk ? chunk : 1000);
	begin(&m, text, NULL);
	for (int pass = 0; pass < STEPS; pass++) {
		/* Masters follow what is loaded. */
		if (pass == 2)
			load(&m, seed + 1);
		backward(&m, 1);
		step(&m, &plain, 1 / (double)world);
		compare(&m);
	}
	ok(zero_memory_now(m.job, &memory));
	check(!memory.optimizer.peak == !!chunk, "%s: %zu on the device", text,
	      memory.optimizer.peak);
	check(!memory.offload.peak == !chunk, "%s: %zu in host memory", text, memory.offload.peak);
	check(memory.total.now == memory.shards.now + memory.gathered.now + memory.gradients.now +
					  memory.optimizer.now + memory.staging.now,
	      "%s: total %zu", text, memory.total.now);
	end(&m);
}

/* What states take, and the pieces that values come and go by. */
static void offloaded_bytes(bool staged)
{
	size_t count = 64 * 1024 * (size_t)world, chunk = 65536;
	zero_job *job =
		open_job("stage=3 offload=optimizer staged=%d stream_chunk=%zu", staged, chunk);
	zero_param *param = new_param(new_group(job, "p"), "p", ZERO_BF16, count, true);
	zero_memory before, after;
	size_t held;

	ok(zero_layout(job));
	check(zero_gradient(param), "%s", zero_last_error());
	ok(zero_memory_now(job, &before));
	ok(zero_step(job, &plain, NULL));
	ok(zero_memory_now(job, &after));
	check(after.offload.now == 12 * count / (size_t)world, "%zu", after.offload.now);
	/* With a GPU they are page-locked. */
	held = after.staging.now + after.pinned.now - before.staging.now - before.pinned.now;
	check(held == (staged || on_gpu() ? 2 * chunk : 0), "staging: %zu", held);
	ok(zero_close(job));
}

/* What a rank must hold beside a flat buffer shows in the tier that this is made by. */
static void offload_in_plan(void)
{
	/* of f32; parts of 1 to 4 ranks are whole pages */
	uint64_t flat = UINT64_C(12) << 20, ranks = (uint64_t)world;

	for (int offload = 0; offload < 2; offload++)
		for (int low = 0; low < 2; low++)
			for (int less = 0; less < 2; less++) {
				/* values, own gradients, sums, two moments */
				uint64_t need = flat +
						(low         ? flat / 2
						 : world > 1 ? flat
							     : 0) +
						flat / ranks + (offload ? 0 : 2 * flat / ranks);
				zero_job *job;
				zero_group *group;
				zero_memory memory;

				job = open_job("stage=2 share=1");
				ok(zero_memory_now(job, &memory));
				need += memory.staging.now + flat;
				ok(zero_close(job));
				job = open_job("stage=2 share=1 offload=%s budget=%llu",
					       offload ? "optimizer" : "none",
					       (unsigned long long)(need - (uint64_t)less));
				group = new_group(job, "g");
				new_param(group, "p", ZERO_F32, flat / 4, true);
				ok(zero_group_gradient_dtype(group, low ? ZERO_BF16 : ZERO_F32));
				ok(zero_layout(job));
				check(!strcmp(zero_setting(job, "flatten"), "device") == !less,
				      "%s: offload %d, low %d, %d less",
				      zero_setting(job, "flatten"), offload, low, less);
				ok(zero_close(job));
			}
}

/* ---- gradients of 16 bits -------------------------------------------------------------------- */

static const zero_dtype low[GROUPS] = {ZERO_BF16, ZERO_F16, ZERO_F32, ZERO_BF16};

static void low_gradients(const char *settings)
{
	zero_adamw adamw = plain;
	struct model m;

	begin(&m, settings, low);
	for (int pass = 0; pass < STEPS; pass++) {
		adamw.clip = pass % 2 ? 0.25F : 0;
		backward(&m, 1);
		step(&m, &adamw, 1 / (double)world);
		compare(&m);
	}
	end(&m);
}

/* What f16 cannot hold is found. */
static void low_overflow(void)
{
	uint16_t *sums, infinity = 0x7c00;
	zero_adamw adamw = plain;
	zero_step_result result;
	zero_loss_scale scale;
	struct model m;

	zero_loss_scale_init(&scale);
	adamw.loss_scale = &scale;
	begin(&m, "", low);
	sums = zero_gradient_as(m.params[3], ZERO_F16);
	check(sums && !sums[1000], "%s", zero_last_error());
	if (rank == last)
		sums[1000] = infinity;
	ok(zero_step(m.job, &adamw, &result));
	check(result.skipped && result.loss_scale == 32768 && scale.scale == 32768, "%d, %g",
	      result.skipped, (double)result.loss_scale);
	compare(&m);
	end(&m);
}

static void refused_gradients(void)
{
	struct model m;
	zero_group *group;
	zero_job *job;

	begin(&m, "", low);
	check(!zero_gradient(m.params[0]), "a gradient of the wrong type");
	fails(ZERO_E_INVALID, ZERO_E_INVALID, "'a' is asked for its gradient as f32, but group");
	fails(ZERO_E_INVALID, ZERO_E_INVALID, "has gradients of bf16");
	check(!zero_gradient_as(m.params[4], ZERO_F16), "a gradient of the wrong type");
	fails(ZERO_E_INVALID, ZERO_E_INVALID, "has gradients of f32");
	check(zero_gradient(m.params[4]), "%s", zero_last_error());
	fails(zero_group_gradient_dtype(m.groups[0], ZERO_F32), ZERO_E_STATE, "before zero_layout");
	end(&m);
	job = open_job("stage=3");
	group = new_group(job, "g");
	new_param(group, "p", ZERO_F32, 10, true);
	fails(zero_group_gradient_dtype(group, ZERO_I32), ZERO_E_INVALID, "gradients of i32");
	fails(zero_group_gradient_dtype(group, ZERO_DTYPE_PARAM), ZERO_E_INVALID,
	      "f32, f16 or bf16");
	ok(zero_group_gradient_dtype(group, rank == last ? ZERO_F16 : ZERO_BF16));
	if (world > 1)
		fails(zero_layout(job), ZERO_E_ORDER, "model");
	ok(zero_close(job));
}

/* Bytes that a reduce sends and keeps. */
static uint64_t reduced_bytes(int stage, zero_dtype dtype, size_t *kept)
{
	zero_job *job = open_job("stage=%d share=1", stage);
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, 4096 * 12, true);
	zero_traffic before, after;
	zero_memory memory;

	ok(zero_group_gradient_dtype(group, dtype));
	ok(zero_layout(job));
	check(zero_gradient_as(param, dtype), "%s", zero_last_error());
	ok(zero_memory_now(job, &memory));
	*kept = memory.gradients.now;
	ok(zero_traffic_now(job, &before));
	ok(zero_reduce(group));
	ok(zero_agree(job, NULL));
	ok(zero_traffic_now(job, &after));
	ok(zero_close(job));
	return after.bytes_sent - before.bytes_sent;
}

static void half_the_bytes(void)
{
	size_t wide, narrow;

	for (int stage = 0; stage <= 3; stage++) {
		uint64_t sent = reduced_bytes(stage, ZERO_F32, &wide);
		uint64_t less = reduced_bytes(stage, ZERO_BF16, &narrow);

		check(wide == 2 * narrow, "%zu and %zu", wide, narrow);
		if (world == 1)
			check(!sent && !less, "alone, %llu", (unsigned long long)sent);
		else if (stage) /* stage 0 gathers the sums of f32 too, just as many */
			check(sent == 2 * less && less, "stage %d: %llu and %llu", stage,
			      (unsigned long long)sent, (unsigned long long)less);
		else
			check(4 * less == 3 * sent && less, "%llu and %llu",
			      (unsigned long long)sent, (unsigned long long)less);
	}
}

/* ---- new values that are still under way ----------------------------------------------------- */

/* What of the parameter is stored here, looked at by this rank alone. */
static void look(struct model *m, size_t p)
{
	size_t first, count, size = zero_dtype_size(tensors[p].dtype);
	void *data;

	ok(zero_shard(m->params[p], &data, &first, &count));
	check(!count || ref_difference(tensors[p].dtype, data, m->refs[p].values + first * size,
				       count) == count,
	      "%s: what is stored of '%s'", m->settings, tensors[p].name);
}

static void after_a_step(const char *settings)
{
	zero_source source = zero_from_uniform(-2, 2, seed + 5);
	zero_status status;
	struct model m;

	begin(&m, settings, NULL);
	for (int pass = 0; pass < 8; pass++) {
		backward(&m, 1);
		step(&m, &plain, 1 / (double)world);
		if (pass & 1 && rank == last)
			look(&m, (size_t)pass % PARAMS);
		if (pass & 2 && pass != 6)
			ok(zero_prefetch(m.groups, GROUPS, ZERO_DTYPE_PARAM));
		/* The last first; as another type; and straight on to the next step. */
		if (pass == 4)
			compare_group(&m, 2, ZERO_DTYPE_PARAM);
		if (pass == 5)
			compare_group(&m, 0, ZERO_BF16);
		if (pass == 6)
			continue;
		compare(&m);
		compare(&m);
		for (size_t p = 0; p < PARAMS; p++)
			look(&m, p);
	}
	backward(&m, 1);
	step(&m, &plain, 1 / (double)world);
	ok(zero_load(m.params[0], &source));
	ok(zero_gather(m.groups[0], ZERO_DTYPE_PARAM));
	memcpy(m.refs[0].values, zero_data(m.params[0]), 4 * tensors[0].count);
	ok(zero_release(m.groups[0]));
	ref_loaded(&m.refs[0]);
	compare(&m);
	/* An error that is not reported to other ranks is none for them. */
	backward(&m, 1);
	step(&m, &plain, 1 / (double)world);
	status = zero_gather(m.groups[0], ZERO_I32);
	fails(status, ZERO_E_INVALID, "cannot be gathered as i32");
	compare(&m);
	backward(&m, 1);
	step(&m, &plain, 1 / (double)world);
	ok(zero_prefetch(m.groups, 2, ZERO_DTYPE_PARAM));
	end(&m);
}

/* ---------------------------------------------------------------------------------------------- */

int main(void)
{
	zero_job *job = open_job("stage=3");
	char settings[64];
	bool apart; /* also where all ranks could share memory */

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	seed = test_seed();
	apart = world > 1 && sharing(job) == world;
	ok(zero_close(job));
	for (int stage = 0; stage <= 3; stage++)
		for (int again = 0; again <= apart; again++) {
			snprintf(settings, sizeof(settings), "stage=%d%s", stage,
				 again ? " share=1" : "");
			uneven(settings);
			static_scales(settings);
			dynamic_scale(settings);
			low_gradients(settings);
			after_a_step(settings);
			offloaded(settings, 0, true);
			offloaded(settings, 1000, false);
			offloaded(settings, 1002, true);
			offloaded(settings, 1, true);
		}
	refused_samples();
	refused_scales();
	refused_gradients();
	low_overflow();
	half_the_bytes();
	offload_in_plan();
	offloaded_bytes(false);
	offloaded_bytes(true);
	return 0;
}
