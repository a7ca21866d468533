/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that reads all connections, so that nobody who writes ever waits for a reader. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "private.h"
#include "core/text.h"
#include "core/thread.h"

/* Those who have not yet said who they are, and for how long (s) they may. */
enum { STRANGERS = 64, PATIENCE = 5 };

#define FRAME_LIMIT (UINT64_C(1) << 40)

/* Who has connected and not yet said all that is asked. */
struct zero_stranger {
	struct zero_stranger *next;
	int fd;
	double deadline;
	size_t have;
	struct zero_hello hello;
};

/* What the thread waits for; [i] of the three belong together. */
struct watch {
	struct pollfd *polls;
	struct zero_link **links;
	struct zero_stranger **strangers;
	size_t count, room;
	double resume; /* no connection is accepted before: the process has no room for more */
};

/* ---- frames that have come ------------------------------------------------------------------- */

/* With the lock. */
static void end_link(struct zero_link *link, const char *why)
{
	struct zero_control *control = link->control;
	char text[192];

	close(link->fd);
	link->fd = -1;
	zero_link_drop(link);
	if (!link->confirmed) {
		struct zero_link **at = &control->links;

		while (*at != link)
			at = &(*at)->next;
		*at = link->next;
		zero_link_free(link);
		return;
	}
	if (!link->farewell && !control->closing) {
		snprintf(text, sizeof(text), "rank %d (node %s) is gone: %s", link->rank,
			 link->node, why);
		zero_control_fall_apart(control, link->rank, text, link);
	}
	zero_control_changed(control);
}

static void hear_broken(struct zero_link *link, const struct zero_frame *frame)
{
	char text[ZERO_CONTROL_TEXT] = "communication is broken";
	int32_t rank = link->rank;
	size_t length = frame->header.bytes - sizeof(rank);

	if (frame->header.bytes > sizeof(rank) && length < sizeof(text) &&
	    frame->payload->data[sizeof(rank)]) {
		memcpy(&rank, frame->payload->data, sizeof(rank));
		memcpy(text, frame->payload->data + sizeof(rank), length);
		text[length] = '\0';
		zero_clean(text);
	}
	zero_control_fall_apart(link->control, rank, text, link);
}

/* With the lock. What is said of a team that this rank has not made yet is kept for it. */
static void hear_of_team(struct zero_link *link, struct zero_frame *frame)
{
	struct zero_control_team *team = zero_control_team_find(link->control, frame->header.team);
	struct zero_left left;

	if (team && frame->header.kind == ZERO_FRAME_LEFT) {
		if (frame->header.bytes == sizeof(left)) {
			memcpy(&left, frame->payload->data, sizeof(left));
			zero_control_left(team, &left, link);
		}
		zero_frame_free(frame);
		return;
	}
	zero_link_keep(link, frame);
	if (team)
		zero_control_advance(team);
	zero_control_changed(link->control);
}

/* With the lock. Takes the frame; false: the connection is not used on. */
static bool hear(struct zero_link *link, struct zero_frame *frame)
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
	case ZERO_FRAME_LEFT:
		hear_of_team(link, frame);
		return true;
	case ZERO_FRAME_CONFIRM:
		link->confirmed = true;
		zero_control_changed(link->control);
		break;
	case ZERO_FRAME_BYE:
		link->farewell = true;
		zero_control_changed(link->control);
		break;
	case ZERO_FRAME_BROKEN:
		hear_broken(link, frame);
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

/* With the lock. Cuts what is in the buffer into frames; NULL, or why the connection is no use. */
static const char *cut(struct zero_link *link)
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
		else if (!hear(link, frame))
			return "it does not keep to the protocol";
	}
	link->filled -= at;
	memmove(link->buffer, link->buffer + at, link->filled);
	return NULL;
}

