/* SPDX-License-Identifier: Apache-2.0 */
/* From the host into shards, and from shards of f32 to gathered bf16. */
#include "../../kernels/kernels.h"
#include "transfers.h"

static void begin(zero_job *job)
{
	world = zero_world(job);
	rank = zero_rank(job);
}

/* ---- stream ---------------------------------------------------------------------------------- */

struct stream {
	zero_param *param;
	zero_source source;
	char *pinned, *device;
	size_t bytes; /* that a rank stores */
};

static void load(void *context)
{
	struct stream *s = context;

	ok(zero_load(s->param, &s->source));
}

static void bare_copy(void *context)
{
	struct stream *s = context;

	upload(s->device, s->pinned + (size_t)rank * s->bytes, s->bytes);
}

static void stream_row(zero_job *job, struct stream *s, const char *row, double bare)
{
	double ours = timed_often(job, 9, load, s), all = (double)s->bytes * world / 1e6;

	if (rank == 0)
		record(row, world, bare / ours, all / ours, all / bare, "GB/s");
}

/* A file in memory, which rank 0 writes and all ranks read. */
static void write_file(zero_job *job, const char *path, const char *data, size_t bytes)
{
	const char *error = NULL;
	FILE *file;

	if (rank == 0) {
		file = fopen(path, "we");
		if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file))
			error = "the file of a parameter cannot be written";
	}
	ok(zero_agree(job, error));
}

void measure_stream(void)
{
	size_t bytes = scaled((size_t)2 << 30), count = bytes / 4;
	zero_job *job = open_cuda("stage=3");
	zero_param *param = new_param(new_group(job, "g"), "p", ZERO_F32, count, false);
	struct stream s = {.param = param, .pinned = pinned_alloc(bytes)};
	zero_tensor tensor = {.name = "p", .dtype = ZERO_F32, .ndim = 1, .shape = {count}};
	char path[1100];
	double bare;

	begin(job);
	s.bytes = bytes / (size_t)world;
	s.device = device_alloc(s.bytes);
	check(s.device, "no memory on the device");
	for (size_t i = 0; i < count; i++)
		((uint32_t *)s.pinned)[i] = (uint32_t)i * 2654435761U >> 9 | 0x3f000000;
	ok(zero_layout(job));
	bare = timed_often(job, 9, bare_copy, &s);
	s.source = zero_from_all(s.pinned);
	stream_row(job, &s, "stream from pinned memory", bare);
	snprintf(path, sizeof(path), "%s", file_path("parameter"));
	write_file(job, path, s.pinned, bytes);
	tensor.path = path;
	s.source = zero_from_file(&tensor);
	stream_row(job, &s, "stream from a file in memory", bare);
	ok(zero_close(job));
	if (rank == 0)
		remove(path);
	pinned_free(s.pinned);
	device_free(s.device);
}

/* ---- downcast -------------------------------------------------------------------------------- */

struct downcast {
	zero_group *group;
	zero_param *param;
	void *out;
	size_t count;
};

static void fused(void *context)
{
	struct downcast *d = context;

	ok(zero_gather(d->group, ZERO_BF16));
	ok(zero_release(d->group));
}

static void gather_then_cast(void *context)
{
	struct downcast *d = context;
	struct zero_device_cast args = {
		.out = d->out, .count = d->count, .to = ZERO_BF16, .from = ZERO_F32};

	ok(zero_gather(d->group, ZERO_DTYPE_PARAM));
	args.in = zero_data(d->param);
	kernels_launch("zero_device_cast", &args, kernels_blocks(d->count), ZERO_DEVICE_THREADS);
	ok(zero_release(d->group));
}

void measure_downcast(void)
{
	const char *row = "downcast with the gather";
	zero_job *job = open_cuda("stage=3");
	zero_source source = zero_from_uniform(-1, 1, test_seed());
	struct downcast d = {.count = scaled((size_t)1 << 30) / 4};
	double ours, bare;

	begin(job);
	d.group = new_group(job, "g");
	d.param = new_param(d.group, "p", ZERO_F32, d.count, false);
	d.out = device_alloc(d.count * 2);
	check(d.out, "no memory on the device");
	ok(zero_layout(job));
	ok(zero_load(d.param, &source));
	if (world == 1) {
		record_missing(row, 1, "one rank gathers nothing");
	} else {
		bare = timed_often(job, 9, gather_then_cast, &d);
		ours = timed_often(job, 9, fused, &d);
		if (rank == 0)
			record(row, world, ours / bare, ours, bare, "ms");
	}
	ok(zero_close(job));
	device_free(d.out);
}
