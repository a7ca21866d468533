/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW: the kernel beside memory's own bandwidth, and the library's step beside the kernel. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "backend/workers.h"
#include "bench.h"

/* One thread. */
void zero_workers_run(struct zero_workers *workers, void (*work)(void *context, size_t i),
		      void *context, size_t count)
{
	(void)workers;
	for (size_t i = 0; i < count; i++)
		work(context, i);
}

enum { TRIAD_BYTES = 12, ADAMW_BYTES = 28, LOW_BYTES = 2 };

static const struct zero_adamw_args args = {.lr = 1e-3f,
					    .beta1 = 0.9f,
					    .beta2 = 0.999f,
					    .eps = 1e-8f,
					    .decay = 1e-5f,
					    .correction1 = 10,
					    .correction2 = 1000,
					    .scale = 0.5f};

/* What AdamW reads and writes. */
struct state {
	float *p, *m, *v, *g;
	uint16_t *low;
	struct zero_moments moments; /* of 8 bits */
	size_t count;
};

static struct state state_new(size_t count)
{
	struct state s = {.count = count};
	size_t bytes = count * sizeof(float);

	s.p = pages_new(bytes, false);
	s.m = pages_new(bytes, false);
	s.v = pages_new(bytes, false);
	s.g = pages_new(bytes, false);
	s.low = pages_new(bytes / 2, true);
	s.moments = (struct zero_moments){.m_codes = pages_new(count, true),
					  .v_codes = pages_new(count, true),
					  .m_absmax = pages_new(bytes / ZERO_BLOCK + 4, true),
					  .v_absmax = pages_new(bytes / ZERO_BLOCK + 4, true)};
	/* Everyday numbers: some processors are slow with subnormal ones. */
	for (size_t i = 0; i < count; i++) {
		s.p[i] = 1;
		s.m[i] = 0.01f;
		s.v[i] = 0.001f;
		s.g[i] = 0.1f;
	}
	return s;
}

static void state_free(struct state *s)
{
	size_t bytes = s->count * sizeof(float);

	pages_free(s->p, bytes);
	pages_free(s->m, bytes);
	pages_free(s->v, bytes);
	pages_free(s->g, bytes);
	pages_free(s->low, bytes / 2);
	pages_free(s->moments.m_codes, s->count);
	pages_free(s->moments.v_codes, s->count);
	pages_free(s->moments.m_absmax, bytes / ZERO_BLOCK + 4);
	pages_free(s->moments.v_absmax, bytes / ZERO_BLOCK + 4);
}

/* McCalpin's triad, out = a + s * b. */
static void triad(float *restrict out, const float *restrict a, const float *restrict b,
		  size_t count)
{
	for (size_t i = 0; i < count; i++)
		out[i] = a[i] + 0.5f * b[i];
}

/* The same past the cache: without reading what it overwrites, it moves no more than it counts. */
static void triad_past_cache(float *restrict out, const float *restrict a, const float *restrict b,
			     size_t count)
{
#ifdef __SSE2__
	const __m128 half = _mm_set1_ps(0.5f);

	for (size_t i = 0; i < count; i += 4)
		_mm_stream_ps(out + i,
			      _mm_add_ps(_mm_load_ps(a + i), _mm_mul_ps(half, _mm_load_ps(b + i))));
	_mm_sfence();
#else
	triad(out, a, b, count);
#endif
}

/* ---- the kernel, one thread ------------------------------------------------------------------ */

struct kernel {
	struct bench *bench;
	const struct zero_kernels *set;
	struct state s;
};

static double timed_streaming(void *context)
{
	struct kernel *k = context;
	double start = clock_start(k->bench);

	triad_past_cache(k->s.p, k->s.m, k->s.v, k->s.count);
	return clock_stop(k->bench, start);
}

static double timed_triad(void *context)
{
	struct kernel *k = context;
	double start = clock_start(k->bench);

	triad(k->s.p, k->s.m, k->s.v, k->s.count);
	return clock_stop(k->bench, start);
}

static double timed_full(void *context)
{
	struct kernel *k = context;
	double start = clock_start(k->bench);

	k->set->adamw(&args, k->s.p, k->s.m, k->s.v, k->s.g, NULL, ZERO_DTYPE_PARAM, k->s.count);
	return clock_stop(k->bench, start);
}