/* As much as one call gives: the others wait too. */
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
		why = cut(link);
	} else {
		frame->done += (size_t)got;
		if (frame->done == frame->header.bytes) {
			link->arriving = NULL;
			if (!hear(link, frame))
				why = "it does not keep to the protocol";
		}
	}
	if (why)
		end_link(link, why);
	pthread_mutex_unlock(&control->lock);
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* With the lock; its connection stays open. */
static void remove_stranger(struct zero_control *control, struct zero_stranger *stranger)
{
	struct zero_stranger **at = &control->strangers;

	while (*at != stranger)
		at = &(*at)->next;
	*at = stranger->next;
	control->stranger_count--;
	free(stranger);
}

/* With the lock. */
static void turn_away(struct zero_control *control, struct zero_stranger *stranger)
{
	close(stranger->fd);
	remove_stranger(control, stranger);
}

void zero_control_free_strangers(struct zero_control *control)
{
	while (control->strangers)
		turn_away(control, control->strangers);
}

/* With the lock. It has said all: it is of the job, or not. */
static void judge(struct zero_control *control, struct zero_stranger *stranger)
{
	struct zero_answer answer;
	struct zero_link *link = NULL;

	stranger->hello.node[sizeof(stranger->hello.node) - 1] = '\0';
	zero_clean(stranger->hello.node);
	if (zero_control_welcome(control, &stranger->hello))
		link = zero_link_new(control, stranger->fd, stranger->hello.rank,
				     stranger->hello.node);
	if (!link) {
		turn_away(control, stranger);
		return;
	}
	zero_dial_tune(link->fd);
	zero_link_add(link);
	remove_stranger(control, stranger);
	zero_control_answer(control, &answer);
	/* A new connection has room for so little. Where it has ended, reading will say so. */
	if (send(link->fd, &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		link->mute = true;
	zero_link_tell(link);
}

/* With the lock. */
static void read_stranger(struct zero_control *control, struct zero_stranger *stranger)
{
	ssize_t got = recv(stranger->fd, (char *)&stranger->hello + stranger->have,
			   sizeof(stranger->hello) - stranger->have, MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return;
	if (got <= 0) {
		turn_away(control, stranger);
		return;
	}
	stranger->have += (size_t)got;
	if (stranger->have == sizeof(stranger->hello))
		judge(control, stranger);
}

/* With the lock. Most have said all when they are accepted. */
static void meet(struct zero_control *control, int fd)
{
	struct zero_stranger *stranger = calloc(1, sizeof(*stranger)), **end = &control->strangers;

	if (!stranger) {
		close(fd);
		return;
	}
	if (control->stranger_count == STRANGERS)
		turn_away(control, control->strangers);
	while (*end)
		end = &(*end)->next;
	*end = stranger;
	control->stranger_count++;
	stranger->fd = fd;
	stranger->deadline = zero_seconds() + PATIENCE;
	read_stranger(control, stranger);
}

static void accept_some(struct zero_control *control, struct watch *watch)
{
	for (int i = 0; i < STRANGERS; i++) {
		int fd = accept4(control->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
			    errno == ENOMEM)
				watch->resume = zero_seconds() + 0.1;
			return;
		}
		pthread_mutex_lock(&control->lock);
		meet(control, fd);
		pthread_mutex_unlock(&control->lock);
	}
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool make_room(struct watch *watch, size_t count)
{
	size_t room = 2 * count;
	void *polls, *links, *strangers;

	if (count <= watch->room)
		return true;
	polls = realloc(watch->polls, room * sizeof(*watch->polls));
	if (polls)
		watch->polls = polls;
	links = realloc(watch->links, room * sizeof(struct zero_link *));
	if (links)
		watch->links = links;
	strangers = realloc(watch->strangers, room * sizeof(struct zero_stranger *));
	if (strangers)
		watch->strangers = strangers;
	if (!polls || !links || !strangers)
		return false;
	watch->room = room;
	return true;
}

static void add(struct watch *watch, int fd, short events, struct zero_link *link,
		struct zero_stranger *stranger)
{
	watch->polls[watch->count] = (struct pollfd){.fd = fd, .events = events};
	watch->links[watch->count] = link;
	watch->strangers[watch->count++] = stranger;
}

/* With the lock. What is to be waited for, and for how long (ms; -1 for ever). */
static int fill(struct zero_control *control, struct watch *watch)
{
	size_t count = 2 + control->stranger_count;
	double now = zero_seconds(), until = -1;

	for (const struct zero_link *link = control->links; link; link = link->next)
		count++;
	watch->count = 0;
	if (!make_room(watch, count))
		return 10;
	add(watch, control->wakeup, POLLIN, NULL, NULL);
	/* A place that poll passes over. */
	add(watch, now < watch->resume ? -1 : control->listener, POLLIN, NULL, NULL);
	for (struct zero_stranger *one = control->strangers; one; one = one->next)
		add(watch, one->fd, POLLIN, NULL, one);
	for (struct zero_link *link = control->links; link; link = link->next)
		if (link->fd >= 0)
			add(watch, link->fd, link->out.first ? POLLIN | POLLOUT : POLLIN, link,
			    NULL);
	if (now < watch->resume)
		until = watch->resume;
	if (control->strangers && (until < 0 || control->strangers->deadline < until))
		until = control->strangers->deadline;
	if (until < 0)
		return -1;
	return until > now ? (int)((until - now) * 1e3) + 1 : 0;
}

static void serve_links(struct zero_control *control, const struct watch *watch)
{
	for (size_t i = 2; i < watch->count; i++) {
		struct zero_link *link = watch->links[i];
		short events = watch->polls[i].revents;

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

static void serve_strangers(struct zero_control *control, struct watch *watch)
{
	double now = zero_seconds();

	pthread_mutex_lock(&control->lock);
	for (size_t i = 2; i < watch->count; i++)
		if (watch->strangers[i] && watch->polls[i].revents)
			read_stranger(control, watch->strangers[i]);
	while (control->strangers && control->strangers->deadline <= now)
		turn_away(control, control->strangers);
	pthread_mutex_unlock(&control->lock);
	/* After those that are known, since a new one may take the place of an old one. */
	if (watch->count && watch->polls[1].revents)
		accept_some(control, watch);
}

static void tell_broken(struct zero_control *control)
{
	bool tell;

	pthread_mutex_lock(&control->lock);
	tell = atomic_load(&control->broken) && !control->broken_told && !control->closing;
	control->broken_told |= tell;
	pthread_mutex_unlock(&control->lock);
	if (tell && control->config.broken)
		control->config.broken(control->config.broken_context);
}

static void *serve(void *context)
{
	struct zero_control *control = context;
	struct watch watch = {.resume = 0};
	uint64_t wakes;

	prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
	pthread_setname_np(pthread_self(), "zero-control");
	for (;;) {
		bool stopping;
		int wait;

		tell_broken(control);
		pthread_mutex_lock(&control->lock);
		stopping = control->stopping;
		wait = fill(control, &watch);
		pthread_mutex_unlock(&control->lock);
		if (stopping)
			break;
		if (poll(watch.polls, watch.count, wait) <= 0)
			for (size_t i = 0; i < watch.count; i++)
				watch.polls[i].revents = 0;
		if (watch.count && watch.polls[0].revents &&
		    read(control->wakeup, &wakes, sizeof(wakes)) < 0)
			continue;
		serve_links(control, &watch);
		serve_strangers(control, &watch);
	}
	free(watch.polls);
	free(watch.links);
	free(watch.strangers);
	return NULL;
}

zero_status zero_control_start_reader(struct zero_control *control)
{
	int error = zero_thread_start(&control->reader, serve, control);

	if (error)
		return zero_core->fail(ZERO_E_MEMORY, "cannot start the control thread: %s",
				       strerror(error));
	control->reading = true;
	return ZERO_OK;
}
