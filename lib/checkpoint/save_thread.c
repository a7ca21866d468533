/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving in the background. A thread writes the slices piece by piece. Before the training thread
 * changes some of them, it copies the part that is not written yet. Slices in a device's memory are
 * all copied at the start. Of the backend the thread calls only free, and it calls no collective.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "checkpoint/save.h"
#include "core/thread.h"

void zero_save_set_error(struct zero_save *save, zero_status status)
{
	save->status = status;
	free(save->error);
	save->error = status ? strdup(zero_last_error()) : NULL;
	save->error_rank = zero_last_error_rank();
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Slices in a copy are aligned to cache lines. */
enum { LINE = 64 };

static size_t copy_bytes(const struct zero_save_slice *slice)
{
	return (slice->bytes - slice->written + LINE - 1) / LINE * LINE;
}

/* Called with the lock held if there is a thread. NULL: there is no memory. */
static struct zero_save_copy *new_copy(struct zero_save *save, size_t bytes)
{
	struct zero_save_copy *copy = calloc(1, sizeof(*copy));
	zero_job *job = save->job;

	if (copy && job->ops->alloc(job->backend, ZERO_MEM_CHECKPOINT, bytes, false, &copy->data)) {
		free(copy);
		copy = NULL;
	}
	if (copy) {
		copy->next = save->copies;
		save->copies = copy;
	}
	return copy;
}

static void free_copy(struct zero_save *save, struct zero_save_copy *copy)
{
	struct zero_save_copy **at = &save->copies;

	while (*at != copy)
		at = &(*at)->next;
	*at = copy->next;
	save->job->ops->free(save->job->backend, copy->data);
	free(copy);
}

void zero_save_free_copies(struct zero_save *save)
{
	while (save->copies)
		free_copy(save, save->copies);
}

/* A copy is freed with its last slice. Memory of a device's driver is freed by the training thread,
   which allocated it. */
static void slice_written(struct zero_save *save, struct zero_save_slice *slice)
{
	struct zero_save_copy *copy = slice->copy;

	slice->copy = NULL;
	if (copy && !--copy->slices && save->job->ops->host_memory)
		free_copy(save, copy);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static struct zero_save_slice *first_unwritten(struct zero_save *save, size_t first, size_t end)
{
	for (size_t i = first; i < end; i++)
		if (save->slices[i].written < save->slices[i].bytes)
			return &save->slices[i];
	return NULL;
}

/* Called with the lock held. NULL: all slices are written. */
static struct zero_save_slice *next_slice(struct zero_save *save)
{
	struct zero_save_slice *slice = first_unwritten(save, save->wanted_first, save->wanted_end);

	if (slice)
		return slice;
	slice = first_unwritten(save, save->next, save->slice_count);
	save->next = slice ? (size_t)(slice - save->slices) : save->slice_count;
	return slice;
}

/* Called with the lock held, which is released while the piece is written. */
static zero_status write_piece(struct zero_save *save, struct zero_save_slice *slice)
{
	size_t at = slice->written, rest = slice->bytes - at;
	size_t now = rest < ZERO_SAVE_PIECE ? rest : ZERO_SAVE_PIECE;
	const char *data = slice->data + (at - slice->from);
	zero_status status;

	save->busy = slice;
	pthread_mutex_unlock(&save->lock);
	status = zero_save_write_piece(save, slice, data, at, now);
	pthread_mutex_lock(&save->lock);
	save->busy = NULL;
	save->pieces++;
	slice->written += now;
	if (slice->written == slice->bytes)
		slice_written(save, slice);
	pthread_cond_broadcast(&save->wrote);
	return status;
}

static zero_status write_all(struct zero_save *save)
{
	struct zero_save_slice *slice;
	zero_status status = zero_save_reserve(save);
	bool cancelled;

	pthread_mutex_lock(&save->lock);
	while (!status && !save->cancelled && (slice = next_slice(save)))
		status = write_piece(save, slice);
	cancelled = save->cancelled;
	pthread_mutex_unlock(&save->lock);
	if (!status && cancelled)
		status = zero_fail(ZERO_E_STATE, "the save to %s was cancelled", save->path);
	return zero_save_close(save, status);
}

static void *write_thread(void *context)
{
	struct zero_save *save = context;
	zero_status status = write_all(save);

	if (!status && save->after_write)
		status = save->after_write(save);
	zero_save_set_error(save, status);
	pthread_mutex_lock(&save->lock);
	save->written = true;
	pthread_cond_broadcast(&save->wrote);
	pthread_mutex_unlock(&save->lock);
	return NULL;
}

void zero_save_start_thread(struct zero_save *save, void *(*work)(void *))
{
	/* Signals are blocked in the thread, so a file beyond the limit is an error and not
	   SIGXFSZ. */
	save->has_thread = !zero_thread_start(&save->thread, "zero-save", work, save);
	if (!save->has_thread)
		work(save);
}

void zero_save_cancel(struct zero_save *save)
{
	pthread_mutex_lock(&save->lock);
	save->cancelled = true;
	pthread_mutex_unlock(&save->lock);
}

zero_status zero_save_join(struct zero_save *save)
{
	if (save->has_thread)
		pthread_join(save->thread, NULL);
	save->has_thread = false;
	return save->status ? zero_fail(save->status, "%s", save->error ? save->error : "no memory")
			    : ZERO_OK;
}

/* ---- the start ------------------------------------------------------------------------------- */

/* Copies slices to host memory, or writes them at once if there is no memory. */
static zero_status copy_to_host(struct zero_save *save, size_t first, size_t end)
{
	const struct zero_backend_ops *ops = save->job->ops;
	struct zero_save_copy *copy;
	zero_status status = ZERO_OK;
	size_t capacity = 0;

	for (size_t i = first; i < end; i++)
		capacity += copy_bytes(&save->slices[i]);
	if (!capacity)
		return ZERO_OK;
	copy = new_copy(save, capacity);
	for (size_t i = first, at = 0; !status && i < end; i++) {
		struct zero_save_slice *slice = &save->slices[i];

		if (!copy) {
			status = zero_save_write_slice(save, slice);
			continue;
		}
		ops->copy(save->job->backend, (char *)copy->data + at, slice->data, slice->bytes);
		slice->data = (char *)copy->data + at;
		slice->copy = copy;
		copy->slices++;
		at += copy_bytes(slice);
	}
	return status;
}

static zero_status copy_all_to_host(struct zero_save *save)
{
	size_t ranges = ZERO_SAVED_KINDS * save->group_count;
	zero_status status = ZERO_OK, synced;

	for (size_t i = 0; !status && i < ranges; i++)
		status = copy_to_host(save, save->first_slice[i], save->first_slice[i + 1]);
	synced = zero_device_sync(save->job);
	return status ? status : synced;
}

void zero_save_start(struct zero_save *save)
{
	zero_status status = ZERO_OK;

	if (!save->job->ops->host_memory)
		status = copy_all_to_host(save);
	if (!status) {
		zero_save_start_thread(save, write_thread);
		return;
	}
	/* The error is reported when all ranks have written. */
	status = zero_save_close(save, status);
	zero_save_set_error(save, status);
	save->written = true;
}

/* ---- snapshots, before slices change --------------------------------------------------------- */

static bool must_copy(const struct zero_save_slice *slice, bool stepped)
{
	return slice->written < slice->bytes && !slice->copy &&
	       (!stepped || slice->param->trainable || slice->kind == ZERO_SAVED_NAMED);
}

/* Called with the lock held. If the thread writes a piece of one of these slices, waits for its
   end. */
static void wait_for_piece(struct zero_save *save, size_t first, size_t end)
{
	uint64_t pieces = save->pieces;

	while (save->busy && save->pieces == pieces && save->busy >= save->slices + first &&
	       save->busy < save->slices + end)
		pthread_cond_wait(&save->wrote, &save->lock);
}

/* Called with the lock held, if there is no memory for a copy. The thread then writes these slices
   first. */
static void wait_for_range(struct zero_save *save, size_t first, size_t end)
{
	save->wanted_first = first;
	save->wanted_end = end;
	while (!save->written && first_unwritten(save, first, end))
		pthread_cond_wait(&save->wrote, &save->lock);
	save->wanted_first = save->wanted_end = 0;
}

/* Called with the lock held, which is released while bytes are copied. Until a slice is copied, the
   thread writes it from where it is stored. */
static void copy_range(struct zero_save *save, struct zero_save_copy *copy, size_t first,
		       size_t end, bool stepped)
{
	size_t at = 0, from;

	/* The thread must not free the copy meanwhile. */
	copy->slices++;
	for (size_t i = first; i < end; i++) {
		struct zero_save_slice *slice = &save->slices[i];
		char *to = (char *)copy->data + at;

		if (!must_copy(slice, stepped))
			continue;
		from = slice->written;
		at += copy_bytes(slice);
		pthread_mutex_unlock(&save->lock);
		memcpy(to, slice->data + from, slice->bytes - from);
		pthread_mutex_lock(&save->lock);
		if (slice->written == slice->bytes)
			continue;
		slice->data = to;
		slice->from = from;
		slice->copy = copy;
		copy->slices++;
	}
	wait_for_piece(save, first, end);
	if (!--copy->slices)
		free_copy(save, copy);
}

static void snapshot_range(struct zero_save *save, size_t first, size_t end, bool stepped)
{
	struct zero_save_copy *copy;
	size_t capacity = 0;

	pthread_mutex_lock(&save->lock);
	for (size_t i = first; !save->written && i < end; i++)
		if (must_copy(&save->slices[i], stepped))
			capacity += copy_bytes(&save->slices[i]);
	if (capacity) {
		copy = new_copy(save, capacity);
		if (copy)
			copy_range(save, copy, first, end, stepped);
		else
			wait_for_range(save, first, end);
	}
	pthread_mutex_unlock(&save->lock);
}

void zero_save_snapshot(struct zero_save *save, zero_group *group, bool step)
{
	if (!save || save->state != ZERO_SAVE_WRITING || save->written)
		return;
	for (size_t i = 0; i < ZERO_SAVED_KINDS * save->group_count; i++)
		if (!group || save->job->model->groups[i % save->group_count] == group)
			snapshot_range(save, save->first_slice[i], save->first_slice[i + 1], step);
}
