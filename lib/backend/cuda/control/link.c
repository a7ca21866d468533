/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to neighbours: frames sent, frames received, and the failure of all of them. */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "private.h"

#define SPIN_SECONDS 50e-6

/* ---- payloads and frames --------------------------------------------------------------------- */

struct zero_payload *zero_payload_new(const void *data, size_t bytes)
{
	struct zero_payload *payload = NULL;

	if (bytes < SIZE_MAX - sizeof(*payload))
		payload = malloc(sizeof(*payload) + bytes);
	if (!payload)
		return NULL;
	atomic_init(&payload->references, 1);
	payload->bytes = bytes;
	if (data && bytes)
		memcpy(payload->data, data, bytes);
	return payload;
}

void zero_payload_put(struct zero_payload *payload)
{
	if (payload && atomic_fetch_sub(&payload->references, 1) == 1)
		free(payload);
}

void zero_frame_free(struct zero_frame *frame)
{
	if (frame)
		zero_payload_put(frame->payload);
	free(frame);
}

static void append(struct zero_frames *frames, struct zero_frame *frame)
{
	frame->next = NULL;
	*frames->end = frame;
	frames->end = &frame->next;
}

static void free_all(struct zero_frames *frames)
{
	while (frames->first) {
		struct zero_frame *frame = frames->first;

		frames->first = frame->next;
		zero_frame_free(frame);
	}
	frames->end = &frames->first;
}

/* ---- links ----------------------------------------------------------------------------------- */

struct zero_link *zero_link_new(struct zero_control *control, int fd, int rank, const char *node)
{
	struct zero_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->control = control;
	link->fd = fd;
	link->rank = rank;
	snprintf(link->node, sizeof(link->node), "%s", node);
	link->in.end = &link->in.first;
	link->out.end = &link->out.first;
	return link;
}

void zero_link_free(struct zero_link *link)
{
	if (link->fd >= 0)
		close(link->fd);
	free_all(&link->in);
	free_all(&link->out);
	zero_frame_free(link->arriving);
	free(link);
}

void zero_link_add(struct zero_link *link)
{
	link->next = link->control->links;
	link->control->links = link;
	zero_control_wake_reader(link->control);
}

struct zero_link *zero_link_find(struct zero_control *control, int rank)
{
	struct zero_link *link = control->links;

	while (link && (link->rank != rank || !link->confirmed))
		link = link->next;
	return link;
}

void zero_link_store(struct zero_link *link, struct zero_frame *frame)
{
	append(&link->in, frame);
}

static enum zero_lane lane_of(uint32_t kind)
{
	if (kind == ZERO_FRAME_DEPARTURE)
		return ZERO_LANE_DEPARTURE;
	return kind == ZERO_FRAME_MAX ? ZERO_LANE_MAX : ZERO_LANE_DATA;
}

struct zero_frame *zero_link_pop(struct zero_link *link, uint64_t team, enum zero_lane lane)
{
	struct zero_frame **at = &link->in.first, *frame;

	while (*at && ((*at)->header.team != team || lane_of((*at)->header.kind) != lane))
		at = &(*at)->next;
	frame = *at;
	if (!frame)
		return NULL;
	*at = frame->next;
	if (!*at)
		link->in.end = at;
	return frame;
}

const struct zero_frame *zero_link_find_mismatched(const struct zero_link *link, uint64_t team,
						   enum zero_lane lane, uint64_t sequence)
{
	const struct zero_frame *frame = link->in.first;

	while (frame && (frame->header.team != team || frame->header.sequence != sequence ||
			 lane_of(frame->header.kind) == lane))
		frame = frame->next;
	return frame;
}

void zero_link_close_write(struct zero_link *link)
{
	link->write_closed = true;
	free_all(&link->out);
}

/* Sends what the connection takes without waiting. Returns whether the frame is done. An error is
   left for the reader to find, after it has read what the neighbour sent before. */
static bool send_some(struct zero_link *link, struct zero_frame *frame)
{
	size_t head = sizeof(frame->header), bytes = frame->header.bytes;

	while (!link->write_closed && frame->done < head + bytes) {
		size_t in_head = frame->done < head ? frame->done : head;
		size_t in_bytes = frame->done - in_head;
		struct iovec parts[2] = {{(uint8_t *)&frame->header + in_head, head - in_head},
					 {NULL, bytes - in_bytes}};
		struct msghdr message = {.msg_iov = parts, .msg_iovlen = bytes ? 2 : 1};
		ssize_t sent;

		if (bytes)
			parts[1].iov_base = frame->payload->data + in_bytes;
		sent = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent >= 0)
			frame->done += (size_t)sent;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			return false;
		else if (errno != EINTR)
			link->write_closed = true;
	}
	return true;
}

void zero_link_flush(struct zero_link *link)
{
	while (link->out.first && send_some(link, link->out.first)) {
		struct zero_frame *frame = link->out.first;

		link->out.first = frame->next;
		if (!link->out.first)
			link->out.end = &link->out.first;
		zero_frame_free(frame);
	}
}

