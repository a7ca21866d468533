/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gather buffers: in which type and where a parameter is read while its group is gathered. One has
 * the same address each time; its memory may have been with another group meanwhile.
 */
#include "train.h"

zero_dtype zero_gather_buffer_dtype(const struct zero_segment *segment, zero_dtype as)
{
	bool changes = segment->dtype == ZERO_F32 || segment->dtype == ZERO_F16 ||
		       segment->dtype == ZERO_BF16;

	return as != ZERO_DTYPE_PARAM && changes ? as : segment->dtype;
}

zero_status zero_gather_check(const zero_group *group, zero_dtype as)
{
	if (!group->flats)
		return zero_fail(ZERO_E_STATE, "group '%s' is gathered before zero_layout",
				 group->name);
	if (!zero_is_member(group))
		return zero_require_member(group, "gathered");
	if (as != ZERO_DTYPE_PARAM && as != ZERO_F32 && as != ZERO_F16 && as != ZERO_BF16)
		return zero_fail(ZERO_E_INVALID,
				 "group '%s' cannot be gathered as %s: param, f32, f16 or bf16",
				 group->name, zero_dtype_name(as));
	for (size_t f = 0; f < group->flat_count; f++)
		for (size_t r = 0; r < group->flats[f].segment_count; r++) {
			zero_dtype from = group->flats[f].segments[r].dtype;
			zero_dtype to = zero_gather_buffer_dtype(&group->flats[f].segments[r], as);

			if (from != to && from != ZERO_F32 && to != ZERO_F32)
				return zero_fail(
					ZERO_E_INVALID,
					"group '%s' has parameters of %s, which cannot be gathered "
					"as %s",
					group->name, zero_dtype_name(from), zero_dtype_name(to));
		}
	return ZERO_OK;
}

/* Whether a segment is read where it is stored, so that it has no gather buffer. */
bool zero_gather_buffer_is_in_place(const struct zero_flat *flat,
				    const struct zero_segment *segment, zero_dtype as)
{
	return !segment->count ||
	       (flat->group->in_place && zero_gather_buffer_dtype(segment, as) == segment->dtype);
}

/* The bytes of the gather buffers of segments [0, end), which lie one behind the other. */
size_t zero_gather_buffer_bytes_before(const struct zero_flat *flat, size_t end, zero_dtype as)
{
	size_t bytes = 0;

	for (size_t r = 0; r < end; r++) {
		const struct zero_segment *segment = &flat->segments[r];

		if (!zero_gather_buffer_is_in_place(flat, segment, as))
			bytes += zero_round_to_pages(
				segment->count *
				zero_dtype_size(zero_gather_buffer_dtype(segment, as)));
	}
	return bytes;
}

/* The gather buffer of a type. All types that leave a flat buffer as it is stored share one. */
struct zero_gather_buffer *zero_gather_buffer_of(struct zero_flat *flat, zero_dtype as)
{
	bool casts = false;

	for (size_t r = 0; r < flat->segment_count; r++)
		casts |=
			zero_gather_buffer_dtype(&flat->segments[r], as) != flat->segments[r].dtype;
	return &flat->buffers[!casts ? 0 : as == ZERO_F32 ? 1 : as == ZERO_F16 ? 2 : 3];
}

/* Reserves the address of a gather buffer once. Called with the job's lock held. */
zero_status zero_gather_buffer_reserve(struct zero_flat *flat, zero_dtype as)
{
	struct zero_gather_buffer *buffer = zero_gather_buffer_of(flat, as);
	zero_job *job = flat->group->job;

	if (buffer->address || !job->ops->reserve)
		return ZERO_OK;
	buffer->bytes = zero_gather_buffer_bytes_before(flat, flat->segment_count, as);
	return job->ops->reserve(job->backend, buffer->bytes, &buffer->address);
}

/* The group whose gather buffer is at that address. */
static const zero_group *group_at(const zero_job *job, const void *address)
{
	for (zero_group *group = NULL; address && (group = zero_group_after(job->model, group));)
		for (size_t f = 0; f < group->flat_count; f++)
			if (group->flats[f].gathered.data == address)
				return group;
	return NULL;
}

/* Whether the memory that a group had last is with a group that only other threads still use than
   the one that began it, this one not among them. These may have released it on another rank
   already. */
static bool must_wait(zero_group *group, zero_dtype as)
{
	zero_job *job = group->job;
	const zero_group *holder;

	for (size_t f = 0; job->ops->holder && f < group->flat_count; f++) {
		void *address = zero_gather_buffer_of(&group->flats[f], as)->address;

		holder = address ? group_at(job, job->ops->holder(job->backend, address)) : NULL;
		if (holder && holder->use_count && holder->other_thread_uses == holder->use_count &&
		    !pthread_equal(holder->other_user, pthread_self()))
			return true;
	}
	return false;
}

