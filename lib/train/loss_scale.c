/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss scale of f16 training (Micikevicius et al., arXiv 1710.03740): gradients are computed
 * from a scaled loss, so that few of them are too small for f16. The scale falls when a sum is not
 * finite and rises after many steps that were. All ranks compute it from equal sums, so it stays
 * equal.
 */
#include <math.h>
#include <stdio.h>

#include "train.h"

void zero_loss_scale_init(zero_loss_scale *scale)
{
	*scale = (zero_loss_scale){
		.scale = 65536,
		.growth = 2,
		.backoff = 0.5F,
		.min = 1,
		.max = 16777216,
		.interval = 2000,
	};
}

zero_status zero_loss_scale_check(const zero_loss_scale *scale)
{
	/* These comparisons refuse NaN, too. */
	if (!scale || (scale->min > 0 && scale->min <= scale->scale && scale->scale <= scale->max &&
		       isfinite(scale->max) && scale->growth >= 1 && isfinite(scale->growth) &&
		       scale->backoff > 0 && scale->backoff <= 1))
		return ZERO_OK;
	return zero_fail(ZERO_E_INVALID,
			 "the loss scale is %g, with min %g, max %g, growth %g, backoff %g: "
			 "0 < min <= scale <= max, growth >= 1, and backoff in (0, 1]",
			 (double)scale->scale, (double)scale->min, (double)scale->max,
			 (double)scale->growth, (double)scale->backoff);
}

void zero_loss_scale_label(const zero_loss_scale *scale, char *text, size_t size)
{
	*text = '\0';
	if (scale)
		snprintf(text, size,
			 "loss scale %.9g after %u good steps (growth %.9g, backoff %.9g, "
			 "%.9g to %.9g, interval %u), ",
			 (double)scale->scale, scale->good_steps, (double)scale->growth,
			 (double)scale->backoff, (double)scale->min, (double)scale->max,
			 scale->interval);
}

bool zero_loss_scale_is_kept(const zero_job *job, const zero_loss_scale *scale)
{
	return scale && scale == &job->trainer->state->loss_scale;
}

zero_status zero_device_loss_scale(zero_job *job, const zero_loss_scale *scale,
				   zero_loss_scale **address)
{
	zero_status status = zero_job_check_memory(job, "zero_device_loss_scale");
	zero_loss_scale *kept;
	char text[192];

	*address = NULL;
	if (status)
		return status;
	kept = &job->trainer->state->loss_scale;
	status = zero_loss_scale_check(scale);
	zero_loss_scale_label(scale, text, sizeof(text));
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_PROGRAM,
				  "zero_device_loss_scale: %s", text);
	if (status)
		return status;
	job->ops->copy(job->backend, kept, scale, sizeof(*kept));
	*address = kept;
	return ZERO_OK;
}
