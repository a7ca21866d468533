/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step: what it refuses and what its ranks must agree on, and the bytes that it keeps and sends.
 * What values must be is for the property test.
 */
#include <math.h>

#include "ranks.h"

static const zero_adamw plain = {
	.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F, .weight_decay = 0.1F};

static int world, rank, last;

/* Two groups of one parameter each, and how much memory gradients took before there were any. */
struct model {
	zero_job *job;
	zero_group *groups[2];
	zero_param *params[2];
	size_t gradients;
};

static size_t gradient_bytes(zero_job *job)
{
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	return memory.gradients.now;
}

static struct model begin(const char *settings, zero_dtype gradients)
{
	struct model m = {.job = open_job("%s", settings)};

	for (int g = 0; g < 2; g++) {
		m.groups[g] = new_group(m.job, g ? "h" : "g");
		m.params[g] = new_param(m.groups[g], g ? "q" : "p", ZERO_F32, 3000, true);
		if (g && gradients != ZERO_F32)
			ok(zero_group_gradient_dtype(m.groups[g], gradients));
	}
	ok(zero_layout(m.job));
	m.gradients = gradient_bytes(m.job);
	return m;
}

/* ---- what all ranks must say alike ----------------------------------------------------------- */

/* Sets one argument of a step to another value. */
static void vary(zero_adamw *adamw, zero_loss_scale *scale, int argument)
{
	float *const values[] = {&adamw->lr,           &adamw->beta1, &adamw->beta2, &adamw->eps,
				 &adamw->weight_decay, &adamw->clip,  &scale->scale, &scale->growth,
				 &scale->backoff,      &scale->min,   &scale->max};
	const int count = sizeof(values) / sizeof(values[0]);

	if (argument < count)
		*values[argument] = nextafterf(*values[argument], 0);
	else if (argument == count)
		adamw->micro_batches++;
	else if (argument == count + 1)
		scale->interval++;
	else if (argument == count + 2)
		scale->good_steps++;
	else
		adamw->loss_scale = NULL;
}

enum { ARGUMENTS = 15 };

/* The last rank says something else: no rank steps, and no gradient is left. */
static void one_says_other(int argument)
{
	struct model m = begin("stage=3", ZERO_BF16);
	zero_adamw adamw = plain;
	zero_loss_scale scale;

	zero_loss_scale_init(&scale);
	scale.scale = 1024;
	adamw.loss_scale = &scale;
	adamw.clip = 1;
	adamw.samples = rank; /* may differ */
	ok(zero_step(m.job, &adamw, NULL));
	if (rank == last)
		vary(&adamw, &scale, argument);
	check(zero_gradient(m.params[0]), "%s", zero_last_error());
	fails(zero_step(m.job, &adamw, NULL), ZERO_E_ORDER, "step 2 with ");
	check(gradient_bytes(m.job) == m.gradients, "argument %d: %zu bytes of gradients", argument,
	      gradient_bytes(m.job));
	/* The job can only be closed: its operations fail at once, and keep nothing either. */
	check(zero_gradient(m.params[0]) && zero_gradient_as(m.params[1], ZERO_BF16), "%s",
	      zero_last_error());
	fails(zero_step(m.job, &plain, NULL), ZERO_E_ORDER, "step 2 with ");
	check(gradient_bytes(m.job) == m.gradients, "%zu bytes of gradients",
	      gradient_bytes(m.job));
	ok(zero_close(m.job));
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* By one rank, and so by all, for that rank's reason. */
static void refused(struct model *m, const zero_adamw *adamw, const char *words)
{
	check(zero_gradient(m->params[0]), "%s", zero_last_error());
	fails(zero_step(m->job, rank == last ? adamw : &plain, NULL), ZERO_E_INVALID, words);
	check(zero_last_error_rank() == last, "%d", zero_last_error_rank());
	check(gradient_bytes(m->job) == m->gradients, "%zu bytes of gradients",
	      gradient_bytes(m->job));
}

static void refused_values(void)
{
	static const double wrong[] = {-1, NAN, INFINITY, 1e17};
	struct model m = begin("stage=3", ZERO_F32);
	zero_adamw adamw;

	for (size_t i = 0; i < 4; i++) {
		adamw = plain;
		adamw.samples = wrong[i];
		refused(&m, &adamw, "it must be 0 to 2^53");
	}
	adamw = plain;
	adamw.micro_batches = 2;
	adamw.samples = 0.5;
	refused(&m, &adamw, "leave micro_batches 0");
	for (int i = 0; i < 9; i++) {
		float *const values[] = {&adamw.lr,  &adamw.beta1,        &adamw.beta2,
					 &adamw.eps, &adamw.weight_decay, &adamw.clip};

		adamw = plain;
		if (i < 6)
			*values[i] = i % 2 ? -0.1F : NAN;
		else if (i == 6)
			adamw.beta1 = 1;
		else if (i == 7)
			adamw.eps = 0;
		else
			adamw.micro_batches = -1;
		refused(&m, &adamw, "AdamW has lr ");
	}
	ok(zero_close(m.job));
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
	struct model m = begin("stage=3", ZERO_F32);

	zero_loss_scale_init(&scale);
	check(scale.scale == 65536 && scale.growth == 2 && scale.backoff == 0.5F &&
		      scale.interval == 2000 && !scale.good_steps,
	      "the first scale");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		scale = wrong[i];
		adamw.loss_scale = &scale;
		refused(&m, &adamw, "the loss scale is");
		check(!memcmp(&scale, &wrong[i], sizeof(scale)), "changed by a failed step");
	}
	ok(zero_close(m.job));
}

