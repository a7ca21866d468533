/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training steps on the stand-ins, which count what a step asks of the driver and of NCCL, and what
 * is registered: nothing is allocated, mapped or registered after the first steps, and the host
 * does not wait for the device. One rank is late at random, so that the others gather ahead of it.
 *
 *	counts [STEPS]
 *	counts beside    gathers while a reduce hangs, as DOUBLE_NCCL_FAIL has it
 *	counts agree     waits for a reduce, which is slow
 */
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include "../gpu/device.h"
#include "../ranks/ranks.h"

enum { GROUPS = 6, COUNT = 5000, WARM = 8 };

typedef unsigned long long counter(const char *name);

static const char *const cuda_names[] = {
	"round_trips",
	"cuStreamSynchronize",
	"cuEventSynchronize",
	"cuEventQuery",
	"cuMemCreate",
	"cuMemMap",
	"cuMemSetAccess",
	"cuMemUnmap",
	"cuMemHostAlloc",
	"cuMemFreeHost",
	"cuMemAllocFromPoolAsync",
	"cuMemFreeAsync",
	"cuStreamWaitEvent",
	"cuEventRecord",
	"cuLaunchKernel",
	"cuMemcpyAsync",
	"cuMemsetD8Async",
};
static const char *const nccl_names[] = {
	"ncclGroupEnd",      "ncclAllGather",
	"ncclReduceScatter", "ncclAllReduce",
	"ncclBroadcast",     "ncclSend",
	"ncclRecv",          "ncclCommGetAsyncError",
	"registered_bytes",  "ncclCommWindowRegister",
	"sent_bytes",        "collective_bytes",
};

enum {
	CUDA = sizeof(cuda_names) / sizeof(*cuda_names),
	ALL = CUDA + sizeof(nccl_names) / sizeof(*nccl_names)
};

static const char *name_of(int i)
{
	return i < CUDA ? cuda_names[i] : nccl_names[i - CUDA];
}

static counter *find(const char *library, const char *name)
{
	void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
	void *symbol = handle ? dlsym(handle, name) : NULL;
	counter *found;

	check(symbol, "there is no %s: this is for the stand-ins", name);
	memcpy(&found, &symbol, sizeof(found));
	return found;
}

static void read_counts(unsigned long long *counts)
{
	counter *cuda = find("libcuda.so.1", "double_cuda_count");
	counter *nccl = find("libnccl.so.2", "double_nccl_count");

	for (int i = 0; i < ALL; i++)
		counts[i] = (i < CUDA ? cuda : nccl)(name_of(i));
}

static zero_group *groups[GROUPS];
static zero_param *params[GROUPS];

static zero_job *begin(void *stream)
{
	zero_source source = zero_from_normal(0, 1, 7);
	zero_options options = {.settings = "backend=cuda stage=3", .stream = stream};
	zero_job *job;

	ok(zero_open(&options, &job));
	for (int g = 0; g < GROUPS; g++) {
		char name[2] = {(char)('a' + g), 0};

		groups[g] = new_group(job, name);
		params[g] = new_param(groups[g], name, ZERO_F32, COUNT, true);
	}
	ok(zero_layout(job));
	for (int g = 0; g < GROUPS; g++)
		ok(zero_load(params[g], &source));
	return job;
}

static void be_late(const zero_job *job, uint64_t *random)
{
	struct timespec late = {.tv_nsec = (long)below(random, 2000000)};

	if (zero_rank(job) == zero_world(job) - 1 && below(random, 8) == 0)
		nanosleep(&late, NULL);
}

