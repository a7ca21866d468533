/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training step at stage 3 against one at stage 0, as a graph, and without the agreement on each
 * call: layers of one square matrix each, used in bf16, gradients in f32. The products are those of
 * a transformer's layers for TOKENS tokens a rank.
 */
#include "transfers.h"

enum { LAYERS = 12, WIDTH = 4096, TOKENS = 8192, STEPS = 6, ROUNDS = 2 };

struct training {
	zero_job *job;
	zero_group *groups[LAYERS];
	zero_param *params[LAYERS];
	void *values[LAYERS + 1]; /* [TOKENS][WIDTH] of bf16 */
	void *back[2];
	size_t width, tokens;
	void *stream; /* NULL: the default stream */
	void *graph;  /* of a step */
	bool captures;
};

static void begin(struct training *t, int stage, const char *more)
{
	zero_source source = zero_from_normal(0, 0.02, test_seed());

	t->job = open_cuda("stage=%d allgather=grouped %s", stage, more);
	if (t->stream)
		ok(zero_set_stream(t->job, t->stream));
	world = zero_world(t->job);
	rank = zero_rank(t->job);
	for (size_t l = 0; l < LAYERS; l++) {
		char name[2] = {(char)('a' + l), 0};

		t->groups[l] = new_group(t->job, name);
		t->params[l] = new_param(t->groups[l], name, ZERO_F32, t->width * t->width, true);
	}
	ok(zero_layout(t->job));
	for (size_t l = 0; l < LAYERS; l++)
		ok(zero_load(t->params[l], &source));
}

static void forward(struct training *t)
{
	for (size_t l = 0; l < LAYERS; l++) {
		ok(zero_gather(t->groups[l], ZERO_BF16));
		if (l + 1 < LAYERS)
			ok(zero_prefetch(&t->groups[l + 1], 1, ZERO_BF16));
		blas_product(t->stream, false, false, t->width, t->tokens, t->width,
			     zero_data(t->params[l]), t->values[l], t->values[l + 1], false, false);
		ok(zero_release(t->groups[l]));
	}
}

static void backward(struct training *t)
{
	for (size_t l = LAYERS; l-- > 0;) {
		const void *from = t->back[(l + 1) % 2];
		float *gradient;

		ok(zero_gather(t->groups[l], ZERO_BF16));
		if (l > 0)
			ok(zero_prefetch(&t->groups[l - 1], 1, ZERO_BF16));
		gradient = zero_gradient(t->params[l]);
		check(gradient, "%s", zero_last_error());
		blas_product(t->stream, false, true, t->width, t->width, t->tokens, from,
			     t->values[l], gradient, true, true);
		ok(zero_reduce(t->groups[l]));
		blas_product(t->stream, true, false, t->width, t->tokens, t->width,
			     zero_data(t->params[l]), from, t->back[l % 2], false, false);
		ok(zero_release(t->groups[l]));
	}
}

static void train(void *context)
{
	zero_adamw adamw = {.lr = 1e-6F, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F, .clip = 1};
	struct training *t = context;

	forward(t);
	backward(t);
	ok(zero_step(t->job, &adamw, NULL));
	if (t->stream && !t->captures)
		stream_finish(t->stream);
}

static void repeat(void *context)
{
	struct training *t = context;

	graph_launch(t->graph, t->stream);
	stream_finish(t->stream);
}

static void *buffer(struct training *t)
{
	void *data = device_alloc(t->tokens * t->width * 2);

	check(data, "no memory on the device");
	random_on_device(ZERO_BF16, data, t->tokens * t->width);
	synchronise();
	return data;
}

/* Returns why there is nothing to measure. */
static const char *set_up(struct training *t)
{
	const char *why = blas_open();

	t->width = WIDTH;
	t->tokens = (size_t)(TOKENS * scale);
	if (scale < 1)
		t->width = t->tokens = 512;
	for (size_t l = 0; !why && l <= LAYERS; l++)
		t->values[l] = buffer(t);
	for (size_t i = 0; !why && i < 2; i++)
		t->back[i] = buffer(t);
	return why;
}

static void say_missing(const char *row, const char *why)
{
	zero_job *job = open_cuda("stage=0");

	if (zero_rank(job) == 0)
		record_missing(row, zero_world(job), why);
	ok(zero_close(job));
}

void measure_step(void)
{
	const char *row = "step at stage 3 over stage 0", *why;
	struct training t = {0};
	double ms[2][ROUNDS];

	why = set_up(&t);
	for (int round = 0; !why && round < ROUNDS; round++)
		for (int at = 0; at < 2; at++) {
			begin(&t, at ? 3 : 0, "");
			ms[at][round] = timed_often(t.job, STEPS, train, &t);
			ok(zero_close(t.job));
		}
	if (why) {
		say_missing(row, why);
	} else if (rank == 0) {
		double three = median(ms[1], ROUNDS), zero = median(ms[0], ROUNDS);

		record(row, world, three / zero, three, zero, "ms");
	}
}

/* Of a step by calls, the same that agrees on each call, and the same as a graph. */
static void measure_three(struct training *t, double *ms)
{
	t->stream = stream_new();
	for (int checked = 1; checked >= 0; checked--) {
		begin(t, 3, checked ? "check=1" : "");
		ms[checked] = timed_often(t->job, STEPS, train, t);
		if (checked)
			ok(zero_close(t->job));
	}
	t->captures = true;
	capture_begin(t->stream);
	train(t);
	t->graph = capture_end(t->stream);
	ms[2] = timed_often(t->job, STEPS, repeat, t);
	graph_delete(t->graph);
	ok(zero_close(t->job));
}

void measure_calls(void)
{
	const char *agreed_row = "step that agrees once", *graph_row = "step as a graph", *why;
	struct training t = {0};
	double ms[3];

	why = set_up(&t);
	if (why) {
		say_missing(agreed_row, why);
		say_missing(graph_row, why);
		return;
	}
	measure_three(&t, ms);
	if (rank == 0) {
		record(agreed_row, world, ms[0] / ms[1], ms[0], ms[1], "ms");
		record(graph_row, world, ms[2] / ms[0], ms[2], ms[0], "ms");
	}
}
