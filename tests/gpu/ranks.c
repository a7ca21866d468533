/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core of the library on a device, over several ranks: partition, gather, reduce, step, flatten
 * against plain arrays of the host. Run by tests/gpu/run on real devices, and by the tests of
 * several ranks with stand-ins for driver and NCCL.
 *
 *	ranks            all checks
 *	ranks NAME ...   these alone: load, gather, order, update, step, flatten, model, leave,
 *	                 account, address; and capture, which is not among all
 */
#include "ranks.h"

int world, rank, last;
uint64_t seed;

/* ---- shared by the checks -------------------------------------------------------------------- */

zero_job *open_tested(const char *format, ...)
{
	char settings[400];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(settings, sizeof(settings), format, arguments);
	va_end(arguments);
	return open_job("backend=%s %s", device_on_host() ? "host" : "cuda", settings);
}

void *host_memory(size_t bytes)
{
	void *data = malloc(bytes ? bytes : 1);

	check(data, "no memory for %zu bytes", bytes);
	return data;
}

void fetch(void *out, const void *from, size_t bytes)
{
	memset(out, 0xa5, bytes);
	download(out, from, bytes);
	synchronise();
}

void random_elements(zero_dtype dtype, void *out, size_t count, uint64_t from)
{
	size_t size = zero_dtype_size(dtype);

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = mixed(seed ^ mixed(from + i * 64));
		double real = (double)signed_unit(bits);

		if (dtype == ZERO_F64)
			memcpy((char *)out + i * size, &real, size);
		else if (dtype == ZERO_BOOL)
			((char *)out)[i] = (char)(bits & 1);
		else if (dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16)
			ref_narrow(dtype, real, (char *)out + i * size);
		else
			memcpy((char *)out + i * size, &bits, size);
	}
}

void expect_gathered(zero_param *param, zero_dtype dtype, const void *want, const char *what)
{
	size_t count = zero_param_numel(param), bytes = count * zero_dtype_size(dtype), at;
	void *data = zero_data(param), *got;

	check(zero_gathered_dtype(param) == dtype, "%s: '%s'", what, zero_param_name(param));
	check(!data == !count, "%s: '%s' of %zu elements", what, zero_param_name(param), count);
	if (!count)
		return;
	got = host_memory(bytes);
	fetch(got, data, bytes);
	at = ref_difference(dtype, got, want, count);
	check(at == count, "%s: '%s' (%s) differs at element %zu of %zu; seed %llu", what,
	      zero_param_name(param), zero_dtype_name(dtype), at, count, (unsigned long long)seed);
	free(got);
}

void expect_stored(zero_param *param, zero_dtype dtype, const void *want, const char *what)
{
	size_t first, count, size = zero_dtype_size(dtype), at;
	void *data, *got;

	ok(zero_shard(param, &data, &first, &count));
	check(!data == !count, "%s: '%s'", what, zero_param_name(param));
	if (!count)
		return;
	got = host_memory(count * size);
	fetch(got, data, count * size);
	at = ref_difference(dtype, got, (const char *)want + first * size, count);
	check(at == count, "%s: what is stored of '%s' differs at element %zu of %zu", what,
	      zero_param_name(param), first + at, zero_param_numel(param));
	free(got);
}

const char *shared_file(zero_job *job, const char *name, const void *data, size_t bytes)
{
	const char *path = file_path(name), *error = NULL;
	FILE *file = NULL;

	if (rank == 0) {
		file = fopen(path, "we");
		if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file))
			error = "the test's file cannot be written";
	}
	ok(zero_agree(job, error));
	return path;
}

/* ---- small things ---------------------------------------------------------------------------- */

/* Memory is counted by kind, and all of it is freed. */
static void check_memory(int stage)
{
	zero_job *job = open_tested("stage=%d share=1", stage);
	size_t count = 4096 * (size_t)world, bytes;
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, count, true);
	zero_memory before, memory;
	void *data;

	ok(zero_layout(job));
	ok(zero_memory_now(job, &before));
	bytes = stage == 3 ? 4 * count / (size_t)world : 4 * count;
	check(before.shards.now == bytes, "stage %d: %zu, not %zu", stage, before.shards.now,
	      bytes);
	ok(zero_gather(group, ZERO_BF16));
	ok(zero_memory_now(job, &memory));
	/* a device rounds up to its granularity */
	check(memory.gathered.now >= 2 * count && memory.gathered.now < 2 * count + (4 << 20),
	      "stage %d: %zu", stage, memory.gathered.now);
	ok(zero_release(group));
	check(zero_gradient(param), "%s", zero_last_error());
	ok(zero_device_alloc(job, 12345, &data));
	ok(zero_memory_now(job, &memory));
	check(memory.gathered.now == 0, "%zu", memory.gathered.now);
	check(memory.gradients.now >= 4 * count, "%zu", memory.gradients.now);
	check(memory.caller.now >= 12345, "%zu", memory.caller.now);
	zero_device_free(job, data);
	ok(zero_memory_now(job, &memory));
	check(memory.caller.now == 0 && memory.caller.peak >= 12345, "%zu", memory.caller.now);
	check(memory.total.now == memory.shards.now + memory.gathered.now + memory.gradients.now +
					  memory.optimizer.now + memory.staging.now,
	      "total %zu", memory.total.now);
	ok(zero_close(job));
}

