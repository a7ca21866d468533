/* SPDX-License-Identifier: Apache-2.0 */
/* What a program may ask about a job's groups and parameters, and may change about them. */
#include <math.h>

#include "model.h"

const char *zero_param_name(const zero_param *param)
{
	return param->name;
}

zero_group *zero_param_group(const zero_param *param)
{
	return param->group;
}

zero_dtype zero_param_dtype(const zero_param *param)
{
	return param->dtype;
}

int zero_param_ndim(const zero_param *param)
{
	return param->ndim;
}

const size_t *zero_param_shape(const zero_param *param)
{
	return param->shape;
}

size_t zero_param_numel(const zero_param *param)
{
	return param->count;
}

/* ---- what may change between steps ----------------------------------------------------------- */

static zero_status check_scale(const zero_param *param, const char *what, float scale)
{
	/* NaN is refused, too. */
	if (scale >= 0 && isfinite(scale))
		return ZERO_OK;
	return zero_fail(ZERO_E_INVALID,
			 "the factor %g of %s for parameter '%s' must be finite and >= 0",
			 (double)scale, what, param->name);
}

zero_status zero_param_set_lr_scale(zero_param *param, float scale)
{
	zero_status status = check_scale(param, "the learning rate", scale);

	if (!status)
		zero_param_target(param)->lr_scale = scale;
	return status;
}

zero_status zero_param_set_weight_decay_scale(zero_param *param, float scale)
{
	zero_status status = check_scale(param, "weight decay", scale);

	if (!status)
		zero_param_target(param)->weight_decay = scale;
	return status;
}

zero_status zero_param_set_muon(zero_param *param, bool muon)
{
	const zero_job *job = param->group->job;
	zero_param *target = zero_param_target(param);

	if (!job->ops->orthogonalise)
		return zero_fail(ZERO_E_UNSUPPORTED,
				 "parameter '%s' cannot be stepped by Muon: backend %s has no gemm",
				 param->name, job->ops->name);
	if (!target->trainable || target->ndim < 2 || target->ndim > 3)
		return zero_fail(
			ZERO_E_INVALID,
			"parameter '%s' is %strainable and has %d dimensions; what Muon "
			"steps is a matrix or a stack of them: trainable, 2 or 3 dimensions",
			target->name, target->trainable ? "" : "not ", target->ndim);
	if (target->flat && (target->flat->moments.m || target->flat->moments.m_codes) &&
	    target->muon != muon)
		return zero_fail(
			ZERO_E_STATE,
			"parameter '%s' was stepped, or restored: choose Muon for it before "
			"the first step",
			target->name);
	target->muon = muon;
	return ZERO_OK;
}

zero_status zero_param_set_trainable(zero_param *param, bool trainable)
{
	if (!param->group->flats)
		return zero_fail(ZERO_E_STATE,
				 "parameter '%s' must be laid out before it is frozen: set "
				 "`trainable` of its spec",
				 param->name);
	if (!param->trainable && trainable)
		return zero_fail(ZERO_E_STATE,
				 "parameter '%s' was laid out as not trainable, without room for "
				 "gradients and states: it cannot be trained",
				 param->name);
	zero_param_target(param)->frozen = param->trainable && !trainable;
	return ZERO_OK;
}
