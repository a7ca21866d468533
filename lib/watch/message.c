/* SPDX-License-Identifier: Apache-2.0 */
/* The line that says which rank was lost, how, and what everybody was doing. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "watch_private.h"

enum { GROUPS = 8 };

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

static void add_signal(struct text *text, const char *how, int number)
{
	add(text, "%s signal %d (%s)", how, number,
	    number > 0 && number < NSIG ? strsignal(number) : "?");
}

/* Ranks of the job of which `of` is true. */
static void add_ranks(struct text *text, const bool *of, int world)
{
	const char *between = " ";
	size_t end = text->at + 160;
	int count = 0;

	for (int rank = 0; rank < world; rank++)
		count += of[rank];
	add(text, count == 1 ? "rank" : "ranks");
	for (int rank = 0; rank < world; rank++) {
		int last = rank;

		if (!of[rank])
			continue;
		if (text->at > end) {
			add(text, " and others");
			return;
		}
		while (last + 1 < world && of[last + 1])
			last++;
		add(text, last > rank ? "%s%d-%d" : "%s%d", between, rank, last);
		between = ",";
		rank = last;
	}
}

static void add_doing(struct text *text, const struct zero_doing *doing, bool with_time)
{
	if (*doing->call)
		add(text, "in %.40s%s", doing->call, doing->number ? ", " : "");
	if (doing->number)
		add(text, "%s %.112s (operation %llu)", doing->under_way ? "in" : "after",
		    doing->label, (unsigned long long)doing->number);
	if (!*doing->call && !doing->number)
		add(text, "in no operation yet");
	else if (with_time && doing->number)
		add(text, doing->under_way ? " for %.1f s" : ", done %.1f s ago",
		    (double)doing->seconds);
}

static bool same_doing(const struct zero_doing *a, const struct zero_doing *b)
{
	return a->number == b->number && a->under_way == b->under_way &&
	       !strncmp(a->label, b->label, sizeof(a->label)) &&
	       !strncmp(a->call, b->call, sizeof(a->call));
}

/* ---- how it was lost ------------------------------------------------------------------------- */

static void add_kill(struct text *text, struct zero_oom *oom)
{
	add(text, zero_oom_grew(oom) ? "was killed for want of memory (SIGKILL)"
				     : "was killed by SIGKILL");
}

/* A process of this node tells its end as long as nobody has asked for it. */
static void add_gone(struct text *text, const struct zero_ring *ring,
		     const struct zero_ring_rank *peer, struct zero_oom *oom)
{
	struct zero_process found = {.exit_code = 0};
	bool near = zero_ring_is_near(ring, peer) &&
		    zero_process_look((pid_t)peer->process, peer->began, &found);
	int number = found.exit_code & 0x7f;
	bool ended = found.state == 'Z' || found.state == 'X';

	if (near && number == SIGKILL)
		add_kill(text, oom);
	else if (near && number)
		add_signal(text, "died of", number);
	else if (near && (ended || found.exit_code))
		add(text, "called _exit(%d)", found.exit_code >> 8 & 0xff);
	else if (zero_oom_grew(oom))
		add_kill(text, oom);
	else if (peer->signals & UINT32_C(1) << SIGSEGV)
		add(text, "was killed by SIGKILL, out of memory maybe, or called _exit");
	else
		add(text, "is gone without a word: it crashed, was killed, or called _exit");
}

static void add_silent(struct text *text, const struct zero_ring *ring,
		       const struct zero_ring_rank *peer)
{
	struct zero_process found;

	if (!zero_ring_is_near(ring, peer)) {
		add(text,
		    "has given no sign for %g s: it is stopped, or its node is down or cut off",
		    ring->config.seconds);
		return;
	}
	if (!zero_process_look((pid_t)peer->process, peer->began, &found))
		add(text, "is gone without a word");
	else if (found.state == 'T')
		add(text, "is stopped (SIGSTOP) and has given no sign for %g s",
		    ring->config.seconds);
	else if (found.state == 't')
		add(text, "is held by a debugger and has given no sign for %g s",
		    ring->config.seconds);
	else
		add(text, "has given no sign for %g s (its process is in state %c)",
		    ring->config.stall, found.state);
}

static void add_fate(struct text *text, const struct zero_ring *ring)
{
	const struct zero_inquiry *inquiry = &ring->inquiry;
	const struct zero_ring_rank *peer = &ring->all[inquiry->rank];
	bool prev = ring->link[ZERO_PREV].rank == inquiry->rank;
	struct zero_oom *oom = ring->oom[prev ? ZERO_PREV : ZERO_NEXT];

	switch (inquiry->fate) {
	case ZERO_FATE_EXITED:
		add(text, "called exit(%d) without zero_close", inquiry->value);
		break;
	case ZERO_FATE_DIED:
		add_signal(text, "died of", inquiry->value);
		break;
	case ZERO_FATE_GONE:
		add_gone(text, ring, peer, oom);
		break;
	default:
		add_silent(text, ring, peer);
	}
}

/* ---- who is where ---------------------------------------------------------------------------- */

/* Whether all others who answered are at the same place; *first is one of them, -1 if there are
   none. */
