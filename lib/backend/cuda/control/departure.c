/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank may close its job at any time. Only when a rank of a team waits for it does the team's
 * operation fail: the waiting rank reports the departure, which passes through the team's tree.
 */
#include <stdio.h>
#include <string.h>

#include "private.h"

/* The payload of a frame of kind ZERO_FRAME_DEPARTURE. */
struct departure {
	int32_t rank, waiter;
	uint64_t sequence; /* of the operation in which `waiter` waits for `rank` */
};

/* Called with the lock held. Passes it to the team's neighbours but `from`, which may be NULL. */
static void forward(struct zero_control_team *team, const struct departure *departure,
		    const struct zero_link *from)
{
	struct zero_frame_header header = {.team = team->id, .kind = ZERO_FRAME_DEPARTURE};
	struct zero_payload *payload;

	/* A report of an earlier operation replaces this one and is forwarded again. */
	if (departure->sequence >= team->departed_from)
		return;
	team->departed_rank = departure->rank;
	team->waiter = departure->waiter;
	team->departed_from = departure->sequence;
	payload = zero_payload_new(departure, sizeof(*departure));
	if (!payload) {
		zero_control_fail_all_locked(team->control, ZERO_E_COMM, departure->rank,
					     "a rank has closed its job", NULL);
		return;
	}
	if (team->parent && team->parent != from)
		zero_link_send(team->parent, &header, payload);
	for (size_t i = 0; i < team->child_count; i++)
		if (team->child[i].link != from)
			zero_link_send(team->child[i].link, &header, payload);
	zero_payload_put(payload);
	zero_control_notify(team->control);
}

void zero_control_receive_departure(struct zero_control_team *team, const struct zero_link *from,
				    struct zero_frame *frame)
{
	struct departure departure;

	if (frame->header.bytes == sizeof(departure)) {
		memcpy(&departure, frame->payload->data, sizeof(departure));
		forward(team, &departure, from);
	}
	zero_frame_free(frame);
}

void zero_control_report_departure(struct zero_control_team *team, const struct zero_link *link,
				   uint64_t sequence)
{
	struct departure departure = {
		.rank = link->rank, .waiter = team->control->config.rank, .sequence = sequence};

	forward(team, &departure, NULL);
}

zero_status zero_control_departure_error(const struct zero_control_team *team)
{
	char text[128];

	snprintf(text, sizeof(text), "rank %d has closed its job while rank %d waits for it",
		 team->departed_rank, team->waiter);
	return zero_core->fail_on(team->departed_rank, ZERO_E_COMM, text);
}
