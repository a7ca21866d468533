/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies values that only the host can read or compute to a device's memory, and back, through two
 * page-locked buffers of a chunk: one is copied while the host works on the other. Not used where
 * the backend's memory is host memory.
 */
#include "load.h"

static zero_status open_buffers(zero_job *job, size_t bytes)
{
	struct zero_staging *staging = &job->loader->staging;
	size_t most = job->stream_chunk / ZERO_STAGING_MIN * ZERO_STAGING_MIN;
	zero_status status = ZERO_OK;

	most = most ? most : ZERO_STAGING_MIN;
	bytes = bytes < most ? bytes : most;
	if (staging->bytes >= bytes)
		return ZERO_OK;
	/* Page-locked memory is slow to allocate, so the buffers grow in few steps. */
	bytes = bytes > 4 * staging->bytes ? bytes : 4 * staging->bytes;
	bytes = (bytes + ZERO_STAGING_MIN - 1) / ZERO_STAGING_MIN * ZERO_STAGING_MIN;
	bytes = bytes < most ? bytes : most;
	zero_staging_close(job);
	for (int i = 0; !status && i < 2; i++)
		status = job->ops->alloc(job->backend, ZERO_MEM_PINNED, bytes, false,
					 &staging->data[i]);
	if (!status)
		staging->bytes = bytes;
	return status;
}

void zero_staging_close(zero_job *job)
{
	struct zero_staging *staging = &job->loader->staging;

	for (int i = 0; i < 2; i++)
		job->ops->free(job->backend, staging->data[i]);
	*staging = (struct zero_staging){0};
}

/* Waits for the next buffer's last copy. */
static zero_status next_buffer(zero_job *job, int *which)
{
	struct zero_staging *staging = &job->loader->staging;

	*which = staging->next;
	staging->next = !staging->next;
	return zero_event_wait(job, staging->copied[*which]);
}

zero_status zero_staging_in(zero_job *job, void *to, size_t bytes, zero_staging_fill fill,
			    void *context)
{
	struct zero_staging *staging = &job->loader->staging;
	zero_status status = open_buffers(job, bytes);

	for (size_t at = 0, now; !status && at < bytes; at += now) {
		int i;

		now = bytes - at < staging->bytes ? bytes - at : staging->bytes;
		status = next_buffer(job, &i);
		if (!status)
			status = fill(context, staging->data[i], at, now);
		if (status)
			break;
		job->ops->copy(job->backend, (char *)to + at, staging->data[i], now);
		staging->copied[i] = zero_event_record(job);
	}
	return status;
}

/* Starts to copy the piece at byte `at` to the host, *now bytes of it. Returns the buffer's index.
   */
static int fetch(zero_job *job, const char *from, size_t bytes, size_t at, size_t *now)
{
	struct zero_staging *staging = &job->loader->staging;
	int i = staging->next;

	staging->next = !i;
	*now = bytes - at < staging->bytes ? bytes - at : staging->bytes;
	job->ops->copy(job->backend, staging->data[i], from + at, *now);
	staging->copied[i] = zero_event_record(job);
	return i;
}

/* One piece is copied while the one before is used. */
zero_status zero_staging_out(zero_job *job, const void *from, size_t bytes, zero_staging_use use,
			     void *context)
{
	struct zero_staging *staging = &job->loader->staging;
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
		status = zero_event_wait(job, staging->copied[i]);
		if (!status)
			status = use(context, staging->data[i], at, now);
	}
	return status;
}
