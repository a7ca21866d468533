/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of a team, up and down its tree: maximum, exchange (all-gather), broadcast. */
#include <stdio.h>
#include <string.h>

#include "private.h"

static const char *name_kind(uint32_t kind)
{
	if (kind == ZERO_FRAME_MAX)
		return "a maximum";
	return kind == ZERO_FRAME_EXCHANGE ? "an exchange" : "a broadcast";
}

/* Called with the lock held. Ranks in different operations would wait for each other for ever. */
static void fail_mismatch(struct zero_control_team *team, const struct zero_frame_header *own,
			  const struct zero_link *link, const struct zero_frame_header *theirs)
{
	struct zero_control *control = team->control;
	char text[256];

	snprintf(text, sizeof(text),
		 "ranks %d and %d are in different operations: %s of %zu bytes, number %llu of "
		 "their team, and %s of %zu bytes, number %llu",
		 control->config.rank, link->rank, name_kind(own->kind), (size_t)own->bytes,
		 (unsigned long long)own->sequence, name_kind(theirs->kind), (size_t)theirs->bytes,
		 (unsigned long long)theirs->sequence);
	zero_control_fail_all_locked(control, ZERO_E_COMM, control->config.rank, text, NULL);
}

/* ---- maximum --------------------------------------------------------------------------------- */

/* Called with the lock held. Returns whether a neighbour's values have come, and copies them to
   `values`. */
static bool receive_max(struct zero_control_team *team, struct zero_link *link, uint64_t *values)
{
	struct zero_frame_header own = {.bytes = team->max.count * sizeof(*values),
					.sequence = team->max.sequence,
					.kind = ZERO_FRAME_MAX};
	struct zero_frame *frame = zero_link_pop(link, team->id, ZERO_LANE_MAX);
	const struct zero_frame *got = frame;
	bool same;

	if (!got)
		got = zero_link_find_mismatched(link, team->id, ZERO_LANE_MAX, own.sequence);
	if (!got)
		return false;
	same = frame && frame->header.bytes == own.bytes && frame->header.sequence == own.sequence;
	if (!same)
		fail_mismatch(team, &own, link, &got->header);
	else if (own.bytes)
		memcpy(values, frame->payload->data, own.bytes);
	zero_frame_free(frame);
	return same;
}

static bool receive_children_max(struct zero_control_team *team)
{
	bool all = true;

	for (size_t i = 0; i < team->child_count; i++) {
		uint64_t values[ZERO_CONTROL_VALUES] = {0};

		if (!team->child[i].received && receive_max(team, team->child[i].link, values)) {
			team->child[i].received = true;
			for (size_t v = 0; v < team->max.count; v++)
				if (values[v] > team->max.values[v])
					team->max.values[v] = values[v];
		}
		all &= team->child[i].received;
	}
	return all;
}

static struct zero_payload *values_payload(struct zero_control_team *team)
{
	struct zero_control *control = team->control;
	struct zero_payload *payload =
		zero_payload_new(team->max.values, team->max.count * sizeof(uint64_t));

	if (!payload)
		zero_control_fail_all_locked(control, ZERO_E_COMM, control->config.rank,
					     "a rank has no memory for a message to the others",
					     NULL);
	return payload;
}

void zero_control_advance_max(struct zero_control_team *team)
{
	struct zero_frame_header header = {
		.team = team->id, .sequence = team->max.sequence, .kind = ZERO_FRAME_MAX};
	struct zero_payload *payload;

	if (!team->max.begun || team->max.done || !receive_children_max(team))
		return;
	if (team->parent && !team->max.sent_up) {
		payload = values_payload(team);
		if (!payload)
			return;
		zero_link_send(team->parent, &header, payload);
		zero_payload_put(payload);
		team->max.sent_up = true;
	}
	if (team->parent && !receive_max(team, team->parent, team->max.values))
		return;
	payload = values_payload(team);
	if (!payload)
		return;
	for (size_t i = 0; i < team->child_count; i++)
		zero_link_send(team->child[i].link, &header, payload);
	zero_payload_put(payload);
	team->max.done = true;
	zero_control_notify(team->control);
}

/* Called with the lock held. Numbers a new operation, or returns why it cannot complete. */
static zero_status begin_operation(struct zero_control_team *team)
{
	if (atomic_load(&team->control->failed))
		return zero_control_failure(team->control);
	if (++team->sequence >= team->departed_from)
		return zero_control_departure_error(team);
	return ZERO_OK;
}

/* Called with the lock held. */
static zero_status begin_max(struct zero_control_team *team, const uint64_t *mine, size_t count)
{
	zero_status status;

	if (team->max.begun && !atomic_load(&team->control->failed) &&
	    team->max.sequence < team->departed_from)
		return zero_core->fail(ZERO_E_STATE, "the team's previous maximum is not finished");
	status = begin_operation(team);
	if (status)
		return status;
	team->max.sequence = team->sequence;
	team->max.begun = true;
	team->max.sent_up = team->max.done = false;
	team->max.count = count;
	memcpy(team->max.values, mine, count * sizeof(*mine));
	for (size_t i = 0; i < team->child_count; i++)
		team->child[i].received = false;
	zero_control_advance_max(team);
	return ZERO_OK;
}

