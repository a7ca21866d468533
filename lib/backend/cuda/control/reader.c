/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that reads all connections, so that a rank that sends never waits for a receiver. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/text.h"
#include "core/thread.h"
#include "private.h"

#define FRAME_LIMIT  (UINT64_C(1) << 40)
#define ACCEPT_PAUSE 0.1 /* s; after the process had no descriptor for another connection */

/* What the thread polls; polls[i], links[i] and pending[i] belong together. */
struct poll_set {
	struct pollfd *polls;
	struct zero_link **links;
	struct zero_pending_connection **pending;
	size_t count, room;
	double resume; /* no connection is accepted before this time */
};

/* ---- received frames ------------------------------------------------------------------------- */

/* Called with the lock held. */
static void end_link(struct zero_link *link, const char *why)
{
	struct zero_control *control = link->control;
	char text[192];

	zero_control_close_fd(&link->fd);
	zero_link_close_write(link);
	if (!link->confirmed) {
		struct zero_link **at = &control->links;

		while (*at != link)
			at = &(*at)->next;
		*at = link->next;
		zero_link_free(link);
		return;
	}
	if (!link->goodbye_received && !control->closing) {
		snprintf(text, sizeof(text), "rank %d (node %s) is gone: %s", link->rank,
			 link->node, why);
		zero_control_fail_all_locked(control, ZERO_E_COMM, link->rank, text, link);
	}
	zero_control_notify(control);
}

static void receive_failure(struct zero_link *link, const struct zero_frame *frame)
{
	char text[ZERO_CONTROL_TEXT] = "communication has failed";
	int32_t about[2] = {link->rank, ZERO_E_COMM};
	size_t length = frame->header.bytes - sizeof(about);

	if (frame->header.bytes > sizeof(about) && length < sizeof(text) &&
	    frame->payload->data[sizeof(about)]) {
		memcpy(about, frame->payload->data, sizeof(about));
		memcpy(text, frame->payload->data + sizeof(about), length);
		text[length] = '\0';
		zero_clean(text);
	}
	zero_control_fail_all_locked(link->control,
				     about[1] == ZERO_E_ORDER ? ZERO_E_ORDER : ZERO_E_COMM,
				     about[0], text, link);
}

/* Called with the lock held. This rank may not have created the team yet. */
static void receive_for_team(struct zero_link *link, struct zero_frame *frame)
{
	struct zero_control_team *team = zero_control_team_find(link->control, frame->header.team);

	if (team && frame->header.kind == ZERO_FRAME_DEPARTURE) {
		zero_control_receive_departure(team, link, frame);
		return;
	}
	zero_link_store(link, frame);
	if (team)
		zero_control_advance_max(team);
	zero_control_notify(link->control);
}

/* Called with the lock held. Stores or frees the frame. Returns false if it breaks the protocol. */
static bool receive_frame(struct zero_link *link, struct zero_frame *frame)
{
	uint32_t kind = frame->header.kind;

	if (!link->confirmed &&
	    (kind != ZERO_FRAME_CONFIRM || zero_link_find(link->control, link->rank))) {
		zero_frame_free(frame);
		return false;
	}
	switch (kind) {
	case ZERO_FRAME_MAX:
	case ZERO_FRAME_EXCHANGE:
	case ZERO_FRAME_BROADCAST:
	case ZERO_FRAME_DEPARTURE:
		receive_for_team(link, frame);
		return true;
	case ZERO_FRAME_CONFIRM:
		link->confirmed = true;
		zero_control_notify(link->control);
		break;
	case ZERO_FRAME_GOODBYE:
		link->goodbye_received = true;
		zero_control_notify(link->control);
		break;
	case ZERO_FRAME_FAILURE:
		receive_failure(link, frame);
		break;
	default:
		zero_frame_free(frame);
		return false;
	}
	zero_frame_free(frame);
	return true;
}

static struct zero_frame *new_frame(const struct zero_frame_header *header)
{
	struct zero_frame *frame = NULL;

	if (header->bytes <= FRAME_LIMIT)
		frame = calloc(1, sizeof(*frame));
	if (!frame)
		return NULL;
	frame->header = *header;
	if (header->bytes) {
		frame->payload = zero_payload_new(NULL, header->bytes);
		if (!frame->payload) {
			free(frame);
			return NULL;
		}
	}
	return frame;
}

/* Called with the lock held. Parses the buffer. Returns NULL, or why the link must end. */
static const char *parse_frames(struct zero_link *link)
{
	size_t at = 0;

	while (link->filled - at >= sizeof(struct zero_frame_header)) {
		struct zero_frame_header header;
		struct zero_frame *frame;
		size_t part;

		memcpy(&header, link->buffer + at, sizeof(header));
		at += sizeof(header);
		frame = new_frame(&header);
		if (!frame)
			return "there is no memory for what it sends";
		part = link->filled - at;
		if (part > header.bytes)
			part = header.bytes;
		if (part)
			memcpy(frame->payload->data, link->buffer + at, part);
		at += part;
		frame->done = part;
		if (part < header.bytes)
			link->arriving = frame;
		else if (!receive_frame(link, frame))
			return "it violates the protocol";
	}
	link->filled -= at;
	memmove(link->buffer, link->buffer + at, link->filled);
	return NULL;
}