void check_accounts(void)
{
	zero_job *job = open_tested("stage=3");
	double values[3] = {rank, 1, -2.5 * rank};
	void *data;

	ok(zero_mean(job, values, 3, 1));
	check(values[0] == last / 2.0 && values[1] == 1 && values[2] == -2.5 * last / 2, "%g %g %g",
	      values[0], values[1], values[2]);
	fails(zero_agree(job, rank == last ? "a reason of its own" : NULL), ZERO_E_APPLICATION,
	      "a reason of its own");
	fails(zero_device_alloc(job, (size_t)1 << 50, &data), ZERO_E_MEMORY, "1125899906842624");
	ok(zero_close(job));
	for (int stage = 0; stage < 4; stage++)
		check_memory(stage);
}

/* A rank may close a job at any moment, and another job can be opened afterwards. */
void check_leaving(void)
{
	for (int moment = 0; moment < 7; moment++) {
		zero_job *job = open_tested("stage=%d allgather=grouped", moment % 4);
		zero_group *groups[2] = {NULL};
		zero_source source = zero_from_uniform(-1, 1, seed);
		zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
		zero_param *params[2];

		for (int g = 0; moment > 0 && g < 2; g++) {
			groups[g] = new_group(job, g ? "b" : "a");
			params[g] = new_param(groups[g], g ? "b" : "a", ZERO_F32, 100003, true);
		}
		if (moment > 1)
			ok(zero_layout(job));
		if (moment > 2)
			ok(zero_load(params[0], &source));
		if (moment == 4)
			ok(zero_prefetch(groups, 2, ZERO_BF16));
		if (moment > 4)
			check(zero_gradient(params[1]), "%s", zero_last_error());
		if (moment > 4)
			ok(zero_reduce(groups[1]));
		if (moment > 5)
			ok(zero_step(job, &adamw, NULL));
		ok(zero_close(job));
	}
}

/* ---- all ------------------------------------------------------------------------------------- */

static bool wanted(int argc, char **argv, const char *name)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], name))
			return true;
	return argc < 2;
}

static void each_stage(void (*checks)(const char *settings), const char *more)
{
	char settings[256];

	for (int stage = 0; stage < 4; stage++) {
		snprintf(settings, sizeof(settings), "stage=%d %s", stage, more);
		checks(settings);
	}
}

static void check_training(void)
{
	each_stage(check_steps, "");
	each_stage(check_steps, "offload=optimizer");
	check_steps("stage=3 offload=optimizer stream_chunk=1000");
	check_steps("stage=2 allgather=single");
	each_stage(check_skips, "");
	check_skips("stage=3 offload=optimizer");
	each_stage(check_low_gradients, "");
	each_stage(check_refused, "");
	check_low_gradients("stage=3 offload=optimizer");
	each_stage(check_reduce_order, "");
}

int main(int argc, char **argv)
{
	const char *why = device_open();
	zero_job *job;

	if (why) {
		printf("no GPU: %s\n", why);
		return 77;
	}
	seed = test_seed();
	job = open_tested("stage=0");
	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	if (wanted(argc, argv, "account"))
		check_accounts();
	if (wanted(argc, argv, "leave"))
		check_leaving();
	if (wanted(argc, argv, "load")) {
		each_stage(check_loads, "");
		check_loads("stage=3 stream_threshold=4096 stream_chunk=4096");
		check_loads("stage=1 stream_threshold=4096 stream_chunk=65536");
		check_file_forms("stage=3 stream_chunk=8192");
		check_file_forms("stage=0");
	}
	if (wanted(argc, argv, "gather")) {
		each_stage(check_gathers, "");
		check_gathers("stage=3 allgather=single");
		check_gathers("stage=3 allgather=auto bucket=65536");
	}
	if (wanted(argc, argv, "order")) {
		each_stage(check_order, "");
		check_order("stage=3 gather_limit=300000");
	}
	if (wanted(argc, argv, "update"))
		each_stage(check_updates, "");
	if (wanted(argc, argv, "step"))
		check_training();
	if (wanted(argc, argv, "address"))
		each_stage(check_addresses, "");
	if (wanted(argc, argv, "capture"))
		each_stage(check_captured, "");
	if (wanted(argc, argv, "flatten"))
		check_flatten();
	if (wanted(argc, argv, "model"))
		each_stage(check_models, "");
	return 0;
}