/* The gradient is the values themselves. */
static void train(zero_job *job, void *stream, uint64_t *random)
{
	zero_adamw adamw = {.lr = 1e-4F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-8F, .clip = 1};
	const float *before = NULL;

	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < GROUPS; i++) {
			int g = pass ? GROUPS - 1 - i : i, next = pass ? g - 1 : g + 1;

			ok(zero_gather(groups[g], ZERO_DTYPE_PARAM));
			if (next >= 0 && next < GROUPS)
				ok(zero_prefetch(&groups[next], 1, ZERO_DTYPE_PARAM));
			be_late(job, random);
			if (pass) {
				float *gradient = zero_gradient_undefined(params[g], ZERO_F32);

				check(gradient, "%s", zero_last_error());
				/* it is written while the one before is reduced */
				check(gradient != before, "gradients wait for a reduce");
				before = gradient;
				copy_on(stream, gradient, zero_data(params[g]),
					COUNT * sizeof(float));
				ok(zero_reduce(groups[g]));
			}
			ok(zero_release(groups[g]));
		}
	}
	ok(zero_step(job, &adamw, NULL));
}

/* How often a step may ask for it; -1: as often as it likes. */
static double most_of(const char *name)
{
	static const struct {
		const char *name;
		double most;
	} most[] = {
		{"round_trips", 0},         {"registered_bytes", 0}, {"ncclCommWindowRegister", 0},
		{"cuMemCreate", 0},         {"cuMemMap", 0},         {"cuMemSetAccess", 0},
		{"cuMemUnmap", 0},          {"cuMemHostAlloc", 0},   {"cuMemFreeHost", 0},
		{"cuStreamSynchronize", 0}, {"cuMemsetD8Async", 0},  {"cuMemAllocFromPoolAsync", 0},
	};

	for (size_t i = 0; i < sizeof(most) / sizeof(*most); i++)
		if (!strcmp(most[i].name, name))
			return most[i].most;
	return -1;
}

static void look(const char *name, double each, bool tell)
{
	double most = most_of(name);

	if (tell)
		printf("%-24s %g a step\n", name, each);
	check(most < 0 || (each <= most && each >= -most), "%s: %g a step, where %g are allowed",
	      name, each, most);
}

static void begin_reduce(void *stream)
{
	float *gradient;

	ok(zero_gather(groups[0], ZERO_DTYPE_PARAM));
	gradient = zero_gradient_undefined(params[0], ZERO_F32);
	check(gradient, "%s", zero_last_error());
	copy_on(stream, gradient, zero_data(params[0]), COUNT * sizeof(float));
	ok(zero_reduce(groups[0]));
}

/* The stream of the program goes on after a gather that was begun after a reduce without end. */
static void gather_beside(void *stream)
{
	float *values = pinned_alloc(COUNT * sizeof(float));

	begin_reduce(stream);
	ok(zero_gather(groups[1], ZERO_DTYPE_PARAM));
	memset(values, 0, COUNT * sizeof(float));
	copy_on(stream, values, zero_data(params[1]), COUNT * sizeof(float));
	stream_finish(stream);
	check(values[COUNT - 1] != 0, "it was not gathered");
	printf("gathered beside a reduce\n");
	fflush(stdout);
	_exit(0);
}

/* After zero_agree the stream of the program waits for all that was begun. */
static void agree_after(zero_job *job, void *stream)
{
	counter *nccl = find("libnccl.so.2", "double_nccl_count");
	unsigned long long before;

	stream_finish(stream);
	before = nccl("collectives");
	begin_reduce(stream);
	ok(zero_agree(job, NULL));
	stream_finish(stream);
	check(nccl("collectives") == before + 2, "it did not wait for the reduce");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int steps = argc > 1 ? atoi(argv[1]) : 100;
	unsigned long long before[ALL], after[ALL];
	const char *none = device_open();
	uint64_t random = test_seed();
	void *stream;
	zero_job *job;

	check(!none, "%s", none);
	stream = stream_new();
	job = begin(stream);
	if (!strcmp(what, "beside"))
		gather_beside(stream);
	if (!strcmp(what, "agree")) {
		agree_after(job, stream);
		ok(zero_close(job));
		return 0;
	}
	for (int i = 0; i < steps + WARM; i++) {
		if (i == WARM)
			read_counts(before);
		train(job, stream, &random);
	}
	read_counts(after);
	for (int i = 0; i < ALL; i++) {
		double each = (double)(long long)(after[i] - before[i]) / steps;

		look(name_of(i), each, zero_rank(job) == 0);
	}
	stream_finish(stream);
	ok(zero_close(job));
	return 0;
}
