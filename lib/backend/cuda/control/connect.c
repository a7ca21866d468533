/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects two ranks: the higher one dials the lower one, and each verifies that the other is of
 * the job. The connection is used only after the dialling rank confirms it, because that rank may
 * have given up on this attempt.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "private.h"

static const struct zero_hello hello = {.magic = "zeroctl", .version = ZERO_DIAL_VERSION};
static const struct zero_hello_reply reply = {.magic = "zeroack", .version = ZERO_DIAL_VERSION};

bool zero_control_hello_is_valid(const struct zero_control *control,
				 const struct zero_hello *received)
{
	struct zero_hello wanted = hello;

	wanted.wanted = control->config.rank;
	memcpy(wanted.cookie, control->cookie, sizeof(wanted.cookie));
	return zero_hello_verify(received, &wanted) && received->rank > control->config.rank &&
	       received->rank < control->config.world;
}

void zero_control_fill_reply(const struct zero_control *control, struct zero_hello_reply *filled)
{
	*filled = reply;
	filled->rank = control->config.rank;
}

static bool has_failed(void *context)
{
	const struct zero_control *control = context;

	return atomic_load(&control->failed);
}

/* Records the descriptor for fork.c. */
static void set_connecting(void *context, int fd)
{
	struct zero_control *control = context;

	pthread_mutex_lock(&control->lock);
	control->connecting = fd;
	pthread_mutex_unlock(&control->lock);
}

/* Both ranks use the connection from now on. */
static zero_status add_confirmed_link(struct zero_control *control, const struct zero_dial *dial,
				      int fd, struct zero_link **link)
{
	static const struct zero_frame_header confirm = {.kind = ZERO_FRAME_CONFIRM};
	struct zero_link *made = zero_link_new(control, fd, dial->hello.wanted, dial->address.node);

	pthread_mutex_lock(&control->lock);
	control->connecting = -1;
	if (made) {
		made->confirmed = true;
		zero_link_add(made);
		zero_link_send(made, &confirm, NULL);
		zero_link_send_state(made);
	}
	pthread_mutex_unlock(&control->lock);
	if (!made) {
		close(fd);
		return zero_control_fail_all_printf(
			control, control->config.rank,
			"rank %d has no memory for a connection to rank %d", control->config.rank,
			dial->hello.wanted);
	}
	*link = made;
	return ZERO_OK;
}

zero_status zero_control_connect(struct zero_control *control, int rank, double deadline,
				 struct zero_link **link)
{
	struct zero_dial dial = {.hello = hello,
				 .reply = reply,
				 .over = has_failed,
				 .connecting = set_connecting,
				 .context = control};
	char places[ZERO_DIAL_LIST_BYTES];
	zero_status status = control->config.address(control->config.context, rank, &dial.address);
	int fd;

	if (status)
		return zero_control_fail_all_printf(control, control->config.rank, "%s",
						    zero_core->last_error());
	dial.hello.rank = control->config.rank;
	dial.hello.wanted = dial.reply.rank = rank;
	memcpy(dial.hello.cookie, control->cookie, sizeof(dial.hello.cookie));
	memcpy(dial.hello.node, control->own.node, sizeof(dial.hello.node));
	zero_dial_prepare(&dial);
	if (!dial.count)
		return zero_control_fail_all_printf(
			control, rank,
			"rank %d (node %s) offers no address: it has no "
			"network that NCCL_SOCKET_IFNAME allows there",
			rank, dial.address.node);
	fd = zero_dial(&dial, deadline);
	if (fd >= 0)
		return add_confirmed_link(control, &dial, fd, link);
	zero_dial_list_addresses(&dial, places, sizeof(places));
	return zero_control_fail_all_printf(
		control, rank, "rank %d (node %s) did not answer within %g s at %s: %s", rank,
		dial.address.node, control->config.seconds, places, dial.why);
}