zero_status zero_control_begin_max(struct zero_control_team *team, const uint64_t *mine,
				   size_t count)
{
	struct zero_control *control = team->control;
	zero_status status;

	if (count > ZERO_CONTROL_VALUES)
		return zero_core->fail(ZERO_E_INVALID, "a maximum has at most %d values, not %zu",
				       ZERO_CONTROL_VALUES, count);
	pthread_mutex_lock(&control->lock);
	status = begin_max(team, mine, count);
	pthread_mutex_unlock(&control->lock);
	return status;
}

/* Called with the lock held. Everything that a neighbour sent before its goodbye has been received.
   If a value is still missing then, the maximum cannot complete, and the team learns so. */
static bool cannot_complete(struct zero_control_team *team)
{
	if (team->parent && team->parent->goodbye_received)
		zero_control_report_departure(team, team->parent, team->max.sequence);
	for (size_t i = 0; i < team->child_count; i++)
		if (!team->child[i].received && team->child[i].link->goodbye_received)
			zero_control_report_departure(team, team->child[i].link,
						      team->max.sequence);
	return team->max.sequence >= team->departed_from;
}

/* Called with the lock held. Returns whether a maximum is complete, or *status is an error. */
static bool poll_max(struct zero_control_team *const *teams, size_t count, size_t *which,
		     zero_status *status)
{
	bool may_complete = false;

	*status = ZERO_OK;
	if (atomic_load(&teams[0]->control->failed)) {
		*status = zero_control_failure(teams[0]->control);
		return true;
	}
	for (size_t i = 0; i < count; i++) {
		if (!teams[i]->max.begun) {
			*status = zero_core->fail(ZERO_E_STATE,
						  "no maximum was begun for team %zu "
						  "of %zu",
						  i, count);
			return true;
		}
		if (teams[i]->max.done) {
			*which = i;
			return true;
		}
	}
	for (size_t i = 0; i < count; i++)
		may_complete |= !cannot_complete(teams[i]);
	if (!may_complete)
		*status = zero_control_departure_error(teams[0]);
	return !may_complete;
}

zero_status zero_control_finish_max(struct zero_control_team *const *teams, size_t team_count,
				    size_t *which, uint64_t *all)
{
	struct zero_control *control;
	zero_status status;

	if (!team_count)
		return zero_core->fail(ZERO_E_INVALID, "zero_control_finish_max needs a team");
	control = teams[0]->control;
	pthread_mutex_lock(&control->lock);
	while (!poll_max(teams, team_count, which, &status))
		zero_control_wait(control, 0);
	if (!status) {
		struct zero_control_team *team = teams[*which];

		memcpy(all, team->max.values, team->max.count * sizeof(*all));
		team->max.begun = false;
	}
	pthread_mutex_unlock(&control->lock);
	return status;
}

/* ---- data ------------------------------------------------------------------------------------ */

static zero_status begin_data(struct zero_control_team *team)
{
	zero_status status;

	pthread_mutex_lock(&team->control->lock);
	status = begin_operation(team);
	pthread_mutex_unlock(&team->control->lock);
	return status;
}

/* Copies data to be sent. Without memory it fails on all ranks. */
static zero_status pack(struct zero_control_team *team, const void *data, size_t bytes,
			struct zero_payload **payload)
{
	struct zero_control *control = team->control;

	*payload = zero_payload_new(data, bytes);
	if (*payload)
		return ZERO_OK;
	return zero_control_fail_all_printf(control, control->config.rank,
					    "rank %d has no memory for the %zu bytes that it sends",
					    control->config.rank, bytes);
}

static void send_data(struct zero_control_team *team, struct zero_link *link,
		      enum zero_frame_kind kind, struct zero_payload *payload)
{
	struct zero_frame_header header = {
		.team = team->id, .sequence = team->sequence, .kind = kind};

	pthread_mutex_lock(&team->control->lock);
	zero_link_send(link, &header, payload);
	pthread_mutex_unlock(&team->control->lock);
}

/* Called with the lock held. Returns whether the expected frame has come, or *status says why it
   cannot come. */
static bool poll_data(struct zero_control_team *team, struct zero_link *link,
		      const struct zero_frame_header *own, struct zero_frame **frame,
		      zero_status *status)
{
	struct zero_frame *taken = NULL;
	const struct zero_frame *got = NULL;

	if (!atomic_load(&team->control->failed)) {
		got = taken = zero_link_pop(link, team->id, ZERO_LANE_DATA);
		if (!got)
			got = zero_link_find_mismatched(link, team->id, ZERO_LANE_DATA,
							own->sequence);
	}
	if (taken && got->header.kind == own->kind && got->header.bytes == own->bytes &&
	    got->header.sequence == own->sequence) {
		*frame = taken;
		return true;
	}
	if (got)
		fail_mismatch(team, own, link, &got->header);
	zero_frame_free(taken);
	if (link->goodbye_received)
		zero_control_report_departure(team, link, own->sequence);
	if (atomic_load(&team->control->failed))
		*status = zero_control_failure(team->control);
	else if (own->sequence >= team->departed_from)
		*status = zero_control_departure_error(team);
	return *status != ZERO_OK;
}

