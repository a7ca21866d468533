/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that run out of memory: each allocation that the library makes in a step fails once, on all
 * ranks. Then either nothing has changed, and the step can be taken again, or nothing goes on
 * before a restore; the values are those of a step that was not disturbed.
 */
#include <dlfcn.h>

#include "ranks.h"

enum { VALUES = 3000 };

static const zero_adamw plain = {
	.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F, .weight_decay = 0.1F};

struct model {
	zero_job *job;
	zero_group *groups[2];
	zero_param *params[2];
};

static int world;

static struct model begin(void)
{
	struct model m = {.job = open_job("stage=1")};

	world = zero_world(m.job);
	for (int g = 0; g < 2; g++) {
		m.groups[g] = new_group(m.job, g ? "h" : "g");
		m.params[g] = new_param(m.groups[g], g ? "q" : "p", ZERO_F32, VALUES, true);
	}
	ok(zero_layout(m.job));
	return m;
}

/* This allocation of the library from now on, in the thread that calls it, fails; 0: none.
   Sanitizers have allocators of their own. */
static int refuse;

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
enum { CAN_REFUSE = true };

void *__libc_calloc(size_t count, size_t size);
void *__libc_malloc(size_t size);

static bool is_refused(void *caller)
{
	Dl_info info;

	if (!refuse || gettid() != getpid() || !dladdr(caller, &info) || !info.dli_fname)
		return false;
	if (!strstr(info.dli_fname, "libzero.so") && !strstr(info.dli_fname, "zero_host.so"))
		return false;
	return !--refuse;
}

void *calloc(size_t count, size_t size)
{
	return is_refused(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *malloc(size_t size)
{
	return is_refused(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}
#else
enum { CAN_REFUSE = false };
#endif

static zero_status reduce(struct model *m, int g, int refused)
{
	float *sums = zero_gradient(m->params[g]);
	zero_status status;

	check(sums, "%s", zero_last_error());
	for (size_t i = 0; i < VALUES; i++)
		sums[i] = signed_unit(mixed(i * 2 + (size_t)g));
	refuse = refused;
	status = zero_reduce(m->groups[g]);
	refuse = 0;
	return status;
}

static zero_status one_step(struct model *m, int refused)
{
	zero_status status;

	for (int g = 0; g < 2; g++)
		ok(reduce(m, g, 0));
	/* from here on the calling thread allocates the same on each rank */
	ok(zero_agree(m->job, NULL));
	refuse = refused;
	status = zero_step(m->job, &plain, NULL);
	refuse = 0;
	return status;
}

static void read_values(const struct model *m, float values[2][VALUES])
{
	for (int g = 0; g < 2; g++) {
		ok(zero_gather(m->groups[g], ZERO_DTYPE_PARAM));
		memcpy(values[g], zero_data(m->params[g]), sizeof(values[g]));
		ok(zero_release(m->groups[g]));
	}
}

/* An allocation of the second step fails on all ranks. Returns whether the step succeeded. */
static bool without_memory(int refused, float want[2][VALUES], bool *was_torn)
{
	static float values[2][VALUES];
	struct model m = begin();
	const char *dir = file_path("no-memory");
	zero_status status;

	ok(one_step(&m, 0));
	ok(zero_save(m.job, dir, NULL));
	status = one_step(&m, refused);
	check(!status || status == ZERO_E_MEMORY, "%s: %s", zero_strerror(status),
	      zero_last_error());
	if (status && strstr(zero_last_error(), "the step had begun")) {
		*was_torn = true;
		fails(one_step(&m, 0), ZERO_E_STATE, "until zero_restore");
		fails(zero_save(m.job, dir, NULL), ZERO_E_STATE, "zero_save is refused");
		fails(zero_export(m.job, dir), ZERO_E_STATE, "zero_export is refused");
		ok(zero_restore(m.job, dir, NULL));
	}
	if (status)
		ok(one_step(&m, 0));
	read_values(&m, values);
	if (!refused)
		memcpy(want, values, sizeof(values));
	check(!memcmp(want, values, sizeof(values)), "other values, refused %d", refused);
	ok(zero_save(m.job, dir, NULL));
	ok(zero_close(m.job));
	return !status;
}

/* A rank has no memory for its second reduce of a group: the program's own step is refused, as one
   of the library's would be, and leaves no sums to the next. */
static void second_reduce_fails(void)
{
	static float want[2][VALUES], values[2][VALUES];
	size_t first, count;
	float *sums;

	for (int failed = 0; failed < 2; failed++) {
		struct model m = begin();

		if (failed) {
			ok(reduce(&m, 0, 0));
			/* the others learn it in the next call that waits */
			reduce(&m, 0, zero_rank(m.job) == world - 1);
			fails(zero_step_begin(m.job, m.groups, 2), ZERO_E_MEMORY, "no memory");
			ok(zero_gradient_shard(m.params[0], &sums, &first, &count));
			check(!sums, "sums of a reduce that failed");
		}
		ok(one_step(&m, 0));
		read_values(&m, failed ? values : want);
		ok(zero_close(m.job));
	}
	check(!memcmp(want, values, sizeof(values)), "other values after a failed reduce");
}

int main(void)
{
	static float want[2][VALUES];
	bool was_torn = false;
	int refused = 1;

	if (!CAN_REFUSE || on_gpu())
		return 0;
	without_memory(0, want, &was_torn);
	if (world > 1)
		second_reduce_fails();
	while (!without_memory(refused, want, &was_torn))
		refused++;
	/* A rank alone has nobody to be torn from. */
	check(refused > 3 && was_torn == (world > 1), "%d allocations", refused);
	return 0;
}
