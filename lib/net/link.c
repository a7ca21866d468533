/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to a neighbour: sends and receives frames without blocking. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/text.h"
#include "net_internal.h"

#define FRAME_LIMIT (UINT64_C(1) << 40)
enum { MAX_PARTS = 64 };

struct zero_link *zero_link_new(struct zero_net *net, int fd, int rank, const char *node)
{
	struct zero_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->net = net;
	link->rank = rank;
	link->received_at = zero_seconds();
	atomic_init(&link->fd, fd);
	snprintf(link->node, sizeof(link->node), "%s", node);
	link->next = net->links;
	net->links = link;
	zero_net_ops.wake(net);
	return link;
}

void zero_link_free(struct zero_link *link)
{
	zero_net_close_fd(&link->fd);
	while (link->frames) {
		struct zero_frame *frame = link->frames;

		link->frames = frame->next;
		free(frame);
	}
	free(link->arriving);
	free(link->out);
	free(link);
}

struct zero_link *zero_link_find(struct zero_net *net, int rank)
{
	struct zero_link *link = net->links;

	while (link && (link->rank != rank || !link->confirmed))
		link = link->next;
	return link;
}

struct zero_frame **zero_link_frame(struct zero_link *link, uint32_t kind, uint64_t team)
{
	struct zero_frame **at = &link->frames;

