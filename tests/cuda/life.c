/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a job on GPUs from zero_open to zero_close, for tests/cuda/errors.sh, which makes calls
 * fail. An error is a sentence on every rank, no rank waits for ever, and all memory is freed.
 * Prints "ok" or the call that failed and why, and ends with status 0 in both cases.
 *
 * With "retry" it repeats a call that had no memory, with a smaller chunk and smaller groups. With
 * "die" rank 1 is killed between two steps, when no device works. With "team" the first group is
 * that of a team of ranks 1 and 2.
 */
#include <signal.h>

#include "../ranks/ranks.h"

enum { COUNT = 50000, SMALL = 700 };

static float values[COUNT];
static bool dies, has_team;

struct life {
	zero_job *job;
	zero_group *groups[2];
	zero_param *large, *small, *half;
};

/* Prints what failed. */
static bool went(zero_status status, const char *call)
{
	if (!status)
		return true;
	printf("rank %d: %s: %s: %s (of rank %d)\n", zero_rank(NULL), call, zero_strerror(status),
	       *zero_last_error() ? zero_last_error() : "(no sentence)", zero_last_error_rank());
	fflush(stdout);
	return false;
}

#define try(call) (went(call, #call))

static bool declare(struct life *life)
{
	static const int members[] = {1, 2};
	zero_team *team = NULL;

	if (has_team && !try(zero_team_new(life->job, members, 2, &team)))
		return false;
	for (int g = 0; g < 2; g++)
		if (!try(zero_group_new(life->job, g ? "second" : "first", g ? NULL : team,
					&life->groups[g])))
			return false;
	life->large = new_param(life->groups[0], "large", ZERO_F32, COUNT, true);
	life->small = new_param(life->groups[1], "small", ZERO_F32, SMALL, true);
	life->half = new_param(life->groups[1], "half", ZERO_BF16, SMALL, true);
	return try(zero_group_gradient_dtype(life->groups[1], ZERO_BF16)) &&
	       try(zero_layout(life->job));
}

static bool is_member(const struct life *life)
{
	return !has_team || zero_rank(life->job);
}

static bool load(struct life *life)
{
	zero_source from_rank = zero_from_rank(0, zero_rank(life->job) ? NULL : values);
	zero_source from_all = zero_from_all(values), constant = zero_from_constant(0.5);
	zero_source normal = zero_from_normal(0, 1, 7);

	if (!has_team && !try(zero_load(life->large, &from_rank)))
		return false;
	return (!is_member(life) || try(zero_load(life->large, &from_all))) &&
	       try(zero_load(life->small, &normal)) && try(zero_load(life->half, &constant));
}

static bool train(struct life *life)
{
	zero_adamw adamw = {.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-8F, .clip = 1};

	for (int step = 0; step < 2; step++) {
		if (step && dies && zero_rank(life->job) == 1)
			kill(getpid(), SIGKILL);
		if (!has_team && !try(zero_prefetch(life->groups, 2, ZERO_BF16)))
			return false;
		for (int g = is_member(life) ? 0 : 1; g < 2; g++) {
			if (!try(zero_gather(life->groups[g], ZERO_BF16)))
				return false;
			if (g ? !zero_gradient_as(life->half, ZERO_BF16)
			      : !zero_gradient(life->large))
				return went(ZERO_E_MEMORY, "zero_gradient");
			if (!try(zero_release(life->groups[g])) ||
			    !try(zero_reduce(life->groups[g])))
				return false;
		}
		if (!try(zero_step(life->job, &adamw, NULL)))
			return false;
	}
	return true;
}

static bool live(const zero_options *options)
{
	struct life life = {0};
	char path[1200];
	bool well;

	snprintf(path, sizeof(path), "%s", file_path("life.safetensors"));
	if (!try(zero_open(options, &life.job)))
		return false;
	well = declare(&life) && load(&life) && train(&life) && try(zero_export(life.job, path));
	try(zero_close(life.job));
	return well;
}

int main(int argc, char **argv)
{
	static const char *const settings[] = {"stage=3", "stage=2 offload=optimizer", "stage=0"};
	bool retries = argc > 1 && !strcmp(argv[1], "retry");
	zero_options options = {.settings = settings[0]};

	dies = argc > 1 && !strcmp(argv[1], "die");
	has_team = argc > 1 && !strcmp(argv[1], "team");
	for (size_t i = 0; i < COUNT; i++)
		values[i] = (float)i;
	for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
		options.settings = settings[s];
		if (live(&options))
			continue;
		if (!retries)
			return 0;
		check(live(&options), "the job did not come to life again");
	}
	printf("rank %d: ok\n", zero_rank(NULL));
	return 0;
}
