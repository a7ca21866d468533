/* SPDX-License-Identifier: Apache-2.0 */
/* Composes and prints the message: which rank was lost, how, and what the ranks were doing. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "watch_internal.h"

enum { MAX_PLACES = 8 };

struct text {
	char *data;
	size_t at, size;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(text->data + text->at, text->size - text->at, format, arguments);
	va_end(arguments);
	if (length > 0)
		text->at += (size_t)length;
	if (text->at >= text->size)
		text->at = text->size - 1;
}

static void add_signal(struct text *text, int number)
{
	add(text, "died of signal %d (%s)", number,
	    number > 0 && number < NSIG ? strsignal(number) : "?");
}

static void add_ranks(struct text *text, const int *ranks, size_t count)
{
	char names[200];

	zero_name_ranks(names, sizeof(names), ranks, count);
	add(text, "%s", names);
}

static void add_rank(struct text *text, const struct zero_ring *ring, int rank)
{
	const struct zero_ring_peer *peer = &ring->all[rank];

	add(text, "rank %d on node %.64s (pid %lld)", rank, peer->node_name, (long long)peer->pid);
}

static void add_activity(struct text *text, const struct zero_activity *activity, bool with_time)
{
	if (*activity->call)
		add(text, "in %.40s%s", activity->call, activity->operation ? ", " : "");
	if (activity->operation)
		add(text, "%s %.112s (operation %llu)", activity->running ? "in" : "after",
		    activity->label, (unsigned long long)activity->operation);
	if (!*activity->call && !activity->operation)
		add(text, "in no operation yet");
	else if (with_time && activity->operation)
		add(text, activity->running ? " for %.1f s" : ", done %.1f s ago",
		    (double)activity->seconds);
}

static bool same_activity(const struct zero_activity *a, const struct zero_activity *b)
{
	return a->operation == b->operation && a->running == b->running &&
	       !strncmp(a->label, b->label, sizeof(a->label)) &&
	       !strncmp(a->call, b->call, sizeof(a->call));
}

/* ---- how a rank was lost --------------------------------------------------------------------- */

static void add_kill(struct text *text, struct zero_oom *oom)
{
	add(text, zero_oom_grew(oom) ? "was killed by SIGKILL because memory ran out"
				     : "was killed by SIGKILL");
}

/* /proc of this node shows how a process has ended, until its parent has waited for it. */
static void add_disconnected(struct text *text, const struct zero_ring *ring,
			     const struct zero_ring_peer *peer, struct zero_oom *oom)
{
	struct zero_process found = {.exit_code = 0};
	bool visible = zero_ring_is_local(ring, peer) &&
		       zero_process_read((pid_t)peer->pid, peer->start_time, &found);
	int number = found.exit_code & 0x7f;
	bool ended = found.state == 'Z' || found.state == 'X';

	if (visible && number == SIGKILL)
		add_kill(text, oom);
	else if (visible && number)
		add_signal(text, number);
	else if (visible && (ended || found.exit_code))
		add(text, "called _exit(%d)", found.exit_code >> 8 & 0xff);
	else if (zero_oom_grew(oom))
		add_kill(text, oom);
	else if (peer->default_signals & UINT32_C(1) << SIGSEGV)
		add(text, "was killed by SIGKILL, perhaps because memory ran out, or called _exit");
	else
		add(text, "has ended without notice: it crashed, was killed, or called _exit");
}

static void add_silent(struct text *text, const struct zero_ring *ring,
		       const struct zero_ring_peer *peer)
{
	double timeout = ring->config.heartbeat_timeout;
	struct zero_process found;

	if (!zero_ring_is_local(ring, peer))
		add(text,
		    "has sent no heartbeat for %g s: it is stopped, or its node is down or "
		    "unreachable",
		    timeout);
	else if (!zero_process_read((pid_t)peer->pid, peer->start_time, &found))
		add(text, "has ended without notice");
	else if (found.state == 'T')
		add(text, "is stopped (SIGSTOP) and has sent no heartbeat for %g s", timeout);
	else if (found.state == 't')
		add(text, "is stopped by a debugger and has sent no heartbeat for %g s", timeout);
	else
		add(text, "has sent no heartbeat for %g s (its process is in state %c)",
		    ring->config.stall_timeout, found.state);
}

static void add_state(struct text *text, const struct zero_ring *ring)
{
	const struct zero_inquiry *inquiry = &ring->inquiry;
	const struct zero_ring_peer *peer = &ring->all[inquiry->rank];
	struct zero_oom *oom = ring->oom[zero_ring_side(ring, inquiry->rank)];

	switch (inquiry->state) {
	case ZERO_PEER_EXITED:
		if (!ring->config.watch_only)
			add(text, "called exit(%d) without zero_close", inquiry->value);
		else
			add(text, "has ended with exit status %d%s", inquiry->value,
			    inquiry->value ? "" : ", and others wait for it");
		break;
	case ZERO_PEER_SIGNALED:
		add_signal(text, inquiry->value);
		break;
	case ZERO_PEER_DISCONNECTED:
		add_disconnected(text, ring, peer, oom);
		break;
	default:
		add_silent(text, ring, peer);
	}
}

/* ---- where the ranks are --------------------------------------------------------------------- */

/* Whether all ranks that replied are in the same place. *first is one of them, -1 for none. */
static bool all_same(const struct zero_ring *ring, int *first)
{
	const struct zero_inquiry *inquiry = &ring->inquiry;

	*first = -1;
	for (int rank = 0; rank < ring->config.world; rank++) {
		if (!inquiry->replied[rank])
			continue;
		if (*first < 0)
			*first = rank;
		else if (!same_activity(&inquiry->activity[*first], &inquiry->activity[rank]))
			return false;
	}
	return true;
}