/* Waits for the neighbour's next frame of this operation. */
static zero_status receive(struct zero_control_team *team, struct zero_link *link,
			   enum zero_frame_kind kind, size_t bytes, struct zero_frame **frame)
{
	struct zero_frame_header own = {.bytes = bytes, .sequence = team->sequence, .kind = kind};
	zero_status status = ZERO_OK;

	pthread_mutex_lock(&team->control->lock);
	while (!poll_data(team, link, &own, frame, &status))
		zero_control_wait(team->control, 0);
	pthread_mutex_unlock(&team->control->lock);
	return status;
}

static void copy_out(void *to, const struct zero_frame *frame)
{
	if (frame->header.bytes)
		memcpy(to, frame->payload->data, frame->header.bytes);
}

/* Fills the part of recv that belongs to this rank's subtree. */
static zero_status collect(struct zero_control_team *team, const void *send, uint8_t *recv,
			   size_t bytes)
{
	if (bytes)
		memmove(recv + team->self * bytes, send, bytes);
	for (size_t i = 0; i < team->child_count; i++) {
		size_t first = team->child[i].first;
		struct zero_frame *frame;
		zero_status status = receive(team, team->child[i].link, ZERO_FRAME_EXCHANGE,
					     (team->child[i].end - first) * bytes, &frame);

		if (status)
			return status;
		copy_out(recv + first * bytes, frame);
		zero_frame_free(frame);
	}
	return ZERO_OK;
}

static zero_status send_to_parent(struct zero_control_team *team, const uint8_t *recv, size_t bytes)
{
	struct zero_payload *payload;
	zero_status status =
		pack(team, recv + team->self * bytes, (team->end - team->self) * bytes, &payload);

	if (status)
		return status;
	send_data(team, team->parent, ZERO_FRAME_EXCHANGE, payload);
	zero_payload_put(payload);
	return ZERO_OK;
}

/* Fills recv. *result is the same data as a payload for the children; it may be NULL if there are
   none. */
static zero_status receive_result(struct zero_control_team *team, uint8_t *recv, size_t bytes,
				  struct zero_payload **result)
{
	struct zero_frame *frame;
	zero_status status;

	if (!team->parent)
		return team->child_count ? pack(team, recv, team->count * bytes, result) : ZERO_OK;
	status = send_to_parent(team, recv, bytes);
	if (!status)
		status = receive(team, team->parent, ZERO_FRAME_EXCHANGE, team->count * bytes,
				 &frame);
	if (status)
		return status;
	copy_out(recv, frame);
	*result = frame->payload;
	frame->payload = NULL;
	zero_frame_free(frame);
	return ZERO_OK;
}

zero_status zero_control_exchange(struct zero_control_team *team, const void *send, void *recv,
				  size_t bytes)
{
	struct zero_payload *result = NULL;
	zero_status status = begin_data(team);
	size_t all;

	if (status)
		return status;
	if (__builtin_mul_overflow(team->count, bytes, &all))
		return zero_core->fail(ZERO_E_INVALID,
				       "%zu bytes from each of %zu ranks are too many", bytes,
				       team->count);
	status = collect(team, send, recv, bytes);
	if (!status)
		status = receive_result(team, recv, bytes, &result);
	for (size_t i = 0; !status && i < team->child_count; i++)
		send_data(team, team->child[i].link, ZERO_FRAME_EXCHANGE, result);
	zero_payload_put(result);
	return status;
}

/* Returns the neighbour on the path to the root, or NULL on the root itself. */
static struct zero_link *link_towards(const struct zero_control_team *team, size_t root)
{
	if (root == team->self)
		return NULL;
	for (size_t i = 0; i < team->child_count; i++)
		if (root >= team->child[i].first && root < team->child[i].end)
			return team->child[i].link;
	return team->parent;
}

zero_status zero_control_broadcast(struct zero_control_team *team, void *data, size_t bytes,
				   int root)
{
	struct zero_payload *payload = NULL;
	struct zero_frame *frame = NULL;
	zero_status status = begin_data(team);
	struct zero_link *from;

	if (status)
		return status;
	if (root < 0 || (size_t)root >= team->count)
		return zero_core->fail(ZERO_E_INVALID,
				       "root %d is not an index into a team of %zu ranks", root,
				       team->count);
	from = link_towards(team, (size_t)root);
	if (from)
		status = receive(team, from, ZERO_FRAME_BROADCAST, bytes, &frame);
	else
		status = pack(team, data, bytes, &payload);
	if (status)
		return status;
	if (frame) {
		copy_out(data, frame);
		payload = frame->payload;
		frame->payload = NULL;
		zero_frame_free(frame);
	}
	if (team->parent && team->parent != from)
		send_data(team, team->parent, ZERO_FRAME_BROADCAST, payload);
	for (size_t i = 0; i < team->child_count; i++)
		if (team->child[i].link != from)
			send_data(team, team->child[i].link, ZERO_FRAME_BROADCAST, payload);
	zero_payload_put(payload);
	return ZERO_OK;
}
