/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory: partitioning takes the shard and nothing beside it, as the kernel counts; and where there
 * is no memory on one rank, the call fails on all of them with that rank's sentence, after which
 * the job goes on.
 */
#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>

#include "ranks.h"

enum { SLACK = 16 << 20 };

#define LARGE ((size_t)32 << 20) /* elements of bf16: 64 MB */
#define GROUP ((size_t)4 << 20)  /* elements of f32: 16 MB */

static int world, rank, last;

/* ---- as much as the shard -------------------------------------------------------------------- */

/* Forgets the peak so far; false if this kernel does not let us. */
static bool reset_peak(void)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY);
	bool done = fd >= 0 && write(fd, "5", 1) == 1;

	if (fd >= 0)
		close(fd);
	return done;
}

static void shard_alone(bool from_file)
{
	size_t shape[] = {LARGE}, first, count, before, peak, bound;
	zero_tensor tensor = {.dtype = ZERO_BF16, .ndim = 1, .path = file_path("large")};
	uint16_t *values = NULL, mark = 0x4242;
	zero_source source;
	zero_param *param;
	zero_group *group;
	zero_job *job;
	void *shard;
	int fd;

	tensor.shape[0] = shape[0];
	if (from_file && rank == 0) {
		/* Holes read as zeros and cost no disk. */
		fd = open(tensor.path, O_WRONLY | O_CREAT, 0600);
		check(fd >= 0 && !ftruncate(fd, (off_t)(2 * LARGE)) &&
			      pwrite(fd, &mark, 2, (off_t)(2 * LARGE - 2)) == 2,
		      "no large file");
		close(fd);
	}
	if (!from_file && rank == 0) {
		values = malloc(2 * LARGE);
		check(values, "no memory for the source");
		memset(values, 0, 2 * LARGE);
		values[LARGE - 1] = mark;
	}
	job = open_job("stage=3 share=1");
	group = new_group(job, "g");
	param = new_param(group, "p", ZERO_BF16, LARGE, false);
	source = from_file ? zero_from_file(&tensor) : zero_from_rank(0, values);
	ok(zero_agree(job, NULL));
	before = process_bytes("VmRSS:");
	if (reset_peak()) {
		ok(zero_layout(job));
		ok(zero_load(param, &source));
		peak = process_bytes("VmHWM:");
		bound = before + 2 * LARGE / (size_t)world + SLACK;
		check(peak <= bound, "%s: the peak was %zu MB, %zu more than the %zu allowed",
		      from_file ? "from a file" : "from rank 0", peak >> 20, (peak - bound) >> 20,
		      bound >> 20);
		ok(zero_shard(param, &shard, &first, &count));
		check(count == LARGE / (size_t)world || world == 3, "%zu", count);
		check(rank != last || ((uint16_t *)shard)[count - 1] == mark, "the last element");
	}
	ok(zero_close(job));
	free(values);
}

/* What is freed is kept for the next use, but the process never holds more than the job's peak. */
static void idle_is_given_back(void)
{
	const size_t unit = (size_t)2 << 20, most = 8;
	zero_job *job = open_job("stage=3");
	size_t before = process_bytes("VmRSS:"), after;
	void *data;

	/* Each is too large for what the one before has left. */
	for (size_t units = 3; units <= most; units++) {
		ok(zero_device_alloc(job, units * unit, &data));
		memset(data, 1, units * unit);
		zero_device_free(job, data);
	}
	after = process_bytes("VmRSS:");
	check(after <= before + (most + 2) * unit, "%zu MB are held, and %zu at most were used",
	      (after - before) >> 20, most * unit >> 20);
	ok(zero_close(job));
}

/* ---- none to be had -------------------------------------------------------------------------- */

/* What the process takes beside the library's buffers; a sanitizer takes more and more. */
static size_t beside;
#ifdef __SANITIZE_ADDRESS__
enum { CAN_LIMIT = false };
#else
enum { CAN_LIMIT = true };
#endif

/* The last rank may take no more than a little; or as much as it likes. */
static void limit(zero_job *job, bool on)
{
	struct rlimit limit;
	zero_memory memory;

	if (rank != last)
		return;
	ok(zero_memory_now(job, &memory));
	getrlimit(RLIMIT_AS, &limit);
	/* Buffers that the library keeps for the next use do not count: it gives them back. */
	limit.rlim_cur = on ? beside + memory.total.now + (6 << 20) : limit.rlim_max;
	check(!setrlimit(RLIMIT_AS, &limit), "no limit");
}

static void check_sentence(zero_job *job, zero_status status, const char *kind)
{
	limit(job, false);
	check(status, "no %s were to be had, but there were", kind);
	fails(status, ZERO_E_MEMORY, kind);
	check(strstr(zero_last_error(), "no memory for ") &&
		      strstr(zero_last_error(), " bytes of "),
	      "%s", zero_last_error());
	check(!strstr(zero_last_error(), "): rank "), "told twice: %s", zero_last_error());
	check(zero_last_error_rank() == last, "%d: %s", zero_last_error_rank(), zero_last_error());
}

