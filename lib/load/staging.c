/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that only the host can read or make, on their way to a device's memory and back: two
 * page-locked buffers of a chunk, of which one is copied while the host works on the other. Where
 * the backend's memory is the host's there is no such way, and none of this is called.
 */
#include "load.h"

static zero_status open_buffers(zero_job *job, size_t bytes)
{
	struct zero_staging *stage = &job->loader->staging;
	size_t most = job->chunk / ZERO_STAGING_MIN * ZERO_STAGING_MIN;
	zero_status status = ZERO_OK;

	most = most ? most : ZERO_STAGING_MIN;
	bytes = bytes < most ? bytes : most;
	if (stage->bytes && stage->bytes >= bytes)
		return ZERO_OK;
	/* Page-locked memory takes long to come by: it grows in few steps. */
	bytes = bytes > 4 * stage->bytes ? bytes : 4 * stage->bytes;
	bytes = (bytes + ZERO_STAGING_MIN - 1) / ZERO_STAGING_MIN * ZERO_STAGING_MIN;
	bytes = bytes < job->chunk ? bytes : job->chunk / ZERO_STAGING_MIN * ZERO_STAGING_MIN;
	bytes = bytes > ZERO_STAGING_MIN ? bytes : ZERO_STAGING_MIN;
	zero_staging_close(job);
	for (int i = 0; !status && i < 2; i++)
		status = job->ops->alloc(job->backend, ZERO_MEM_PINNED, bytes, false,
					 &stage->data[i]);
	if (!status)
		stage->bytes = bytes;
	return status;
}

void zero_staging_close(zero_job *job)
{
	struct zero_staging *stage = &job->loader->staging;

	for (int i = 0; i < 2; i++)
		job->ops->free(job->backend, stage->data[i]);
	*stage = (struct zero_staging){0};
}

/* The buffer after the last one, once its copy is done. */
static zero_status next_buffer(zero_job *job, int *which)
{
	struct zero_staging *stage = &job->loader->staging;

	*which = stage->next;
	stage->next = !stage->next;
	return job->ops->event_wait(job->backend, stage->copied[*which]);
}

zero_status zero_staging_in(zero_job *job, void *to, size_t bytes, zero_staging_fill fill,
			    void *context)
{
	struct zero_staging *stage = &job->loader->staging;
	zero_status status = open_buffers(job, bytes);

	for (size_t at = 0, now; !status && at < bytes; at += now) {
		int i;

		now = bytes - at < stage->bytes ? bytes - at : stage->bytes;
		status = next_buffer(job, &i);
		if (!status)
			status = fill(context, stage->data[i], at, now);
		if (status)
			break;
		job->ops->copy(job->backend, (char *)to + at, stage->data[i], now);
		stage->copied[i] = job->ops->event_record(job->backend);
	}
	return status;
}

/* Begins to fetch the piece at byte `at`; *now bytes of it. */
static int fetch(zero_job *job, const char *from, size_t bytes, size_t at, size_t *now)
{
	struct zero_staging *stage = &job->loader->staging;
	int i = stage->next;

	stage->next = !i;
	*now = bytes - at < stage->bytes ? bytes - at : stage->bytes;
	job->ops->copy(job->backend, stage->data[i], from + at, *now);
	stage->copied[i] = job->ops->event_record(job->backend);
	return i;
}

/* A piece is on its way while the last one is used. */
zero_status zero_staging_out(zero_job *job, const void *from, size_t bytes, zero_staging_use use,
			     void *context)
{
	struct zero_staging *stage = &job->loader->staging;
	zero_status status = open_buffers(job, bytes);
	size_t now = 0, ahead = 0;
	int i = 0, next = 0;

	if (!status && bytes)
		next = fetch(job, from, bytes, 0, &ahead);
	for (size_t at = 0; !status && at < bytes; at += now) {
		i = next;
		now = ahead;
		if (at + now < bytes)
			next = fetch(job, from, bytes, at + now, &ahead);
		status = job->ops->event_wait(job->backend, stage->copied[i]);
		if (!status)
			status = use(context, stage->data[i], at, now);
	}
	return status;
}
