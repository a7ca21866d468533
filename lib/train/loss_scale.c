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

void zero_loss_scale_update(zero_loss_scale *scale, bool finite)
{
	if (!finite) {
		scale->scale *= scale->backoff;
		if (scale->scale < scale->min)
			scale->scale = scale->min;
		scale->good_steps = 0;
		return;
	}
	scale->good_steps += scale->good_steps < UINT32_MAX;
	if (!scale->interval || scale->good_steps < scale->interval)
		return;
	scale->scale *= scale->growth;
	/* Also if it became infinite. */
	if (scale->scale > scale->max)
		scale->scale = scale->max;
	scale->good_steps = 0;
}