	while (*at && ((*at)->header.kind != kind || (*at)->header.team != team))
		at = &(*at)->next;
	return *at ? at : NULL;
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool would_block(int error)
{
	return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* On an error the bytes are dropped. The reading side reports the error, after it has read what the
   neighbour sent before. */
void zero_link_flush(struct zero_link *link)
{
	ssize_t sent = 0;

	if (link->out_bytes)
		sent = send(link->fd, link->out, link->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent < 0 && would_block(errno))
		return;
	if (sent < 0)
		sent = (ssize_t)link->out_bytes;
	link->out_bytes -= (size_t)sent;
	if (link->out_bytes)
		memmove(link->out, link->out + sent, link->out_bytes);
}

static bool keep(struct zero_link *link, const void *data, size_t bytes)
{
	size_t need = link->out_bytes + bytes;

	if (need > link->out_capacity) {
		uint8_t *grown = realloc(link->out, 2 * need);

		if (!grown)
			return false;
		link->out = grown;
		link->out_capacity = 2 * need;
	}
	memcpy(link->out + link->out_bytes, data, bytes);
	link->out_bytes = need;
	return true;
}

static ssize_t send_now(struct zero_link *link, const struct zero_frame_header *header,
			const void *data)
{
	struct iovec parts[2] = {{(void *)(uintptr_t)header, sizeof(*header)},
				 {(void *)(uintptr_t)data, header->bytes}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = header->bytes ? 2 : 1};

	return sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void zero_link_send(struct zero_link *link, const struct zero_frame_header *header,
		    const void *data)
{
	size_t head = sizeof(*header), sent = 0;
	ssize_t some = 0;
	bool kept = true;

	if (link->fd < 0 || link->goodbye)
		return;
	if (!link->out_bytes)
		some = send_now(link, header, data);
	if (some < 0 && !would_block(errno))
		return;
	if (some > 0)
		sent = (size_t)some;
	if (sent < head)
		kept = keep(link, (const uint8_t *)header + sent, head - sent);
	sent = sent < head ? 0 : sent - head;
	if (kept && sent < header->bytes)
		kept = keep(link, (const uint8_t *)data + sent, header->bytes - sent);
	if (link->out_bytes)
		zero_net_ops.wake(link->net);
	if (kept)
		return;
	/* A part of the frame may have been sent, so that no other can follow. */
	shutdown(link->fd, SHUT_WR);
	zero_net_fail_locked(link->net, ZERO_E_COMM, link->net->config.rank, link,
			     "rank %d has no memory for a message to rank %d",
			     link->net->config.rank, link->rank);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Called with an unconfirmed link only, which nobody uses. */
static void remove_link(struct zero_link *link)
{
	struct zero_link **at = &link->net->links;

	while (*at != link)
		at = &(*at)->next;
	*at = link->next;
	zero_link_free(link);
}

static void end_link(struct zero_link *link, const char *why)
{
	struct zero_net *net = link->net;

	zero_net_close_fd(&link->fd);
	link->out_bytes = 0;
	if (!link->confirmed) {
		remove_link(link);
		return;
	}
	if (!link->goodbye && !net->closing) {
		net->lost = true;
		zero_net_fail_locked(net, ZERO_E_COMM, link->rank, link,
				     "rank %d (node %s) is gone: %s", link->rank, link->node, why);
	}
	zero_net_notify(net);
}

static void receive_failure(struct zero_link *link, struct zero_frame *frame)
{
	int32_t about[2] = {link->rank, ZERO_E_COMM};
	char text[ZERO_NET_TEXT] = "";
	size_t length = frame->header.bytes - sizeof(about);

	if (frame->header.bytes > sizeof(about) && length < sizeof(text)) {
		memcpy(about, frame->data, sizeof(about));
		memcpy(text, frame->data + sizeof(about), length);
		text[length] = '\0';
		zero_clean(text);
	}
	link->net->lost |= about[1] == ZERO_NET_LOST;
	zero_net_fail_locked(link->net, about[1] == ZERO_E_ORDER ? ZERO_E_ORDER : ZERO_E_COMM,
			     about[0], link, "%s", *text ? text : "communication has failed");
}

/* Stores or frees the frame. Returns false if it breaks the protocol. */
static bool receive_frame(struct zero_link *link, struct zero_frame *frame)
{
	struct zero_frame **end = &link->frames;
	struct zero_net *net = link->net;
	uint32_t kind = frame->header.kind;
	struct zero_net_team *team;

	if (kind < ZERO_FRAME_CONFIRM || kind > ZERO_FRAME_GOODBYE ||
	    (!link->confirmed && (kind != ZERO_FRAME_CONFIRM || zero_link_find(net, link->rank)))) {
		free(frame);
		return false;
	}
	link->confirmed = true;
	link->goodbye |= kind == ZERO_FRAME_GOODBYE;
	if (kind == ZERO_FRAME_FAILURE)
		receive_failure(link, frame);
	if (kind != ZERO_FRAME_UP && kind != ZERO_FRAME_DOWN && kind != ZERO_FRAME_WATCH) {
		free(frame);
	} else {
		while (*end)
			end = &(*end)->next;
		*end = frame;
		/* This rank may not have made the team yet. */
		team = zero_net_team_find(net, frame->header.team);
		if (team && kind != ZERO_FRAME_WATCH)
			zero_net_advance(team);
	}
	zero_net_notify(net);
	return true;
}

/* Receives a part of a frame. Returns whether it took anything, or sets *why the link must end. */
static bool receive_some(struct zero_link *link, const char **why)
{
	struct zero_frame *frame = link->arriving;
	size_t want = frame ? frame->header.bytes : sizeof(link->header);
	uint8_t *to = frame ? frame->data : (uint8_t *)&link->header;
	ssize_t got = 0;

	if (link->have < want) {
		got = recv(link->fd, to + link->have, want - link->have, MSG_DONTWAIT);
		if (got < 0 && would_block(errno))
			return false;
		if (got <= 0) {
			*why = got ? strerror(errno) : "its connection ended";
			return false;
		}
		link->received_at = zero_seconds();
		link->have += (size_t)got;
	}
	if (link->have < want)
		return true;
	link->have = 0;
	if (frame) {
		link->arriving = NULL;
		if (!receive_frame(link, frame))
			*why = "it violates the protocol";
		return true;
	}
	if (link->header.bytes <= FRAME_LIMIT)
		link->arriving = calloc(1, sizeof(*frame) + link->header.bytes);
	if (!link->arriving)
		*why = "there is no memory for what it sends";
	else
		link->arriving->header = link->header;
	return true;
}

void zero_link_read(struct zero_link *link)
{
	const char *why = NULL;
	int parts = 0;

	/* Every link gets its turn. */
	while (parts++ < MAX_PARTS && !why && receive_some(link, &why))
		continue;
	if (why)
		end_link(link, why);
}

/* ---- for the watchdog ------------------------------------------------------------------------ */

void zero_link_send_watch(struct zero_link *link, const void *data, size_t bytes)
{
	const struct zero_frame_header header = {.kind = ZERO_FRAME_WATCH, .bytes = bytes};

	pthread_mutex_lock(&link->net->lock);
	zero_link_send(link, &header, data);
	pthread_mutex_unlock(&link->net->lock);
}

void zero_link_send_notice(struct zero_link *link, const void *data, size_t bytes)
{
	const struct zero_frame_header header = {.kind = ZERO_FRAME_WATCH, .bytes = bytes};

	if (link->fd >= 0 && !link->out_bytes && send_now(link, &header, data) < 0)
		return;
}

bool zero_link_take_watch(struct zero_link *link, void *data, size_t bytes, double *received_at)
{
	struct zero_frame **at, *frame = NULL;

	pthread_mutex_lock(&link->net->lock);
	*received_at = link->received_at;
	at = zero_link_frame(link, ZERO_FRAME_WATCH, 0);
	if (at) {
		frame = *at;
		*at = frame->next;
	}
	pthread_mutex_unlock(&link->net->lock);
	if (!frame)
		return false;
	memset(data, 0, bytes);
	memcpy(data, frame->data, frame->header.bytes < bytes ? frame->header.bytes : bytes);
	free(frame);
	return true;
}

bool zero_link_has_ended(const struct zero_link *link)
{
	return atomic_load(&link->fd) < 0;
}