/* ---- gradients of 16 bits -------------------------------------------------------------------- */

/* What f16 cannot hold is found, and the scale falls. */
static void low_overflow(void)
{
	struct model m = begin("stage=3", ZERO_F16);
	uint16_t *sums = zero_gradient_as(m.params[1], ZERO_F16), infinity = 0x7c00;
	zero_adamw adamw = plain;
	zero_step_result result;
	zero_loss_scale scale;

	zero_loss_scale_init(&scale);
	adamw.loss_scale = &scale;
	check(sums && !sums[1000], "%s", zero_last_error());
	if (rank == last)
		sums[1000] = infinity;
	ok(zero_step(m.job, &adamw, &result));
	check(result.skipped && result.loss_scale == 32768 && scale.scale == 32768, "%d, %g",
	      result.skipped, (double)result.loss_scale);
	ok(zero_close(m.job));
}

static void refused_gradients(void)
{
	struct model m = begin("stage=3", ZERO_BF16);
	zero_group *group;
	zero_job *job;

	check(!zero_gradient(m.params[1]), "a gradient of the wrong type");
	fails(ZERO_E_INVALID, ZERO_E_INVALID, "'q' is asked for its gradient as f32, but group");
	fails(ZERO_E_INVALID, ZERO_E_INVALID, "has gradients of bf16");
	check(!zero_gradient_as(m.params[0], ZERO_F16), "a gradient of the wrong type");
	fails(ZERO_E_INVALID, ZERO_E_INVALID, "has gradients of f32");
	fails(zero_group_gradient_dtype(m.groups[0], ZERO_F32), ZERO_E_STATE, "before zero_layout");
	ok(zero_close(m.job));
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

/*
 * A reduce that all ranks refused, which one rank has waited for before the others: the step alone
 * tells of it, and the other groups' reduces go on as on the other ranks.
 */
static void refused_reduce(void)
{
	zero_job *job = open_job("stage=3");
	zero_group *frozen = new_group(job, "frozen"), *groups[2];
	zero_param *params[2];

	new_param(frozen, "f", ZERO_F32, 10, false);
	for (int g = 0; g < 2; g++) {
		groups[g] = new_group(job, g ? "h" : "g");
		params[g] = new_param(groups[g], g ? "q" : "p", ZERO_F32, 100, true);
	}
	ok(zero_layout(job));
	ok(zero_step(job, &plain, NULL));
	ok(zero_reduce(frozen));
	ok(zero_reduce(groups[0]));
	check(rank != last || zero_gradient(params[1]), "%s", zero_last_error());
	ok(zero_reduce(groups[1]));
	fails(zero_step(job, &plain, NULL), ZERO_E_STATE, "no trainable parameter");
	ok(zero_step(job, &plain, NULL));
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

/* A reduce of several pieces of a message: sums of small whole numbers are exact. */
static void many_pieces(zero_dtype dtype)
{
	const zero_adamw adamw = {.lr = 1, .eps = 1, .micro_batches = 1};
	const size_t count = (size_t)1300000 + 64 * (size_t)world;
	zero_job *job = open_job("stage=3 share=1");
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, count, true);
	uint64_t seed = test_seed();
	zero_step_result result;
	const float *values;
	uint16_t *low;
	float *wide;
	double norm2 = 0;

	ok(zero_group_gradient_dtype(group, dtype));
	ok(zero_layout(job));
	wide = zero_gradient_as(param, dtype);
	low = (uint16_t *)(void *)wide;
	check(wide, "%s", zero_last_error());
	for (size_t i = 0; i < count; i++) {
		uint64_t bits = mixed(seed + i * 16 + (uint64_t)rank);
		float value = (float)(int)(bits % 15) - 7;
		uint32_t word;

		memcpy(&word, &value, sizeof(word));
		if (dtype == ZERO_BF16)
			low[i] = (uint16_t)(word >> 16);
		else
			wide[i] = value;
	}
	ok(zero_step(job, &adamw, &result));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	values = zero_data(param);
	for (size_t i = 0; i < count; i++) {
		double sum = 0, want;

		for (int from = 0; from < world; from++)
			sum += (double)(mixed(seed + i * 16 + (uint64_t)from) % 15) - 7;
		norm2 += sum * sum;
		want = -sum / world / (fabs(sum / world) + 1);
		check(fabs((double)values[i] - want) < 1e-6, "element %zu is %g, not %g", i,
		      (double)values[i], want);
	}
	check(fabs(result.grad_norm - sqrt(norm2) / world) <= 1e-12 * result.grad_norm, "norm %g",
	      result.grad_norm);
	ok(zero_release(group));
	ok(zero_close(job));
}

/* ---- a loss scale where steps are taken ------------------------------------------------------ */

enum { TURNS = 6, VALUES = 3000 };

/* Takes steps, of which one overflows; the last one tells its result. */
static zero_step_result scaled_steps(const char *settings, bool kept, float values[2][VALUES])
{
	struct model m = begin(settings, ZERO_F32);
	zero_loss_scale scale = {
		.scale = 8, .growth = 4, .backoff = 0.5F, .min = 1, .max = 64, .interval = 2};
	zero_loss_scale *address = &scale, *again;
	zero_step_result result;
	zero_adamw adamw = plain;

	if (kept) {
		ok(zero_device_loss_scale(m.job, &scale, &address));
		ok(zero_device_loss_scale(m.job, &scale, &again));
		check(address != &scale && address == again, "%p and %p", (void *)address,
		      (void *)again);
	}
	adamw.loss_scale = address;
	adamw.clip = 0.1F;
	for (int turn = 0; turn < TURNS; turn++) {
		for (int g = 0; g < 2; g++) {
			float *sums = zero_gradient(m.params[g]);

			check(sums, "%s", zero_last_error());
			for (size_t i = 0; i < VALUES; i++)
				sums[i] = signed_unit(mixed(i * TURNS * 32 + (size_t)turn * 32 +
							    (size_t)rank * 2 + (size_t)g));
			if (turn == 2 && g == 1 && rank == last)
				sums[VALUES - 1] = INFINITY;
		}
		ok(zero_step(m.job, &adamw, kept && turn < TURNS - 1 ? NULL : &result));
	}
	for (int g = 0; g < 2; g++) {
		ok(zero_gather(m.groups[g], ZERO_DTYPE_PARAM));
		ok(zero_agree(m.job, NULL));
		memcpy(values[g], zero_data(m.params[g]), sizeof(values[g]));
		ok(zero_release(m.groups[g]));
	}
	ok(zero_close(m.job));
	return result;
}

/* It goes through the values of a scale that the program keeps, and the parameters do, too. */
static void kept_scale(const char *settings)
{
	static float own[2][VALUES], kept[2][VALUES];
	zero_step_result a = scaled_steps(settings, false, own);
	zero_step_result b = scaled_steps(settings, true, kept);

	/* 8; 32 after two steps; 16 after the third, which overflows; 64 after two more */
	check(a.loss_scale == 64 && b.loss_scale == 64, "%g and %g", (double)a.loss_scale,
	      (double)b.loss_scale);
	check(!memcmp(&a.grad_norm, &b.grad_norm, sizeof(a.grad_norm)) && !a.skipped && !b.skipped,
	      "%a and %a", a.grad_norm, b.grad_norm);
	check(!memcmp(own, kept, sizeof(own)), "other values, %s", settings);
}

static void refused_kept_scales(void)
{
	struct model m = begin("stage=3", ZERO_F32);
	zero_loss_scale scale, *address = &scale;

	zero_loss_scale_init(&scale);
	if (rank == last)
		scale.growth = 0.5F;
	fails(zero_device_loss_scale(m.job, &scale, &address), ZERO_E_INVALID, "growth >= 1");
	check(!address, "an address");
	if (world > 1) {
		scale.growth = rank == last ? 4 : 2;
		fails(zero_device_loss_scale(m.job, &scale, &address), ZERO_E_ORDER,
		      "loss scale 65536");
	}
	ok(zero_close(m.job));
}

/* ---- optimizer states in host memory --------------------------------------------------------- */

/* What states take, and the pieces that values come and go by. */
static void offloaded_bytes(void)
{
	size_t count = 64 * 1024 * (size_t)world, chunk = 65536;
	zero_job *job = open_job("stage=3 offload=optimizer stream_chunk=%zu", chunk);
	zero_param *param = new_param(new_group(job, "p"), "p", ZERO_BF16, count, true);
	zero_memory before, after;
	size_t held, states;

	ok(zero_layout(job));
	check(zero_gradient(param), "%s", zero_last_error());
	ok(zero_memory_now(job, &before));
	ok(zero_step(job, &plain, NULL));
	ok(zero_memory_now(job, &after));
	states = 12 * count / (size_t)world;
	check(after.offload.now == states && !after.optimizer.peak, "%zu", after.offload.now);
	check(after.total.now == after.shards.now + after.gradients.now + after.staging.now, "%zu",
	      after.total.now);
	/* With a GPU they are page-locked. */
	held = after.staging.now + after.pinned.now - before.staging.now - before.pinned.now;
	check(held == (on_gpu() ? 2 * chunk : 0), "staging: %zu", held);
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
				need += memory.staging.now + flat +
					(on_gpu() && !offload ? 4096 : 0);
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

/* ---------------------------------------------------------------------------------------------- */

int main(void)
{
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	for (int argument = 0; world > 1 && argument < ARGUMENTS; argument++)
		one_says_other(argument);
	refused_values();
	refused_scales();
	refused_gradients();
	refused_reduce();
	low_overflow();
	for (int stage = 0; stage <= 3; stage++)
		kept_scale((const char *[]){"stage=0", "stage=1", "stage=2 share=1",
					    "stage=3"}[stage]);
	kept_scale("stage=3 offload=optimizer");
	refused_kept_scales();
	half_the_bytes();
	many_pieces(ZERO_F32);
	many_pieces(ZERO_BF16);
	offload_in_plan();
	offloaded_bytes();
	return 0;
}
