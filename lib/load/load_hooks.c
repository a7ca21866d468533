/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks by which a job calls this room. */
#include "load.h"

static zero_status flatten(zero_job *job)
{
	return job->model->adopts ? zero_flatten_adopted(job) : ZERO_OK;
}

static bool close_load(zero_job *job)
{
	if (job->backend && !job->ops->watch_only)
		zero_staging_close(job);
	zero_slice_close(job);
	return true;
}

const struct zero_hooks zero_load_hooks = {.after_layout = flatten, .close = close_load};
