/* SPDX-License-Identifier: Apache-2.0 */
/* What a program may ask about a job's groups and parameters. */
#include "model.h"

size_t zero_job_group_count(const zero_job *job)
{
	return job->model->group_count;
}

zero_group *zero_job_group(const zero_job *job, size_t i)
{
	return i < job->model->group_count ? job->model->groups[i] : NULL;
}

const char *zero_group_name(const zero_group *group)
{
	return group->name;
}

zero_team *zero_group_team(const zero_group *group)
{
	return group->team == &group->job->all ? NULL : group->team;
}

size_t zero_group_param_count(const zero_group *group)
{
	return group->param_count;
}

zero_param *zero_group_param(const zero_group *group, size_t i)
{
	return i < group->param_count ? group->params[i] : NULL;
}

const char *zero_param_name(const zero_param *param)
{
	return param->name;
}

zero_group *zero_param_group(const zero_param *param)
{
	return param->group;
}

zero_param *zero_param_alias_of(const zero_param *param)
{
	return param->alias_of;
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

bool zero_param_trainable(const zero_param *param)
{
	return param->trainable;
}
