/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains and protects after every K-th step, for protect.sh of tests/ranks and of tests/slurm: it
 * prints a digest of all values after each step, and first that of what it restores, at which step.
 *
 *	protect STEPS K [RANK STEP MICROSECONDS]   the rank is killed so long after that step began
 *
 * With GATES=FOLDER every 40th step begins when the folder has a file of its number. With
 * SAVED=PATH there is a checkpoint of step 20. With BACK=N step N is protected as number 1000, from
 * which the program then goes back. With FAILS it ends with status 3, after zero_close.
 * ZERO_TEST_STAGE is its stage (3).
 */
#include <pthread.h>
#include <signal.h>

#include "ranks.h"

enum { GROUPS = 3, GATE = 40, SAVE = 20 };

static const size_t counts[GROUPS] = {300007, 5, 70001};
static const zero_dtype dtypes[GROUPS] = {ZERO_F32, ZERO_F32, ZERO_BF16};
static zero_group *groups[GROUPS];
static zero_param *params[GROUPS];

static uint64_t digest_of(zero_job *job)
{
	uint64_t digest = 1;

	for (int g = 0; g < GROUPS; g++) {
		const unsigned char *data;
		size_t bytes = counts[g] * zero_dtype_size(dtypes[g]);

		ok(zero_gather(groups[g], ZERO_DTYPE_PARAM));
		data = zero_data(params[g]);
		for (size_t i = 0; i < bytes; i++)
			digest = digest * 1099511628211U + data[i];
		ok(zero_release(groups[g]));
	}
	(void)job;
	return digest;
}

static void say(zero_job *job, const char *what, uint64_t step, uint64_t digest)
{
	if (zero_rank(job) == 0) {
		printf("%s %llu %016llx\n", what, (unsigned long long)step,
		       (unsigned long long)digest);
		fflush(stdout);
	}
}

static void train(zero_job *job, uint64_t step)
{
	zero_adamw adamw = {.lr = 1e-2F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-8F, .clip = 1};

	for (int g = 0; g < GROUPS; g++) {
		uint64_t random = step * 7 + (uint64_t)g + 31 * (uint64_t)zero_rank(job);
		float *gradient = zero_gradient(params[g]);

		check(gradient, "%s", zero_last_error());
		for (size_t i = 0; i < counts[g]; i++)
			gradient[i] = signed_unit(draw(&random));
		ok(zero_reduce(groups[g]));
	}
	ok(zero_step(job, &adamw, NULL));
}

static void build(zero_job *job)
{
	zero_source source = zero_from_normal(0, 1, 7);

	for (int g = 0; g < GROUPS; g++) {
		char name[2] = {(char)('a' + g), 0};

		groups[g] = new_group(job, name);
		params[g] = new_param(groups[g], name, dtypes[g], counts[g], true);
	}
	ok(zero_layout(job));
	for (int g = 0; g < GROUPS; g++)
		ok(zero_load(params[g], &source));
}

/* Returns the step that it goes on after. */
static uint64_t restore(zero_job *job)
{
	zero_checkpoint_info info;
	zero_protected found;
	char user[32];

	ok(zero_protect_find(job, getenv("SAVED"), &found));
	if (!found.path)
		return 0;
	check(found.step && !found.world == !found.manifest_bytes, "nothing is said of it");
	check((found.world == zero_world(job)) == !!found.own, "own bytes of another world");
	snprintf(user, sizeof(user), "rank %d", zero_rank(job));
	check(!found.own || !strcmp(found.own, user), "own bytes: %s", (const char *)found.own);
	ok(zero_restore(job, found.path, &info));
	snprintf(user, sizeof(user), "step %llu", (unsigned long long)found.step);
	check(info.step == found.step && !strcmp(info.user, user), "user bytes: %s",
	      (const char *)info.user);
	zero_checkpoint_info_free(&info);
	say(job, "from", found.step, digest_of(job));
	return found.step;
}

static void protect(zero_job *job, uint64_t every, uint64_t step)
{
	char user[32], own[32];
	zero_protect_options options = {.every = every, .user = user, .own = own};

	if (getenv("BACK") && step == strtoull(getenv("BACK"), NULL, 10))
		options.step = 1000;
	options.user_bytes =
		(size_t)snprintf(user, sizeof(user), "step %llu", (unsigned long long)step) + 1;
	options.own_bytes = (size_t)snprintf(own, sizeof(own), "rank %d", zero_rank(job)) + 1;
	ok(zero_protect(job, &options));
	if (step == SAVE && getenv("SAVED")) {
		zero_save_options save = {.user = user, .user_bytes = options.user_bytes};

		ok(zero_save(job, getenv("SAVED"), &save));
	}
}

static void wait_at_gate(uint64_t step)
{
	const char *folder = getenv("GATES");
	char path[4096];

	snprintf(path, sizeof(path), "%s/%llu", folder ? folder : "", (unsigned long long)step);
	while (folder && step % GATE == 0 && access(path, F_OK))
		usleep(1000);
}

static void *killer(void *context)
{
	usleep(*(useconds_t *)context);
	raise(SIGKILL);
	return NULL;
}

static void be_killed_after(useconds_t *delay)
{
	pthread_t thread;

	check(!pthread_create(&thread, NULL, killer, delay), "no thread");
	pthread_detach(thread);
}

int main(int argc, char **argv)
{
	uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 3;
	uint64_t every = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	int rank = argc > 5 ? atoi(argv[3]) : -1;
	uint64_t last = argc > 5 ? strtoull(argv[4], NULL, 10) : 0;
	static useconds_t delay;
	const char *stage = getenv("ZERO_TEST_STAGE");
	zero_job *job = open_job("stage=%s", stage ? stage : "3");

	delay = argc > 5 ? (useconds_t)atoi(argv[5]) : 0;
	build(job);
	for (uint64_t step = restore(job) + 1; step <= steps; step++) {
		wait_at_gate(step);
		if (step == last && zero_rank(job) == rank)
			be_killed_after(&delay);
		train(job, step);
		protect(job, every, step);
		say(job, "step", step, digest_of(job));
	}
	ok(zero_close(job));
	return getenv("FAILS") ? 3 : 0;
}
