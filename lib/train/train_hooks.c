/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks by which a job calls this room. */
#include "train.h"

/* What is under way must end before its buffers are freed. */
static void wait_all(zero_job *job, bool together)
{
	(void)together;
	for (size_t g = 0; g < job->model->group_count; g++) {
		zero_group *group = job->model->groups[g];

		zero_gather_wait(group);
		zero_reduce_end(group);
		zero_work_wait(job, &group->post_step_gather);
	}
	for (int i = 0; i < ZERO_REDUCES; i++)
		zero_work_wait(job, &job->trainer->reduces[i]);
}

static bool close_train(zero_job *job)
{
	zero_unmapped_access_close();
	for (size_t g = 0; g < job->model->group_count; g++)
		zero_gather_free(job->model->groups[g]);
	zero_step_state_free(job);
	return true;
}

const struct zero_hooks zero_train_hooks = {
	.before_submit = zero_check_pending,
	.after_layout = zero_unmapped_access_open,
	.before_close = wait_all,
	.close = close_train,
};