static double timed_8bit(void *context)
{
	struct kernel *k = context;
	double start = clock_start(k->bench);

	zero_cpu_run(&(struct zero_cpu){k->set, NULL}, ZERO_K_ADAMW_8BIT,
		     &(struct zero_device_adamw){
			     .args = args,
			     .p = k->s.p,
			     .moments = k->s.moments,
			     .g = k->s.g,
			     .maps = {*zero_dynamic_map(false), *zero_dynamic_map(true)},
			     .count = k->s.count});
	return clock_stop(k->bench, start);
}

static double timed_low(void *context)
{
	struct kernel *k = context;
	double start = clock_start(k->bench);

	k->set->adamw(&args, k->s.p, k->s.m, k->s.v, k->s.g, k->s.low, ZERO_BF16, k->s.count);
	return clock_stop(k->bench, start);
}

static double timed_then_cast(void *context)
{
	struct kernel *k = context;
	double start = clock_start(k->bench);

	k->set->adamw(&args, k->s.p, k->s.m, k->s.v, k->s.g, NULL, ZERO_DTYPE_PARAM, k->s.count);
	k->set->cast(ZERO_BF16, k->s.low, ZERO_F32, k->s.p, k->s.count);
	return clock_stop(k->bench, start);
}

enum { LOW, FULL, THEN_CAST, EIGHT, STREAMING, TRIAD, KERNEL_SIDES };

static const struct side kernel_sides[KERNEL_SIDES] = {
	[LOW] = {"slurm-zero, bf16 in the same pass", timed_low},
	[FULL] = {"slurm-zero, no bf16", timed_full},
	[THEN_CAST] = {"naive: AdamW, then a cast", timed_then_cast},
	[EIGHT] = {"slurm-zero, 8-bit moments", timed_8bit},
	[STREAMING] = {"triad, streaming stores", timed_streaming},
	[TRIAD] = {"triad, ordinary stores", timed_triad},
};

static void write_bandwidth(struct bench *bench, const char *what, double rate, double bare)
{
	struct row row = {what, rate / bare, "x", rate, bare, "GB/s", "triad, streaming stores"};

	write_row(bench, &row);
}

/* Rows of the machine's best instruction set have the goals' names. */
static void kernel_rows(struct bench *bench, const struct kernel *k, bool best, const double *t)
{
	const double n = (double)k->s.count, bare = n * TRIAD_BYTES / t[STREAMING] / 1e9;
	const char *isa = best ? "" : k->set->isa, *comma = best ? "" : ", ";
	char what[80];

	snprintf(what, sizeof(what), "AdamW%s%s, one thread: bandwidth", comma, isa);
	write_bandwidth(bench, what, n * ADAMW_BYTES / t[FULL] / 1e9, bare);
	snprintf(what, sizeof(what), "AdamW with 8-bit moments%s%s, one thread: elements a second",
		 comma, isa);
	struct row eight = {
		what,  t[FULL] / t[EIGHT],      "x", n / t[EIGHT] / 1e9, n / t[FULL] / 1e9,
		"G/s", "AdamW with f32 moments"};
	write_row(bench, &eight);
	snprintf(what, sizeof(what), "AdamW with bf16 output%s%s, one thread: bandwidth", comma,
		 isa);
	write_bandwidth(bench, what, n * (ADAMW_BYTES + LOW_BYTES) / t[LOW] / 1e9, bare);
	if (!best)
		return;
	write_bandwidth(bench, "triad, ordinary stores", n * TRIAD_BYTES / t[TRIAD] / 1e9, bare);
	/* DeepSpeed's CPUAdam reached 0.92 G on a core of such a machine, without the output. */
	struct row row = {"AdamW with bf16 output, one thread: elements a second",
			  n / t[LOW] / 1e9,
			  "G/s",
			  n / t[LOW] / 1e9,
			  0.92,
			  "G/s",
			  "DeepSpeed's CPUAdam, elsewhere"};
	write_row(bench, &row);
}

static void kernel_points(struct bench *bench, const struct kernel *k, const double *t)
{
	const double n = (double)k->s.count;

	for (int i = LOW; i <= THEN_CAST; i++)
		write_point(bench, "adamw-size", kernel_sides[i].label, n, t[i]);
	write_point(bench, "adamw-size", "floor: 30 bytes an element at the triad's bandwidth", n,
		    t[STREAMING] * (ADAMW_BYTES + LOW_BYTES) / TRIAD_BYTES);
}