/* Called with the job's lock held, which is released meanwhile. */
void zero_gather_buffer_wait_for_memory(zero_group *group, zero_dtype as)
{
	while (!group->gather && must_wait(group, as))
		pthread_cond_wait(&group->job->trainer->released, &group->job->lock);
}

/* The dtype of the setting gather_dtype for ZERO_DTYPE_DEFAULT. */
zero_dtype zero_gather_resolve_dtype(const zero_job *job, zero_dtype as)
{
	static const zero_dtype dtypes[] = {ZERO_DTYPE_PARAM, ZERO_BF16, ZERO_F16, ZERO_F32};

	return as == ZERO_DTYPE_DEFAULT ? dtypes[job->settings.value[ZERO_OPT_GATHER_DTYPE].number]
					: as;
}

static void *stored_at(const zero_param *param)
{
	const struct zero_segment *segment = &param->flat->segments[param->segment];

	return param->flat->stored + segment->first_at +
	       param->first * zero_dtype_size(segment->dtype);
}

/* Where a parameter is if its flat buffer's gather buffers begin at `buffers`. */
static void *param_at(const zero_param *param, zero_dtype as, char *buffers)
{
	const struct zero_flat *flat = param->flat;
	const struct zero_segment *segment = &flat->segments[param->segment];

	if (zero_gather_buffer_is_in_place(flat, segment, as))
		return stored_at(param);
	return buffers + zero_gather_buffer_bytes_before(flat, param->segment, as) +
	       param->first * zero_dtype_size(zero_gather_buffer_dtype(segment, as));
}

void *zero_data(const zero_param *param)
{
	if (!param->flat || !param->group->ready || !param->count)
		return NULL;
	return param_at(param, param->group->gathered_as, param->flat->gathered.data);
}

const char *zero_param_gather_buffer(const zero_param *param, zero_dtype as, zero_dtype *dtype)
{
	struct zero_flat *flat = param->flat;
	const struct zero_segment *segment = &flat->segments[param->segment];
	char *buffers = zero_gather_buffer_of(flat, as)->address;

	*dtype = zero_gather_buffer_dtype(segment, as);
	if (!buffers || zero_gather_buffer_is_in_place(flat, segment, as))
		return NULL;
	return param_at(param, as, buffers);
}

/* Where the flat buffer's gather buffers of that type begin; NULL after an error. */
static char *reserved(struct zero_flat *flat, zero_dtype as)
{
	zero_job *job = flat->group->job;
	zero_status status;

	if (!job->ops->reserve) {
		zero_fail(ZERO_E_UNSUPPORTED,
			  "gather buffers have no fixed addresses on backend %s", job->ops->name);
		return NULL;
	}
	pthread_mutex_lock(&job->lock);
	status = zero_gather_buffer_reserve(flat, as);
	pthread_mutex_unlock(&job->lock);
	return status ? NULL : zero_gather_buffer_of(flat, as)->address;
}

void *zero_gathered_address(const zero_param *param, zero_dtype as)
{
	char *buffers;

	as = zero_gather_resolve_dtype(param->group->job, as);
	if (zero_gather_check(param->group, as) || !param->count)
		return NULL;
	if (zero_gather_buffer_is_in_place(param->flat, &param->flat->segments[param->segment], as))
		return stored_at(param);
	buffers = reserved(param->flat, as);
	return buffers ? param_at(param, as, buffers) : NULL;
}

void *zero_slice_data(const zero_group *slice)
{
	if (!slice->parent)
		return slice->param_count ? zero_data(slice->params[0]) : NULL;
	return slice->ready ? slice->flats[0].gathered.data : NULL;
}

void *zero_slice_address(zero_group *slice, zero_dtype as)
{
	if (!slice->parent)
		return slice->param_count ? zero_gathered_address(slice->params[0], as) : NULL;
	as = zero_gather_resolve_dtype(slice->job, as);
	return zero_gather_check(slice, as) ? NULL : reserved(&slice->flats[0], as);
}

zero_dtype zero_gathered_dtype_locked(const zero_param *param)
{
	if (!param->flat || !param->group->gather)
		return ZERO_DTYPE_PARAM;
	return zero_gather_buffer_dtype(&param->flat->segments[param->segment],
					param->group->gathered_as);
}

zero_dtype zero_gathered_dtype(const zero_param *param)
{
	zero_job *job = param->group->job;
	zero_dtype dtype;

	pthread_mutex_lock(&job->lock);
	dtype = zero_gathered_dtype_locked(param);
	pthread_mutex_unlock(&job->lock);
	return dtype;
}
