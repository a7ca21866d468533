/* SPDX-License-Identifier: Apache-2.0 */
/* Reduce of a 512 MiB gradient. */
#include "bench.h"

struct reduced {
	struct bench *bench;
	zero_job *job;
	struct layer layer;
	size_t count;
};

/* A reduce returns at once; an agreement is queued behind it. */
static double timed_reduce(struct reduced *r)
{
	const zero_adamw still = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
	float *gradient = zero_gradient(r->layer.param);
	double start, seconds;

	must_be(gradient, zero_last_error());
	for (size_t i = 0; i < r->count; i++)
		gradient[i] = (float)(r->bench->rank + 1);
	start = clock_start(r->bench);
	must(zero_reduce(r->layer.group));
	must(zero_agree(r->job, NULL));
	seconds = clock_stop(r->bench, start);
	/* A second reduce before it would add to the first. */
	must(zero_step(r->job, &still, NULL));
	return seconds;
}

static double timed_bare(struct reduced *r, const float *send, float *recv)
{
	double start = clock_start(r->bench);

	MPI_Reduce_scatter_block(send, recv, (int)(r->count / (size_t)r->bench->world), MPI_FLOAT,
				 MPI_SUM, MPI_COMM_WORLD);
	return clock_stop(r->bench, start);
}

/* What a reduce takes beside gradient and sums. */
static void memory_row(struct reduced *r)
{
	zero_memory memory;
	double staging;

	must(zero_memory_now(r->job, &memory));
	staging = largest(r->bench, (double)memory.staging.peak);
	struct row row = {.what = "reduce: staging, accounted",
			  .figure = staging / 1e6,
			  .unit = "MB",
			  .goal = "2 chunks",
			  .ours = staging / 1e6,
			  .bare = (double)r->count * sizeof(float) / 1e6,
			  .in = "MB",
			  .bare_name = "gradient"};
	write_row(r->bench, &row);
}

void bench_reduce(struct bench *bench)
{
	struct reduced r = {.bench = bench, .job = open_job(bench)};
	double ours[REPEATS], bare[REPEATS];
	float *send, *recv;
	size_t bytes;

	r.count = scaled(bench, (size_t)128 << 20);
	bytes = r.count * sizeof(float);
	r.layer = add_layer(r.job, "layer", ZERO_F32, r.count, true);
	must(zero_layout(r.job));
	send = pages_new(bytes, true);
	recv = pages_new(bytes / (size_t)bench->world, true);
	for (size_t i = 0; i < r.count; i++)
		send[i] = (float)(bench->rank + 1);
	/* Warms the buffers of both. */
	timed_reduce(&r);
	timed_bare(&r, send, recv);
	for (int i = 0; i < REPEATS; i++) {
		ours[i] = timed_reduce(&r);
		bare[i] = timed_bare(&r, send, recv);
	}
	write_ratio(bench, "reduce of f32", "<= 0.28", ours, bare, "MPI_Reduce_scatter_block");
	memory_row(&r);
	pages_free(send, bytes);
	pages_free(recv, bytes / (size_t)bench->world);
	must(zero_close(r.job));
}