static void none_to_be_had(int stage, zero_dtype as)
{
	zero_adamw adamw = {.lr = 1, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	zero_job *job = open_job("stage=%d share=1", stage);
	zero_group *group = new_group(job, "g"), *other = new_group(job, "h");
	zero_param *param = new_param(group, "p", ZERO_F32, GROUP * (size_t)world, true);
	zero_source source = zero_from_constant(1);
	float *sums, *value;
	zero_memory memory;
	double missing[16];

	ok(zero_memory_now(job, &memory));
	beside = process_bytes("VmSize:") - memory.total.now;
	new_param(other, "q", ZERO_F32, 100, true);
	limit(job, true);
	check_sentence(job, zero_layout(job), "shards");
	ok(zero_memory_now(job, &memory));
	check(memory.shards.now == 0, "%zu", memory.shards.now);
	ok(zero_layout(job));
	ok(zero_load(param, &source));

	if (as != ZERO_DTYPE_PARAM) {
		limit(job, true);
		check_sentence(job, zero_gather(group, as), "gathered parameters");
		check(!zero_data(param), "data");
		limit(job, true);
		ok(zero_prefetch(&group, 1, as));
		check_sentence(job, zero_gather(group, as), "gathered parameters");
		ok(zero_gather(group, as));
		ok(zero_release(group));
	}

	/* Its own gradient: a matter of that rank alone. */
	limit(job, true);
	sums = rank == last ? zero_gradient(param) : NULL;
	limit(job, false);
	check(!sums, "a gradient in spite of the limit");
	if (rank == last)
		fails(ZERO_E_MEMORY, ZERO_E_MEMORY, "of gradients");
	all_values(job, rank == last, missing);
	check(missing[last] > 0.5, "%g", missing[last]);

	/* A rank that made none gives zeros, for which it needs memory too. */
	limit(job, true);
	ok(zero_reduce(group));
	check_sentence(job, zero_step(job, &adamw, NULL), "gradients");
	ok(zero_memory_now(job, &memory));
	check(memory.gradients.now == 0, "%zu bytes of a refused reduce", memory.gradients.now);

	sums = zero_gradient(param);
	check(sums, "%s", zero_last_error());
	sums[0] = 1;
	ok(zero_reduce(group));
	ok(zero_reduce(other));
	ok(zero_agree(job, NULL));
	sums = zero_gradient(param);
	check(sums, "%s", zero_last_error());
	sums[0] = 100;
	limit(job, true);
	check_sentence(job, zero_step(job, &adamw, NULL), "optimizer states");

	sums = zero_gradient(param);
	check(sums && sums[0] == 0, "what the failed step left");
	sums[0] = 1;
	ok(zero_step(job, &adamw, NULL));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	value = zero_data(param);
	check(value[0] < 0.1F && value[1] == 1, "%g %g", (double)value[0], (double)value[1]);
	ok(zero_close(job));
}

/* A rank whose peer is late holds the gradients of the reduces that may be under way, and no more,
   however many it would begin. */
static void bounded_gradients(void)
{
	enum { GROUPS = 8, MOST = 3, COUNT = 64 << 10 };
	zero_job *job = open_job("stage=3 share=1");
	zero_group *groups[GROUPS];
	zero_param *params[GROUPS];
	zero_memory before, after;
	size_t one, part = COUNT * sizeof(float);
	char name[8], path[1024];
	int file;

	for (int g = 0; g < GROUPS; g++) {
		snprintf(name, sizeof(name), "%d", g);
		groups[g] = new_group(job, name);
		params[g] = new_param(groups[g], name, ZERO_F32, COUNT * (size_t)world, true);
	}
	ok(zero_layout(job));
	snprintf(path, sizeof(path), "%s", file_path("all are begun"));
	ok(zero_memory_now(job, &before));
	/* If the first rank need not wait, it begins all of them meanwhile. */
	for (int wait = 0; rank == last && world > 1 && wait < 100; wait++)
		if (access(path, F_OK))
			usleep(3000);
	for (int g = 0; g < GROUPS; g++) {
		check(zero_gradient(params[g]), "%s", zero_last_error());
		ok(zero_reduce(groups[g]));
	}
	file = rank ? -1 : open(path, O_WRONLY | O_CREAT, 0600);
	check(rank || file >= 0, "%s", path);
	if (file >= 0)
		close(file);
	ok(zero_agree(job, NULL));
	ok(zero_memory_now(job, &after));
	one = world > 1 ? part * (size_t)world : 0; /* alone they are summed in place */
	check(after.gradients.peak - before.gradients.now <= MOST * one + GROUPS * part,
	      "%zu bytes of gradients at once, where one group has %zu", after.gradients.peak, one);
	ok(zero_close(job));
}

int main(void)
{
	zero_job *job;

	/* Other threads' heaps would come and go in what is limited. */
	mallopt(M_ARENA_MAX, 1);
	job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	idle_is_given_back();
	bounded_gradients();
	shard_alone(true);
	shard_alone(false);
	if (CAN_LIMIT) {
		none_to_be_had(3, ZERO_BF16);
		none_to_be_had(0, ZERO_F16);
		none_to_be_had(1, ZERO_DTYPE_PARAM);
	}
	return 0;
}
