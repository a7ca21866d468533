/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZERO_CHECK=1: the release of a group finds, by checksums, parameters that were changed without
 * zero_param_changed. The rank reports it to all others with its next submission.
 */
#include <string.h>

#include "load/load.h"
#include "train.h"

static uint64_t rotate(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

/* A round of xxHash64 (Collet): a changed word changes the lane, whatever came before. */
static uint64_t mix(uint64_t lane, uint64_t word)
{
	return rotate(lane + word * UINT64_C(0xc2b2ae3d27d4eb4f), 31) *
	       UINT64_C(0x9e3779b185ebca87);
}

/* Four lanes of 8 bytes, so that the processor overlaps their rounds. */
struct sum {
	uint64_t lanes[4];
};

/* `bytes` is a multiple of 32 in all calls but the last. */
static void add(struct sum *sum, const void *data, size_t bytes)
{
	uint64_t words[4];
	const char *at = data;

	for (; bytes >= sizeof(words); bytes -= sizeof(words), at += sizeof(words)) {
		memcpy(words, at, sizeof(words));
		for (int lane = 0; lane < 4; lane++)
			sum->lanes[lane] = mix(sum->lanes[lane], words[lane]);
	}
	if (!bytes)
		return;
	memset(words, 0, sizeof(words));
	memcpy(words, at, bytes);
	for (int lane = 0; lane < 4; lane++)
		sum->lanes[lane] = mix(sum->lanes[lane], words[lane]);
}

static zero_status add_piece(void *context, const void *data, size_t at, size_t bytes)
{
	(void)at;
	add(context, data, bytes);
	return ZERO_OK;
}

/* Errors of the device come with the next submission. */
static uint64_t sum_of(zero_job *job, const void *data, size_t bytes)
{
	struct sum sum = {{1, 2, 3, 4}};
	uint64_t all = bytes;

	if (!data)
		return 0;
	if (job->ops->host_memory)
		add(&sum, data, bytes);
	else
		zero_staging_out(job, data, bytes, add_piece, &sum);
	for (int lane = 0; lane < 4; lane++)
		all = mix(all, sum.lanes[lane]);
	return all;
}

static uint64_t gathered_sum(const zero_param *param)
{
	size_t bytes = param->count * zero_dtype_size(zero_gathered_dtype_locked(param));

	return sum_of(param->group->job, zero_data(param), bytes);
}

static uint64_t slice_sum(const zero_group *slice)
{
	const struct zero_segment *segment = &slice->flats[0].segments[0];
	zero_dtype dtype = zero_gather_buffer_dtype(segment, slice->gathered_as);

	return sum_of(slice->job, zero_slice_data(slice), segment->count * zero_dtype_size(dtype));
}

void zero_check_record(zero_group *group)
{
	pthread_mutex_lock(&group->job->lock);
	/* Another thread may have gathered the group before and changed it since. */
	for (size_t p = 0; !group->checked && p < group->param_count; p++)
		if (!group->params[p]->alias_of)
			group->params[p]->checksum = gathered_sum(group->params[p]);
	if (!group->checked && group->parent)
		group->checksum = slice_sum(group);
	group->checked = true;
	pthread_mutex_unlock(&group->job->lock);
}

void zero_check_record_param(zero_param *param)
{
	pthread_mutex_lock(&param->group->job->lock);
	param->checksum = gathered_sum(param);
	pthread_mutex_unlock(&param->group->job->lock);
}

static zero_status changed_error(const zero_param *param)
{
	return zero_fail(ZERO_E_STATE,
			 "parameter '%s' was changed between the gather and the release of group "
			 "'%s': gathered values are read-only, unless all ranks call "
			 "zero_param_changed(param, rank) after `rank` has changed it",
			 param->name, param->group->name);
}

/* Only the first change is reported: the others may follow from it. */
static zero_status found_changed(const zero_param *param)
{
	const zero_param *none = NULL;

	atomic_compare_exchange_strong(&param->group->job->trainer->changed, &none, param);
	return changed_error(param);
}

zero_status zero_check_compare(zero_group *group)
{
	if (group->checked && group->parent && slice_sum(group) != group->checksum)
		return found_changed(group->parent->params[0]);
	for (size_t p = 0; group->checked && p < group->param_count; p++) {
		const zero_param *param = group->params[p];

		if (!param->alias_of && gathered_sum(param) != param->checksum)
			return found_changed(param);
	}
	return ZERO_OK;
}

zero_status zero_check_pending(zero_job *job)
{
	const zero_param *param =
		zero_check_enabled(job) ? atomic_exchange(&job->trainer->changed, NULL) : NULL;

	return param ? changed_error(param) : ZERO_OK;
}