void zero_link_send(struct zero_link *link, const struct zero_frame_header *header,
		    struct zero_payload *payload)
{
	struct zero_control *control = link->control;
	struct zero_frame frame = {.header = *header, .payload = payload}, *queued;
	char text[128];

	frame.header.bytes = payload ? payload->bytes : 0;
	if (link->fd < 0 || link->goodbye_received || link->write_closed)
		return;
	if (!link->out.first && send_some(link, &frame))
		return;
	queued = malloc(sizeof(*queued));
	if (!queued) {
		/* A part of the frame may have been sent, so no other frame can follow. */
		zero_link_close_write(link);
		snprintf(text, sizeof(text), "rank %d has no memory for a message to rank %d",
			 control->config.rank, link->rank);
		zero_control_fail_all_locked(control, ZERO_E_COMM, control->config.rank, text,
					     link);
		return;
	}
	*queued = frame;
	if (payload)
		atomic_fetch_add(&payload->references, 1);
	append(&link->out, queued);
	zero_control_wake_reader(control);
}

/* ---- waking ---------------------------------------------------------------------------------- */

void zero_control_wake_reader(struct zero_control *control)
{
	uint64_t one = 1;

	/* If the counter is full the write fails, but the reader wakes anyway. */
	if (control->wakeup >= 0 && write(control->wakeup, &one, sizeof(one)) < 0)
		return;
}

void zero_control_notify(struct zero_control *control)
{
	atomic_fetch_add(&control->changes, 1);
	pthread_cond_broadcast(&control->changed);
}

bool zero_control_wait(struct zero_control *control, double deadline)
{
	uint64_t seen = atomic_load(&control->changes);
	struct timespec at = {.tv_sec = (time_t)deadline};
	double end;
	int error = 0;

	at.tv_nsec = (long)((deadline - (double)at.tv_sec) * 1e9);
	/* Most messages come sooner than a sleeping thread wakes. Yielding leaves the core to
	   others. */
	pthread_mutex_unlock(&control->lock);
	end = zero_seconds() + SPIN_SECONDS;
	while (atomic_load(&control->changes) == seen && zero_seconds() < end)
		sched_yield();
	pthread_mutex_lock(&control->lock);
	while (atomic_load(&control->changes) == seen && !error)
		if (deadline > 0)
			error = pthread_cond_timedwait(&control->changed, &control->lock, &at);
		else
			pthread_cond_wait(&control->changed, &control->lock);
	return !error;
}

/* ---- failure --------------------------------------------------------------------------------- */

/* Called with the lock held. NULL without memory: the neighbour then gets the failure without a
   sentence. */
static struct zero_payload *failure_payload(const struct zero_control *control)
{
	size_t length = strlen(control->failure_text);
	int32_t about[2] = {control->failed_rank, (int32_t)control->failed_status};
	struct zero_payload *payload = zero_payload_new(NULL, sizeof(about) + length);

	if (!payload)
		return NULL;
	memcpy(payload->data, about, sizeof(about));
	memcpy(payload->data + sizeof(about), control->failure_text, length);
	return payload;
}

void zero_link_send_state(struct zero_link *link)
{
	static const struct zero_frame_header goodbye = {.kind = ZERO_FRAME_GOODBYE};
	static const struct zero_frame_header failure = {.kind = ZERO_FRAME_FAILURE};

	if (atomic_load(&link->control->failed)) {
		struct zero_payload *payload = failure_payload(link->control);

		zero_link_send(link, &failure, payload);
		zero_payload_put(payload);
	}
	if (link->control->closing)
		zero_link_send(link, &goodbye, NULL);
}

void zero_control_fail_all_locked(struct zero_control *control, zero_status status, int rank,
				  const char *text, const struct zero_link *from)
{
	if (atomic_load(&control->failed))
		return;
	snprintf(control->failure_text, sizeof(control->failure_text), "%s", text);
	control->failed_status = status;
	control->failed_rank = rank;
	atomic_store(&control->failed, true);
	for (struct zero_link *link = control->links; link; link = link->next)
		if (link != from)
			zero_link_send_state(link);
	zero_control_notify(control);
	zero_control_wake_reader(control);
}

zero_status zero_control_failure(struct zero_control *control)
{
	return zero_core->fail_on(control->failed_rank, control->failed_status,
				  control->failure_text);
}

zero_status zero_control_fail_all_printf(struct zero_control *control, int rank, const char *format,
					 ...)
{
	char text[ZERO_CONTROL_TEXT];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	zero_control_fail_all(control, ZERO_E_COMM, rank, text);
	return zero_control_failure(control);
}

/* The sentence is written before the flag and never changes. */
bool zero_control_has_failed(struct zero_control *control, char *text, size_t size, int *rank)
{
	if (!atomic_load(&control->failed))
		return false;
	if (text && size)
		snprintf(text, size, "%s", control->failure_text);
	if (rank)
		*rank = control->failed_rank;
	return true;
}

void zero_control_fail_all(struct zero_control *control, zero_status status, int rank,
			   const char *text)
{
	pthread_mutex_lock(&control->lock);
	zero_control_fail_all_locked(control, status, rank, text, NULL);
	pthread_mutex_unlock(&control->lock);
}
