/* SPDX-License-Identifier: Apache-2.0 */
/* Flatten: tensors that every rank of a node has become views of one flat buffer. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

enum { TENSORS = 16, SIDES = 3, CHUNK = 4 << 20 };

struct flattened {
	struct bench *bench;
	zero_job *job;
	zero_param *params[TENSORS];
	const void *tensors[TENSORS];
	const char *tier;
	zero_location location;
	size_t count, bytes; /* of a tensor */
	char *flat;          /* of the naive way */
};

static void release(void *job, void *data)
{
	zero_device_free(job, data);
}

/* A tensor as it would be at hand: the program's own on the host, or made on the device. */
static zero_adopt_spec given(struct flattened *f, int i)
{
	zero_adopt_spec tensor = {.location = f->location, .values = ZERO_VALUES_EQUAL};

	if (f->location == ZERO_ON_HOST) {
		tensor.data = (void *)f->tensors[i];
		return tensor;
	}
	must(zero_device_alloc(f->job, f->bytes, &tensor.data));
	memcpy(tensor.data, f->tensors[i], f->bytes);
	tensor.release = release;
	tensor.context = f->job;
	return tensor;
}

/* A job of one group, to be laid out. */
static void open_flattened(struct flattened *f)
{
	zero_param_spec spec = {.dtype = ZERO_BF16, .ndim = 1, .shape = &f->count};
	zero_group *group;
	char text[96];

	snprintf(text, sizeof(text), "stage=1 allgather=grouped stream_chunk=%d flatten=%s", CHUNK,
		 f->tier);
	f->job = open_job_as(f->bench, text);
	must(zero_group_new(f->job, "model", NULL, &group));
	spec.name = text;
	for (int i = 0; i < TENSORS; i++) {
		zero_adopt_spec tensor;

		snprintf(text, sizeof(text), "h.%d.weight", i);
		must(zero_param_new(group, &spec, &f->params[i]));
		tensor = given(f, i);
		must(zero_adopt(f->params[i], &tensor));
	}
}

static void close_flattened(struct flattened *f)
{
	for (int i = 0; i < TENSORS; i++)
		check_values(zero_view(f->params[i]), (size_t)i * f->count, f->count);
	must(zero_close(f->job));
}

static double lay_out(void *context)
{
	struct flattened *f = context;
	double start = clock_start(f->bench);

	must(zero_layout(f->job));
	return clock_stop(f->bench, start);
}

/* All sides begin from fresh pages for what they lay, as where a job begins. */
static double timed_flatten(void *context)
{
	double seconds;

	open_flattened(context);
	seconds = lay_out(context);
	close_flattened(context);
	return seconds;
}

static double timed_copy(struct flattened *f, bool copies)
{
	size_t bytes = TENSORS * f->bytes;
	double start = clock_start(f->bench), seconds;

	f->flat = pages_new(bytes, false);
	if (copies)
		naive_flatten(f->flat, f->tensors, TENSORS, f->bytes);
	seconds = clock_stop(f->bench, start);
	pages_free(f->flat, bytes);
	return seconds;
}

static double timed_alone(void *context)
{
	struct flattened *f = context;

	return timed_copy(f, f->bench->rank == 0);
}