/* Calls recv once, so that every link gets its turn. */
static void read_link(struct zero_link *link)
{
	struct zero_control *control = link->control;
	struct zero_frame *frame = link->arriving;
	uint8_t *to = frame ? frame->payload->data + frame->done : link->buffer + link->filled;
	size_t room =
		frame ? frame->header.bytes - frame->done : sizeof(link->buffer) - link->filled;
	ssize_t got = recv(link->fd, to, room, MSG_DONTWAIT);
	int error = errno;
	const char *why = NULL;

	if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK || error == EINTR))
		return;
	pthread_mutex_lock(&control->lock);
	if (got <= 0) {
		why = got ? strerror(error) : "its connection ended";
	} else if (!frame) {
		link->filled += (size_t)got;
		why = parse_frames(link);
	} else {
		frame->done += (size_t)got;
		if (frame->done == frame->header.bytes) {
			link->arriving = NULL;
			if (!receive_frame(link, frame))
				why = "it violates the protocol";
		}
	}
	if (why)
		end_link(link, why);
	pthread_mutex_unlock(&control->lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool reserve(struct poll_set *set, size_t count)
{
	size_t room = 2 * count;
	void *polls, *links, *pending;

	if (count <= set->room)
		return true;
	polls = realloc(set->polls, room * sizeof(*set->polls));
	if (polls)
		set->polls = polls;
	links = realloc(set->links, room * sizeof(struct zero_link *));
	if (links)
		set->links = links;
	pending = realloc(set->pending, room * sizeof(struct zero_pending_connection *));
	if (pending)
		set->pending = pending;
	if (!polls || !links || !pending)
		return false;
	set->room = room;
	return true;
}

static void add(struct poll_set *set, int fd, short events, struct zero_link *link,
		struct zero_pending_connection *pending)
{
	set->polls[set->count] = (struct pollfd){.fd = fd, .events = events};
	set->links[set->count] = link;
	set->pending[set->count++] = pending;
}

/* Called with the lock held. Returns how long to poll (ms; -1: without limit). */
static int fill_poll_set(struct zero_control *control, struct poll_set *set)
{
	size_t count = 2 + control->pending_count;
	double now = zero_seconds(), until = -1;

	for (const struct zero_link *link = control->links; link; link = link->next)
		count++;
	set->count = 0;
	if (!reserve(set, count))
		return 10;
	add(set, control->wakeup, POLLIN, NULL, NULL);
	/* poll ignores a negative descriptor. */
	add(set, now < set->resume ? -1 : control->listener, POLLIN, NULL, NULL);
	for (struct zero_pending_connection *one = control->pending; one; one = one->next)
		add(set, one->fd, POLLIN, NULL, one);
	for (struct zero_link *link = control->links; link; link = link->next)
		if (link->fd >= 0)
			add(set, link->fd, link->out.first ? POLLIN | POLLOUT : POLLIN, link, NULL);
	if (now < set->resume)
		until = set->resume;
	if (control->pending && (until < 0 || control->pending->deadline < until))
		until = control->pending->deadline;
	if (until < 0)
		return -1;
	return until > now ? (int)((until - now) * 1e3) + 1 : 0;
}

static void serve_links(struct zero_control *control, const struct poll_set *set)
{
	for (size_t i = 2; i < set->count; i++) {
		struct zero_link *link = set->links[i];
		short events = set->polls[i].revents;

		if (!link || !events)
			continue;
		if (events & POLLOUT) {
			pthread_mutex_lock(&control->lock);
			zero_link_flush(link);
			pthread_mutex_unlock(&control->lock);
		}
		if (events & ~POLLOUT)
			read_link(link);
	}
}

static void serve_pending(struct zero_control *control, struct poll_set *set)
{
	double now = zero_seconds();

	pthread_mutex_lock(&control->lock);
	for (size_t i = 2; i < set->count; i++)
		if (set->pending[i] && set->polls[i].revents)
			zero_control_read_pending(control, set->pending[i]);
	zero_control_reject_pending(control, now);
	pthread_mutex_unlock(&control->lock);
	/* This comes last because it may reject a connection of the set. */
	if (set->count && set->polls[1].revents && !zero_control_accept(control))
		set->resume = zero_seconds() + ACCEPT_PAUSE;
}

static void report_failure(struct zero_control *control)
{
	bool report;

	pthread_mutex_lock(&control->lock);
	report = atomic_load(&control->failed) && !control->failure_reported && !control->closing;
	control->failure_reported |= report;
	pthread_mutex_unlock(&control->lock);
	if (report && control->config.on_failure)
		control->config.on_failure(control->config.on_failure_context);
}

static void *reader_main(void *context)
{
	struct zero_control *control = context;
	struct poll_set set = {.resume = 0};
	uint64_t wakes;

	prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
	pthread_setname_np(pthread_self(), "zero-control");
	for (;;) {
		bool stopping;
		int wait;

		report_failure(control);
		pthread_mutex_lock(&control->lock);
		stopping = control->stopping;
		wait = fill_poll_set(control, &set);
		pthread_mutex_unlock(&control->lock);
		if (stopping)
			break;
		if (poll(set.polls, set.count, wait) <= 0)
			for (size_t i = 0; i < set.count; i++)
				set.polls[i].revents = 0;
		if (set.count && set.polls[0].revents &&
		    read(control->wakeup, &wakes, sizeof(wakes)) < 0)
			continue;
		serve_links(control, &set);
		serve_pending(control, &set);
	}
	free(set.polls);
	free(set.links);
	free(set.pending);
	return NULL;
}

zero_status zero_control_start_reader(struct zero_control *control)
{
	int error = zero_thread_start(&control->reader, reader_main, control);

	if (error)
		return zero_core->fail(ZERO_E_MEMORY, "cannot start the control thread: %s",
				       strerror(error));
	control->reading = true;
	return ZERO_OK;
}
