/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step sends: with a copy of the model on each rank, as if each were a node, beside one copy
 * that is sharded over all of them; and with matrices that Muon steps.
 */
#include "bench.h"

enum { MICRO_BATCHES = 3, LAYERS = 4, COUNT = 4 << 20 };

struct training {
	struct bench *bench;
	zero_job *job;
	struct layer layers[LAYERS];
	size_t count; /* elements of a layer */
	zero_adamw adamw;
};

static void micro_batch(struct training *t)
{
	for (int i = 0; i < 2 * LAYERS; i++) {
		const struct layer *layer = &t->layers[i < LAYERS ? i : 2 * LAYERS - 1 - i];
		float *gradient;

		must(zero_gather(layer->group, ZERO_DTYPE_PARAM));
		if (i >= LAYERS) {
			gradient = zero_gradient(layer->param);
			must_be(gradient, zero_last_error());
			for (size_t e = 0; e < t->count; e++)
				gradient[e] = (float)(e % 7) - 3;
			must(zero_reduce(layer->group));
		}
		must(zero_release(layer->group));
	}
}

static double timed_step(void *context)
{
	struct training *t = context;
	double start = clock_start(t->bench);

	for (int i = 0; i < MICRO_BATCHES; i++)
		micro_batch(t);
	must(zero_step(t->job, &t->adamw, NULL));
	for (int i = 0; i < LAYERS; i++)
		must(zero_gather(t->layers[i].group, ZERO_DTYPE_PARAM));
	for (int i = 0; i < LAYERS; i++)
		must(zero_release(t->layers[i].group));
	return clock_stop(t->bench, start);
}

static struct training begin(struct bench *bench, const char *settings, zero_dtype dtype)
{
	static const zero_muon muon = {.lr = 0.02f, .momentum = 0.95f};
	struct training t = {.bench = bench,
			     .job = open_job_as(bench, settings),
			     .count = scaled(bench, COUNT),
			     .adamw = {.lr = 1e-3f,
				       .beta1 = 0.9f,
				       .beta2 = 0.999f,
				       .eps = 1e-8f,
				       .micro_batches = MICRO_BATCHES,
				       .muon = &muon}};

	for (int i = 0; i < LAYERS; i++) {
		const size_t shape[] = {t.count / 64, 64};
		zero_param_spec spec = {.name = "weight",
					.dtype = dtype,
					.ndim = 2,
					.shape = shape,
					.trainable = true};
		char name[16];

		snprintf(name, sizeof(name), "layer %d", i);
		spec.name = name;
		must(zero_group_new(t.job, name, NULL, &t.layers[i].group));
		must(zero_param_new(t.layers[i].group, &spec, &t.layers[i].param));
	}
	return t;
}

/* The bytes that all ranks send for an element, and the seconds of a step after the first. */
static double bytes_and_seconds(struct bench *bench, const char *settings, double *seconds)
{
	struct training t = begin(bench, settings, ZERO_BF16);
	const struct side side = {"a step", timed_step};
	double sent;

	must(zero_layout(t.job));
	timed_step(&t);
	sent = sent_by(bench, t.job, timed_step, &t);
	measure_sides(&side, 1, &t, SWEEP_REPEATS, seconds);
	must(zero_close(t.job));
	return sent / (double)(t.count * LAYERS);
}

static double timed_muon(void *context)
{
	struct training *t = context;
	double start = clock_start(t->bench);

	must(zero_step(t->job, &t->adamw, NULL));
	return clock_stop(t->bench, start);
}

static void muon_rows(struct bench *bench)
{
	struct training t = begin(bench, "stage=3", ZERO_F32);
	double sent;

	for (int i = 0; i < LAYERS; i++)
		must(zero_param_set_muon(t.layers[i].param, true));
	must(zero_layout(t.job));
	timed_step(&t);
	micro_batch(&t);
	must(zero_agree(t.job, NULL));
	sent = sent_by(bench, t.job, timed_muon, &t);
	write_sent(bench, "Muon: bytes sent in all", sent, (double)(t.count * LAYERS) * 4);
	must(zero_close(t.job));
}

void bench_copies(struct bench *bench)
{
	double seconds[2];
	double copies = bytes_and_seconds(bench, "stage=3 shard=1", &seconds[0]);
	double one = bytes_and_seconds(bench, "stage=3", &seconds[1]);
	struct row row = {"a copy on each rank: bytes sent for an element, of 3 micro-batches",
			  copies,
			  "bytes",
			  copies,
			  one,
			  "bytes",
			  "one copy"};

	write_row(bench, &row);
	write_ratio(bench, "a copy on each rank: step over one copy", seconds[0], seconds[1],
		    "one copy");
	muon_rows(bench);
}
