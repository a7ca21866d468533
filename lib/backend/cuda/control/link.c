/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: frames that wait to be sent or to be asked for, and the word that all is over. */
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

#define SPIN 50e-6 /* s */

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
	zero_control_wake(link->control);
}

struct zero_link *zero_link_find(struct zero_control *control, int rank)
{
	struct zero_link *link = control->links;

	while (link && (link->rank != rank || !link->confirmed))
		link = link->next;
	return link;
}

void zero_link_keep(struct zero_link *link, struct zero_frame *frame)
{
	append(&link->in, frame);
}

static enum zero_lane lane_of(uint32_t kind)
{
	if (kind == ZERO_FRAME_LEFT)
		return ZERO_LANE_LEFT;
	return kind == ZERO_FRAME_MAX ? ZERO_LANE_MAX : ZERO_LANE_DATA;
}

struct zero_frame *zero_link_take(struct zero_link *link, uint64_t team, enum zero_lane lane)
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

const struct zero_frame *zero_link_astray(const struct zero_link *link, uint64_t team,
					  enum zero_lane lane, uint64_t sequence)
{
	const struct zero_frame *frame = link->in.first;

	while (frame && (frame->header.team != team || frame->header.sequence != sequence ||
			 lane_of(frame->header.kind) == lane))
		frame = frame->next;
	return frame;
}

void zero_link_drop(struct zero_link *link)
{
	link->mute = true;
	free_all(&link->out);
}

/* What can be sent of it without a wait; whether nothing is left. An error is left to the reader to
   find, after what the neighbour has said before. */
static bool send_some(struct zero_link *link, struct zero_frame *frame)
{
	size_t head = sizeof(frame->header), bytes = frame->header.bytes;

	while (!link->mute && frame->done < head + bytes) {
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
			link->mute = true;
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

void zero_link_post(struct zero_link *link, const struct zero_frame_header *header,
		    struct zero_payload *payload)
{
	struct zero_control *control = link->control;
	struct zero_frame frame = {.header = *header, .payload = payload}, *kept;
	char text[128];

	frame.header.bytes = payload ? payload->bytes : 0;
	if (link->fd < 0 || link->farewell || link->mute)
		return;
	if (!link->out.first && send_some(link, &frame))
		return;
	kept = malloc(sizeof(*kept));
	if (!kept) {
		/* Half a frame may be under way: nothing can follow it. */
		zero_link_drop(link);
		snprintf(text, sizeof(text), "rank %d has no memory for what it sends to rank %d",
			 control->config.rank, link->rank);
		zero_control_fall_apart(control, control->config.rank, text, link);
		return;
	}
	*kept = frame;
	if (payload)
		atomic_fetch_add(&payload->references, 1);
	append(&link->out, kept);
	zero_control_wake(control);
}

/* ---- waking ---------------------------------------------------------------------------------- */

void zero_control_wake(struct zero_control *control)
{
	uint64_t one = 1;

	/* A full counter wakes too. */
	if (control->wakeup >= 0 && write(control->wakeup, &one, sizeof(one)) < 0)
		return;
}

void zero_control_changed(struct zero_control *control)
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
	/* Most answers come sooner than a thread wakes. It yields, so that others who share its
	   core lose nothing. */
	pthread_mutex_unlock(&control->lock);
	end = zero_seconds() + SPIN;
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

/* ---- falling apart --------------------------------------------------------------------------- */

/* With the lock. Without memory for the sentence a neighbour still learns that it is over. */
static struct zero_payload *broken_payload(const struct zero_control *control)
{
	size_t length = strlen(control->broken_text);
	int32_t about = control->broken_rank;
	struct zero_payload *payload = zero_payload_new(NULL, sizeof(about) + length);

	if (!payload)
		return NULL;
	memcpy(payload->data, &about, sizeof(about));
	memcpy(payload->data + sizeof(about), control->broken_text, length);
	return payload;
}

void zero_link_tell(struct zero_link *link)
{
	static const struct zero_frame_header bye = {.kind = ZERO_FRAME_BYE};
	static const struct zero_frame_header broken = {.kind = ZERO_FRAME_BROKEN};

	if (atomic_load(&link->control->broken)) {
		struct zero_payload *payload = broken_payload(link->control);

		zero_link_post(link, &broken, payload);
		zero_payload_put(payload);
	}
	if (link->control->closing)
		zero_link_post(link, &bye, NULL);
}

void zero_control_fall_apart(struct zero_control *control, int rank, const char *text,
			     const struct zero_link *from)
{
	if (atomic_load(&control->broken))
		return;
	snprintf(control->broken_text, sizeof(control->broken_text), "%s", text);
	control->broken_rank = rank;
	atomic_store(&control->broken, true);
	for (struct zero_link *link = control->links; link; link = link->next)
		if (link != from)
			zero_link_tell(link);
	zero_control_changed(control);
	zero_control_wake(control);
}

zero_status zero_control_fail_broken(struct zero_control *control)
{
	return zero_core->fail_on(control->broken_rank, ZERO_E_COMM, control->broken_text);
}

zero_status zero_control_give_up(struct zero_control *control, int rank, const char *format, ...)
{
	char text[ZERO_CONTROL_TEXT];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	zero_control_break(control, rank, text);
	return zero_control_fail_broken(control);
}

/* What it says was written before the flag and stays. */
bool zero_control_broken(struct zero_control *control, char *text, size_t size, int *rank)
{
	if (!atomic_load(&control->broken))
		return false;
	if (text && size)
		snprintf(text, size, "%s", control->broken_text);
	if (rank)
		*rank = control->broken_rank;
	return true;
}

void zero_control_break(struct zero_control *control, int rank, const char *text)
{
	pthread_mutex_lock(&control->lock);
	zero_control_fall_apart(control, rank, text, NULL);
	pthread_mutex_unlock(&control->lock);
}