void bench_adamw(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)64 << 20);
	double seconds[KERNEL_SIDES];

	for (int i = 0; i < SWEEP_POINTS; i++) {
		struct kernel k = {bench, zero_kernels_choose("auto"),
				   state_new(sweep_count(full, i))};
		bool last = i == SWEEP_POINTS - 1;

		measure_sides(kernel_sides, KERNEL_SIDES, &k, REPEATS, seconds);
		kernel_points(bench, &k, seconds);
		if (last)
			kernel_rows(bench, &k, true, seconds);
		for (size_t set = 1; last && zero_kernels_isa(set); set++) {
			k.set = zero_kernels_choose(zero_kernels_isa(set));
			measure_sides(kernel_sides, KERNEL_SIDES, &k, SWEEP_REPEATS, seconds);
			kernel_rows(bench, &k, false, seconds);
		}
		state_free(&k.s);
	}
}

/* ---- the library's step ---------------------------------------------------------------------- */

/* Both ranks step at one time, as in training: they share the memory's bandwidth. */
struct stepped {
	struct bench *bench;
	zero_job *job;
	struct layer layer;
	const struct zero_kernels *kernels;
	size_t count;
	struct state s; /* of the bare kernels */
	double sum;
};

static void add_gradient(struct stepped *t)
{
	float *gradient = zero_gradient(t->layer.param);

	must_be(gradient, zero_last_error());
	for (size_t i = 0; i < t->count; i++)
		gradient[i] = 0.1f;
	must(zero_reduce(t->layer.group));
	must(zero_agree(t->job, NULL));
}

static double timed_update(void *context)
{
	const zero_adamw adamw = {.lr = 1e-3f,
				  .beta1 = 0.9f,
				  .beta2 = 0.999f,
				  .eps = 1e-8f,
				  .weight_decay = 0.01f,
				  .clip = 1};
	struct stepped *t = context;
	double start = clock_start(t->bench);

	must(zero_step(t->job, &adamw, NULL));
	return clock_stop(t->bench, start);
}

static double timed_step(void *context)
{
	add_gradient(context);
	return timed_update(context);
}

static double timed_kernel(void *context)
{
	struct stepped *t = context;
	double start = clock_start(t->bench);

	t->kernels->adamw(&args, t->s.p, t->s.m, t->s.v, t->s.g, NULL, ZERO_DTYPE_PARAM,
			  t->s.count);
	return clock_stop(t->bench, start);
}

static double timed_kernels(void *context)
{
	struct stepped *t = context;
	double start = clock_start(t->bench);

	t->sum += t->kernels->norm2(t->s.g, t->s.count);
	t->kernels->adamw(&args, t->s.p, t->s.m, t->s.v, t->s.g, NULL, ZERO_DTYPE_PARAM,
			  t->s.count);
	return clock_stop(t->bench, start);
}

enum { STEP, NORM_AND_ADAMW, ADAMW, STEP_SIDES };

static const struct side step_sides[STEP_SIDES] = {
	[STEP] = {"slurm-zero: zero_step", timed_step},
	[NORM_AND_ADAMW] = {"floor: kernels of norm and AdamW", timed_kernels},
	[ADAMW] = {"AdamW's kernel alone", timed_kernel},
};

static void write_rate(struct stepped *t, const char *what, const double *seconds, int bare)
{
	double n = (double)t->s.count, x = n / seconds[STEP] / 1e9, y = n / seconds[bare] / 1e9;
	struct row row = {what, x / y, "x", x, y, "G/s a rank", step_sides[bare].label};

	write_row(t->bench, &row);
}

/* A step after the first, which allocates moments. */
static void second_step(struct stepped *t)
{
	double begin, sent;

	timed_step(t);
	add_gradient(t);
	begin = peak_begin();
	sent = sent_by(t->bench, t->job, timed_update, t);
	write_beyond(t->bench, "step: beyond its states, VmHWM",
		     largest(t->bench, peak_beyond(begin, 0)), (double)t->s.count * 16, "states");
	write_sent(t->bench, "step: bytes sent in all", sent, (double)t->count * 4);
}