/* Adds a line for each place, with the longest time of the ranks there. Clears inquiry->replied. */
static void add_places(struct text *text, struct zero_ring *ring)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	int world = ring->config.world, lines = 0;
	size_t listed;

	for (int rank = 0; rank < world; rank++) {
		struct zero_activity longest = inquiry->activity[rank];

		if (!inquiry->replied[rank])
			continue;
		if (++lines > MAX_PLACES) {
			add(text, "zero:   further ranks are in other places\n");
			return;
		}
		listed = 0;
		for (int other = rank; other < world; other++) {
			const struct zero_activity *activity = &inquiry->activity[other];

			if (!inquiry->replied[other] || !same_activity(activity, &longest))
				continue;
			inquiry->listed[listed++] = other;
			inquiry->replied[other] = false;
			if (activity->seconds > longest.seconds)
				longest.seconds = activity->seconds;
		}
		add(text, "zero:   ");
		add_ranks(text, inquiry->listed, listed);
		add(text, ": ");
		add_activity(text, &longest, true);
		add(text, "\n");
	}
}

/* ---- the first line -------------------------------------------------------------------------- */

static void add_missing(struct text *text, struct zero_ring *ring)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	bool stalled = inquiry->state == ZERO_PEER_STALLED;
	size_t missing = 0;

	for (int rank = 0; rank < ring->config.world; rank++)
		if (!inquiry->replied[rank] && (stalled || rank != inquiry->rank))
			inquiry->listed[missing++] = rank;
	if (!missing)
		return;
	add(text, "; no reply from ");
	add_ranks(text, inquiry->listed, missing);
}

static void add_lost(struct text *text, struct zero_ring *ring)
{
	const struct zero_inquiry *inquiry = &ring->inquiry;
	const struct zero_ring_link *link = &ring->link[zero_ring_side(ring, inquiry->rank)];
	const struct zero_activity *activity = &link->activity;
	double before = link->state_since - link->activity_at;
	int first;

	add_rank(text, ring, inquiry->rank);
	add(text, " ");
	add_state(text, ring);
	if (activity->operation || *activity->call) {
		add(text, ", last seen (%.1f s before) ", before > 0 ? before : 0);
		add_activity(text, activity, false);
	}
	if (all_same(ring, &first) &&
	    (inquiry->activity[first].operation || *inquiry->activity[first].call)) {
		add(text, inquiry->replies > 1 ? "; the others are " : "; rank %d is ", first);
		add_activity(text, &inquiry->activity[first], false);
	}
	add_missing(text, ring);
	if (inquiry->ended < 0 || inquiry->ended == inquiry->rank)
		return;
	add(text, "; %d s before, ", inquiry->ended_for);
	add_rank(text, ring, inquiry->ended);
	add(text, " had ended with exit status 0");
}

static void add_overdue(struct text *text, const struct zero_ring *ring)
{
	add_rank(text, ring, ring->config.rank);
	add(text, " has not ended within %g s of %s (ZERO_END_SECONDS)", ring->config.end_timeout,
	    ring->overdue == ZERO_RING_EXITS ? "its exit" : "the end of its work");
}

/* Lists the ranks that do not wait, or wait for less than half the timeout. Returns the number. */
static size_t list_behind(struct zero_ring *ring)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	double half = ring->config.stall_timeout / 2;
	size_t count = 0;

	for (int rank = 0; rank < ring->config.world; rank++) {
		const struct zero_activity *activity = &inquiry->activity[rank];

		if (inquiry->replied[rank] &&
		    !(activity->running && (double)activity->seconds > half))
			inquiry->listed[count++] = rank;
	}
	return count;
}

static void add_stall(struct text *text, struct zero_ring *ring)
{
	const int *listed = ring->inquiry.listed;
	size_t behind = list_behind(ring);

	if (behind == 1)
		add_rank(text, ring, listed[0]);
	else if (behind)
		add_ranks(text, listed, behind);
	else
		add(text, "ranks");
	add(text, behind == 1 ? " keeps" : behind ? " keep" : " wait for each other");
	add(text,
	    behind ? " the others waiting for more than %g s (ZERO_STALL_SECONDS)"
		   : " for more than %g s (ZERO_STALL_SECONDS)",
	    ring->config.stall_timeout);
	add_missing(text, ring);
}

/* Sets ring->message to the first line. `lines` gets all lines, for printing. */
static void compose(struct zero_ring *ring, char *lines, size_t size)
{
	struct text first_line = {.data = ring->message, .size = sizeof(ring->message)};
	struct text text = {.data = lines, .size = size - 1};
	bool stalled = ring->inquiry.state == ZERO_PEER_STALLED;
	int first;

	if (stalled)
		add_stall(&first_line, ring);
	else if (ring->inquiry.state == ZERO_PEER_ENDING)
		add_overdue(&first_line, ring);
	else
		add_lost(&first_line, ring);
	add(&text, "zero: %s; ending the job\n", ring->message);
	if (stalled || (ring->inquiry.state != ZERO_PEER_ENDING && !all_same(ring, &first)))
		add_places(&text, ring);
	/* A text that is too long was cut. */
	if (text.at && lines[text.at - 1] != '\n')
		memcpy(lines + text.at, "\n", 2);
}

void zero_ring_print_message(struct zero_ring *ring)
{
	char lines[4096];

	pthread_mutex_lock(&ring->lock);
	compose(ring, lines, sizeof(lines));
	ring->lost_rank = ring->inquiry.rank;
	ring->stalled = ring->inquiry.state == ZERO_PEER_STALLED;
	ring->reported = true;
	pthread_mutex_unlock(&ring->lock);
	/* The job ends even if nobody reads the message. */
	if (ring->config.aborts && write(ring->config.out_fd, lines, strlen(lines)) < 0)
		return;
}