static double timed_all(void *context)
{
	return timed_copy(context, true);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What one tier needs on the device beside the tensors, over what it may; `name` "": nothing. */
static void tier_rows(struct flattened *f, const char *name, double may, bool sends)
{
	const char *from = f->location == ZERO_ON_DEVICE ? "device" : "host";
	double whole = (double)(TENSORS * f->bytes), needs, sent;
	struct row row = {.in = "MB", .bare_name = name, .bare = *name ? may / 1e6 : NAN};
	zero_memory memory;
	char what[96];

	open_flattened(f);
	sent = sent_by(f->bench, f->job, lay_out, f);
	must(zero_memory_now(f->job, &memory));
	needs = (double)memory.total.peak - (f->location == ZERO_ON_DEVICE ? whole : 0);
	needs = largest(f->bench, needs);
	snprintf(what, sizeof(what), "flatten from the %s, tier %s: memory%s%s", from, f->tier,
		 *name ? " over " : "", name);
	row.what = what;
	row.ours = needs / 1e6;
	row.unit = *name ? "x" : "MB";
	row.figure = *name ? needs / may : needs / 1e6;
	write_row(f->bench, &row);
	if (sends) {
		snprintf(what, sizeof(what), "flatten from the %s, tier %s: bytes sent in all",
			 from, f->tier);
		write_sent(f->bench, what, sent, whole);
	}
	close_flattened(f);
}

static void all_tiers(struct flattened *f)
{
	double g = (double)(TENSORS * f->bytes), shard = g / f->bench->world, two = 2.0 * CHUNK;

	f->location = ZERO_ON_DEVICE;
	f->tier = "device";
	tier_rows(f, "G", g, false);
	f->tier = "distributed";
	tier_rows(f, "G/N", shard, true);
	f->tier = "host";
	tier_rows(f, "2C", two, false);
	f->location = ZERO_ON_HOST;
	f->tier = "device";
	tier_rows(f, "G + 2C", g + two, false);
	f->tier = "distributed";
	tier_rows(f, "G + 2C", g + two, true);
	f->tier = "host";
	tier_rows(f, "", 0, false);
}

/* Tensors lie in pages that no rank has looked at: those that it has then are what it read. */
static void count_reads(struct flattened *f)
{
	double whole = (double)(TENSORS * f->bytes), read;

	forget_pages(f->tensors[0], TENSORS * f->bytes);
	open_flattened(f);
	lay_out(f);
	read = total(f->bench, touched_bytes(f->tensors[0]));
	struct row row = {"flatten from the host, tier distributed: host bytes read in all",
			  read / whole,
			  "x",
			  read / 1e6,
			  whole / 1e6,
			  "MB",
			  "all of it"};
	write_row(f->bench, &row);
	close_flattened(f);
}

/* ---- the subject ----------------------------------------------------------------------------- */

static void once(struct flattened *f)
{
	if (!sharing()) {
		all_tiers(f);
		f->tier = "distributed";
		f->location = ZERO_ON_HOST;
	}
	count_reads(f);
}

static void measure(struct bench *bench, size_t count, const char *plot, double x, bool full)
{
	const struct side sides[SIDES] = {
		{ours_label(), timed_flatten},
		{"naive: every rank copies all", timed_all},
		{"floor: one rank alone copies all", timed_alone},
	};
	struct flattened f = {
		.bench = bench, .count = count, .bytes = count * 2, .tier = "distributed"};
	size_t bytes = TENSORS * f.bytes;
	char *sources = shared_pages_new(bytes);
	double seconds[SIDES];
	char what[96];

	fill((uint16_t *)(void *)sources, 0, TENSORS * count);
	for (size_t i = 0; i < TENSORS; i++)
		f.tensors[i] = sources + i * f.bytes;
	if (full && bench->world > 1)
		once(&f);
	f.tier = "auto";
	measure_sides(sides, SIDES, &f, full ? REPEATS : SWEEP_REPEATS, seconds);
	write_sides(bench, plot, x, sides, SIDES, seconds);
	snprintf(what, sizeof(what), "flatten from the host %s: time over one rank alone", where());
	if (full) {
		write_ratio(bench, what, seconds[0], seconds[2], "one rank alone");
		write_ratio(bench, "naive, every rank copies all: time over one rank alone",
			    seconds[1], seconds[2], "one rank alone");
	}
	pages_free(sources, bytes);
}

/* Models of up to 1 GiB of bf16. */
void bench_flatten(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)512 << 20) / TENSORS;

	must(zero_close(open_job(bench)));
	for (int i = 0; bench->world == 2 && i < SWEEP_POINTS; i++) {
		size_t count = sweep_count(full, i);

		measure(bench, count, "flatten-size", (double)(TENSORS * count * 2),
			i + 1 == SWEEP_POINTS);
	}
	measure(bench, sweep_count(full, SWEEP_POINTS - 2), "flatten-ranks", bench->world, false);
}