static void step_of(struct bench *bench, size_t count, bool full)
{
	struct stepped t = {.bench = bench, .job = open_job(bench), .count = count};
	double seconds[STEP_SIDES];

	t.kernels = zero_kernels_choose("auto");
	t.layer = add_layer(t.job, "layer", ZERO_F32, count, true);
	must(zero_layout(t.job));
	t.s = state_new(count / (size_t)bench->world);
	if (full)
		second_step(&t);
	measure_sides(step_sides, STEP_SIDES, &t, full ? REPEATS : SWEEP_REPEATS, seconds);
	must_be(isfinite(t.sum), "the norm is not finite");
	write_sides(bench, "step-size", (double)t.s.count, step_sides, STEP_SIDES, seconds);
	if (full) {
		write_rate(&t, "step: elements a second over AdamW's kernel", seconds, ADAMW);
		write_rate(&t, "step: elements a second over kernels of norm and AdamW", seconds,
			   NORM_AND_ADAMW);
	}
	state_free(&t.s);
	must(zero_close(t.job));
}

void bench_step(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)128 << 20);

	must(zero_close(open_job(bench)));
	for (int i = 0; i < SWEEP_POINTS; i++)
		step_of(bench, sweep_count(full, i), i == SWEEP_POINTS - 1);
}

/* ---- a step by all cores of a rank ----------------------------------------------------------- */

enum { MOST_THREADS = 256 };

/* A part of the triad, which a thread of its own does. */
struct part {
	float *out;
	const float *a, *b;
	size_t count;
	pthread_t thread;
};

static void *triad_part(void *context)
{
	const struct part *part = context;

	triad_past_cache(part->out, part->a, part->b, part->count);
	return NULL;
}

static int cores(void)
{
	cpu_set_t set;
	int count = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

	return count < MOST_THREADS ? count : MOST_THREADS;
}

static double timed_triads(void *context)
{
	struct stepped *t = context;
	static struct part parts[MOST_THREADS];
	const int threads = cores();
	const size_t each = t->s.count / (size_t)threads / 64 * 64;
	double start = clock_start(t->bench);

	for (int i = 0; i < threads; i++) {
		const size_t at = (size_t)i * each;

		parts[i] = (struct part){t->s.p + at, t->s.m + at, t->s.v + at,
					 i + 1 < threads ? each : t->s.count - at, 0};
		must_be(!pthread_create(&parts[i].thread, NULL, triad_part, &parts[i]),
			"no thread");
	}
	for (int i = 0; i < threads; i++)
		pthread_join(parts[i].thread, NULL);
	return clock_stop(t->bench, start);
}

/* The gradient is made before the clock starts. */
static double timed_next_update(void *context)
{
	struct stepped *t = context;

	add_gradient(t);
	return timed_update(t);
}

enum { ALL_CORES, TRIADS, CORES_SIDES };

static const struct side cores_sides[CORES_SIDES] = {
	[ALL_CORES] = {"slurm-zero: zero_step", timed_next_update},
	[TRIADS] = {"triad, streaming stores, by as many threads", timed_triads},
};

void bench_cores(struct bench *bench)
{
	struct stepped t = {.bench = bench, .job = open_job(bench)};
	double seconds[CORES_SIDES], step_rate, triad_rate;
	struct row row = {.what = "step, all cores of a rank: bandwidth",
			  .unit = "x",
			  .in = "GB/s",
			  .bare_name = cores_sides[TRIADS].label};

	t.count = scaled(bench, (size_t)64 << 20);
	t.layer = add_layer(t.job, "layer", ZERO_F32, t.count, true);
	must(zero_layout(t.job));
	t.s = state_new(t.count);
	measure_sides(cores_sides, CORES_SIDES, &t, REPEATS, seconds);
	/* the norm reads the gradient once more */
	step_rate = (double)t.count * (ADAMW_BYTES + 4) / seconds[ALL_CORES] / 1e9;
	triad_rate = (double)t.count * TRIAD_BYTES / seconds[TRIADS] / 1e9;
	row.figure = step_rate / triad_rate;
	row.ours = step_rate;
	row.bare = triad_rate;
	write_row(bench, &row);
	state_free(&t.s);
	must(zero_close(t.job));
}