static bool all_alike(const struct zero_ring *ring, int *first)
{
	const struct zero_inquiry *inquiry = &ring->inquiry;

	*first = -1;
	for (int rank = 0; rank < ring->config.world; rank++) {
		if (!inquiry->there[rank])
			continue;
		if (*first < 0)
			*first = rank;
		else if (!same_doing(&inquiry->doing[*first], &inquiry->doing[rank]))
			return false;
	}
	return true;
}

/* One line for each place; those that are in `there` are taken out of it. */
static void add_groups(struct text *text, struct zero_ring *ring, bool *of)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	int world = ring->config.world, lines = 0;

	for (int rank = 0; rank < world; rank++) {
		struct zero_doing longest = inquiry->doing[rank];

		if (!inquiry->there[rank])
			continue;
		if (++lines > GROUPS) {
			add(text, "zero:   others are elsewhere\n");
			return;
		}
		for (int other = 0; other < world; other++) {
			const struct zero_doing *doing = &inquiry->doing[other];

			of[other] = inquiry->there[other] && same_doing(doing, &longest);
			if (of[other] && doing->seconds > longest.seconds)
				longest.seconds = doing->seconds;
		}
		add(text, "zero:   ");
		add_ranks(text, of, world);
		add(text, ": ");
		add_doing(text, &longest, true);
		add(text, "\n");
		for (int other = 0; other < world; other++)
			if (of[other])
				inquiry->there[other] = false;
	}
}

static void add_who(struct text *text, const struct zero_ring *ring, int rank)
{
	const struct zero_ring_rank *peer = &ring->all[rank];

	add(text, "rank %d on node %.64s (pid %lld)", rank, peer->name, (long long)peer->process);
}

/* ---- the two kinds of line ------------------------------------------------------------------- */

static void add_missing(struct text *text, const struct zero_ring *ring, bool *of)
{
	int world = ring->config.world, missing = 0;

	for (int rank = 0; rank < world; rank++) {
		of[rank] = !ring->inquiry.there[rank] &&
			   (ring->inquiry.fate == ZERO_FATE_STALLED || rank != ring->inquiry.rank);
		missing += of[rank];
	}
	if (!missing)
		return;
	add(text, "; no answer from ");
	add_ranks(text, of, world);
}

static void add_lost(struct text *text, const struct zero_ring *ring, bool *of)
{
	const struct zero_inquiry *inquiry = &ring->inquiry;
	bool prev = ring->link[ZERO_PREV].rank == inquiry->rank;
	const struct zero_ring_link *link = &ring->link[prev ? ZERO_PREV : ZERO_NEXT];
	const struct zero_doing *doing = &link->doing;
	int first;

	add_who(text, ring, inquiry->rank);
	add(text, " ");
	add_fate(text, ring);
	if (doing->number || *doing->call) {
		add(text, ", last seen (%.1f s before) ", link->since - link->doing_at);
		add_doing(text, doing, false);
	}
	if (all_alike(ring, &first) && inquiry->doing[first].number) {
		add(text, inquiry->count > 1 ? "; the others are " : "; rank %d is ", first);
		add_doing(text, &inquiry->doing[first], false);
	}
	add_missing(text, ring, of);
}

/* Those who do not wait, or not for so long. */
static int find_behind(const struct zero_ring *ring, bool *of)
{
	int count = 0;

	for (int rank = 0; rank < ring->config.world; rank++) {
		const struct zero_doing *doing = &ring->inquiry.doing[rank];

		of[rank] = ring->inquiry.there[rank] &&
			   !(doing->under_way && (double)doing->seconds > ring->config.stall / 2);
		count += of[rank];
	}
	return count;
}

static void add_stall(struct text *text, const struct zero_ring *ring, bool *of)
{
	int behind = find_behind(ring, of), rank = 0;

	while (behind && !of[rank])
		rank++;
	if (behind == 1)
		add_who(text, ring, rank);
	else if (behind)
		add_ranks(text, of, ring->config.world);
	else
		add(text, "ranks");
	add(text, behind == 1 ? " keeps" : behind ? " keep" : " wait for each other");
	add(text,
	    behind ? " the others waiting for more than %g s (ZERO_STALL_SECONDS)"
		   : " for more than %g s (ZERO_STALL_SECONDS)",
	    ring->config.stall);
	add_missing(text, ring, of);
}

void zero_ring_line(struct zero_ring *ring, char *data, size_t size)
{
	struct text sentence = {.data = ring->text, .size = sizeof(ring->text)};
	struct text text = {.data = data, .size = size - 1};
	bool stalled = ring->inquiry.fate == ZERO_FATE_STALLED;
	bool *of = ring->inquiry.listed;
	int first;

	if (stalled)
		add_stall(&sentence, ring, of);
	else
		add_lost(&sentence, ring, of);
	add(&text, "zero: %s; ending the job\n", ring->text);
	if (stalled || !all_alike(ring, &first))
		add_groups(&text, ring, of);
	/* What is too long is cut. */
	if (text.at && data[text.at - 1] != '\n')
		memcpy(data + text.at, "\n", 2);
}
