/* SPDX-License-Identifier: Apache-2.0 */
/* zero_close in every state of a job, and zero_open again afterwards. */
#include "ranks.h"

enum moment {
	OPENED,
	GROUPED,
	NAMED,
	LAID_OUT,
	LOADED,
	PREFETCHED,
	GATHERED,
	WITH_GRADIENT,
	REDUCING,
	REDUCED_TWICE,
	STEPPED,
	GATHERED_AGAIN,
	FAILED,
	MOMENTS,
};

static void live(int stage, zero_dtype as, enum moment until)
{
	zero_job *job = open_job("stage=%d allgather=%s", stage, stage % 2 ? "single" : "grouped");
	zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	zero_source source = zero_from_normal(0, 1, 1), bad = zero_from_rank(-1, NULL);
	zero_group *groups[2];
	zero_param *params[4];
	float *sums;

	if (until == OPENED)
		goto end;
	groups[0] = new_group(job, "first");
	groups[1] = new_group(job, "second");
	if (until == GROUPED)
		goto end;
	params[0] = new_param(groups[0], "a", ZERO_F32, 30000, true);
	params[1] = new_param(groups[0], "b", ZERO_F32, 3, false);
	params[2] = new_param(groups[1], "c", as == ZERO_F16 ? ZERO_F16 : ZERO_BF16, 1000, true);
	params[3] = new_param(groups[1], "d", ZERO_F32, 70, true);
	if (until == NAMED)
		goto end;
	ok(zero_layout(job));
	if (until == LAID_OUT)
		goto end;
	for (int p = 0; p < 4; p++)
		ok(zero_load(params[p], &source));
	if (until == LOADED)
		goto end;
	if (until == FAILED) {
		fails(zero_load(params[0], &bad), ZERO_E_INVALID, "rank -1");
		fails(zero_agree(job, "no"), ZERO_E_APPLICATION, "no");
		goto end;
	}
	ok(zero_prefetch(groups, 2, as));
	if (until == PREFETCHED)
		goto end;
	ok(zero_gather(groups[0], as));
	ok(zero_gather(groups[0], as));
	if (until == GATHERED)
		goto end;
	sums = zero_gradient(params[0]);
	check(sums, "%s", zero_last_error());
	sums[29999] = 1;
	if (until == WITH_GRADIENT)
		goto end;
	ok(zero_reduce(groups[0]));
	if (until == REDUCING)
		goto end;
	sums = zero_gradient(params[2]);
	check(sums, "%s", zero_last_error());
	sums[0] = 1;
	ok(zero_reduce(groups[1]));
	check(zero_gradient(params[0]), "%s", zero_last_error());
	ok(zero_reduce(groups[0]));
	if (until == REDUCED_TWICE)
		goto end;
	ok(zero_release(groups[0]));
	ok(zero_release(groups[0]));
	ok(zero_release(groups[1]));
	ok(zero_step(job, &adamw, NULL));
	if (until == STEPPED)
		goto end;
	ok(zero_gather(groups[1], as));
	check(zero_data(params[3]) && zero_gradient(params[3]), "%s", zero_last_error());
end:
	ok(zero_close(job));
}

int main(void)
{
	static const zero_dtype types[] = {ZERO_DTYPE_PARAM, ZERO_BF16, ZERO_F16, ZERO_F32};

	ok(zero_close(NULL));
	/* Each stage with one type, another one in each run. */
	for (int stage = 0; stage <= 3; stage++)
		for (int moment = OPENED; moment < MOMENTS; moment++)
			live(stage, types[((uint64_t)stage + test_seed()) % 4],
			     (enum moment)moment);
	return 0;
}
