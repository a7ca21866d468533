/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slow ranks are named while the job runs. After each WINDOW of steps the ranks tell each other how
 * long they have computed by themselves, and rank 0 finds out whether the others wait for some. It
 * prints a line when that begins and when it ends. An end needs a share of half the limit, so that
 * a rank near the limit is not named again and again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/text.h"
#include "report/job_report.h"
#include "report/slow.h"
#include "train/train.h"

enum { WINDOW = 100, EPISODES = 16 };

struct peer {
	uint64_t local_rank;
	char node[64];
	char device[112]; /* "": none */
};

struct zero_slow {
	double limit;            /* share of the time */
	double opened;           /* see zero_seconds, as all times */
	uint64_t steps;          /* so far */
	double began;            /* of the window */
	struct zero_spent spent; /* of this rank by then */
	double seconds;          /* of the window, for this rank */
	double *own;             /* [world]: seconds in the window, and [world] this rank's */
	struct peer *peers; /* [world], once ranks have exchanged times, and [world] this one */
	struct zero_nodes nodes;
	struct zero_slow_rank *ranks;            /* [world]: scratch */
	bool *named;                             /* [world]: the slow ranks, by rank */
	bool failed;                             /* ranks exchange no more */
	struct zero_report_slow found[EPISODES]; /* when it is full, the last one is replaced */
	size_t count;
};

/* ---- lines ----------------------------------------------------------------------------------- */

static bool lasts(const struct zero_slow *slow)
{
	return slow->count && !slow->found[slow->count - 1].end_step;
}

static void print(const char *line)
{
	/* Who closed stderr reads no lines. */
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		return;
}

/* Whether a rank is on the node of another one before it. */
static bool is_repeated(const struct zero_slow *slow, const int *ranks, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (slow->nodes.of[ranks[i]] == slow->nodes.of[ranks[at]])
			return true;
	return false;
}

/* "rank 3 on node n1 (GPU 0, NVIDIA H100)", "ranks 2 to 3, 7 on nodes n1, n2". */
static void name_ranks(const struct zero_slow *slow, const int *ranks, size_t count, char *text,
		       size_t size)
{
	size_t length, nodes = 0;

	zero_name_ranks(text, size / 2, ranks, count);
	length = strlen(text);
	for (size_t i = 0; i < count && nodes < 2; i++)
		nodes += !is_repeated(slow, ranks, i);
	length = zero_append(text, size, length, nodes == 1 ? " on node" : " on nodes");
	for (size_t i = 0; i < count; i++) {
		if (is_repeated(slow, ranks, i))
			continue;
		if (length + sizeof(slow->peers->node) + sizeof(", and others") > size) {
			zero_append(text, size, length, " and others");
			return;
		}
		length = zero_append(text, size, length, "%s %.63s", i ? "," : "",
				     slow->peers[ranks[i]].node);
	}
	if (count == 1 && *slow->peers[*ranks].device)
		zero_append(text, size, length, " (%.111s)", slow->peers[*ranks].device);
}

static void print_begin(const struct zero_report_slow *one, double seconds)
{
	time_t at = (time_t)one->time;
	char line[512], when[32] = "";
	struct tm parts;

	if (localtime_r(&at, &parts))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &parts);
	snprintf(line, sizeof(line),
		 "zero: %s %s slow: the others wait for %s during %.0f %% of the time, %.3g s of "
		 "%.3g s since step %llu (%s)\n",
		 one->who, one->rank_count == 1 ? "is" : "are",
		 one->rank_count == 1 ? "it" : "them", 100 * one->waited / seconds, one->waited,
		 seconds, (unsigned long long)one->first_step, when);
	print(line);
}

static void print_end(const struct zero_report_slow *one)
{
	char line[512];

	snprintf(line, sizeof(line),
		 "zero: %s %s no longer slow since step %llu: from step %llu on the others waited "
		 "%.3g s for %s\n",
		 one->who, one->rank_count == 1 ? "is" : "are", (unsigned long long)one->end_step,
		 (unsigned long long)one->first_step, one->waited,
		 one->rank_count == 1 ? "it" : "them");
	print(line);
}

/* ---- what rank 0 finds ----------------------------------------------------------------------- */

static uint64_t step_of(const zero_job *job)
{
	return job->trainer->steps + job->trainer->own_steps;
}

/* The first `count` of slow->ranks are slow, as was not known before the window. */
static void begin(const zero_job *job, size_t count, double excess)
{
	struct zero_slow *slow = job->slow;
	struct zero_report_slow *one;
	int *all = calloc(count, sizeof(*all));
	size_t listed = 0;

	/* Without memory it is found again after the next window. */
	if (!all)
		return;
	if (slow->count < EPISODES)
		slow->count++;
	one = &slow->found[slow->count - 1];
	*one = (struct zero_report_slow){
		.rank_count = count,
		.first_step = step_of(job) + 1 - WINDOW,
		.time = (int64_t)time(NULL) - (int64_t)(zero_seconds() - slow->began),
		.at = slow->began - slow->opened,
		.waited = excess,
	};
	for (size_t i = 0; i < count; i++)
		slow->named[slow->ranks[i].rank] = true;
	for (int rank = 0; rank < job->place.world; rank++)
		if (slow->named[rank])
			all[listed++] = rank;
	memcpy(one->ranks, all,
	       (count < ZERO_REPORT_SLOW ? count : ZERO_REPORT_SLOW) * sizeof(*all));
	name_ranks(slow, all, count, one->who, sizeof(one->who));
	free(all);
	print_begin(one, slow->seconds);
}

static void end(const zero_job *job)
{
	struct zero_slow *slow = job->slow;
	struct zero_report_slow *one = &slow->found[slow->count - 1];

	one->end_step = step_of(job) + 1 - WINDOW;
	one->end = slow->began - slow->opened;
	memset(slow->named, 0, (size_t)job->place.world * sizeof(*slow->named));
	print_end(one);
}

static void judge(const zero_job *job)
{
	struct zero_slow *slow = job->slow;
	size_t world = (size_t)job->place.world, count;
	double limit = slow->limit * slow->seconds, excess;

	if (lasts(slow)) {
		excess = zero_slow_excess(slow->own, slow->named, world);
		if (excess > limit / 2) {
			slow->found[slow->count - 1].waited += excess;
			return;
		}
		end(job);
	}
	for (size_t rank = 0; rank < world; rank++)
		slow->ranks[rank] = (struct zero_slow_rank){
			.own = slow->own[rank], .rank = (int)rank, .node = slow->nodes.of[rank]};
	count = zero_slow_find(slow->ranks, world, slow->nodes.ranks, &excess);
	if (excess > limit)
		begin(job, count, excess);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* On rank 0, once. Without memory it finds no slow ranks, but still exchanges times with the
   others. */
static void number_nodes(struct zero_slow *slow, size_t world)
{
	struct zero_rank_node *all = calloc(world, sizeof(*all));

	if (!all)
		return;
	for (size_t rank = 0; rank < world; rank++)
		all[rank] = (struct zero_rank_node){
			.name = zero_hash(slow->peers[rank].node, strlen(slow->peers[rank].node),
					  0),
			.local_rank = slow->peers[rank].local_rank};
	if (zero_nodes_number(all, world, &slow->nodes))
		zero_nodes_free(&slow->nodes);
	free(all);
}

/* COLLECTIVE. Gathers the times of all ranks, and what they are with the first of them. */
static zero_status exchange(zero_job *job)
{
	struct zero_slow *slow = job->slow;
	size_t world = (size_t)job->place.world;
	bool first = slow->steps == WINDOW + 1;
	struct zero_op ops[] = {{.kind = ZERO_OP_ALLGATHER_BYTES,
				 .send = slow->own + world,
				 .recv = slow->own,
				 .count = sizeof(*slow->own)},
				{.kind = ZERO_OP_ALLGATHER_BYTES,
				 .send = slow->peers + world,
				 .recv = slow->peers,
				 .count = sizeof(*slow->peers)}};
	zero_status status = zero_submit_wait(&job->all, ZERO_OK, ops, first ? 2 : 1,
					      ZERO_WORK_OTHER, "the ranks' own time");

	if (!status && first && !job->place.rank)
		number_nodes(slow, world);
	return status;
}

/* Steps of a graph that is captured here take no time yet, and none of theirs is known later. */
static bool is_captured(const zero_job *job)
{
	return job->ops->capturing && job->ops->capturing(job->backend);
}

/* The first step does not count: the program may have read files before it. */
static void after_step(zero_job *job)
{
	struct zero_slow *slow = job->slow;
	struct zero_saved_error before;
	struct zero_spent spent;

	if (!slow || slow->failed || is_captured(job) || slow->steps++ % WINDOW)
		return;
	spent = zero_queue_spent(job->queue);
	if (slow->steps > 1) {
		slow->own[job->place.world] = spent.own - slow->spent.own;
		slow->seconds = spent.own - slow->spent.own + spent.waited - slow->spent.waited;
		/* An error that matters comes again with the next submission. */
		zero_error_save(&before);
		slow->failed = exchange(job) != ZERO_OK;
		zero_error_restore(&before);
		if (!slow->failed && slow->nodes.of)
			judge(job);
	}
	slow->began = zero_seconds();
	slow->spent = spent;
}

/* ---- open and close -------------------------------------------------------------------------- */

zero_status zero_slow_open(zero_job *job)
{
	uint64_t percent = job->settings.value[ZERO_OPT_SLOW].number;
	size_t world = (size_t)job->place.world;
	struct zero_slow *slow;

	if (percent == ZERO_SLOW_NO || world == 1 || job->ops->watch_only)
		return ZERO_OK;
	job->slow = slow = calloc(1, sizeof(*slow));
	if (slow) {
		slow->own = calloc(world + 1, sizeof(*slow->own));
		slow->peers = calloc(world + 1, sizeof(*slow->peers));
		slow->ranks = calloc(world, sizeof(*slow->ranks));
		slow->named = calloc(world, sizeof(*slow->named));
	}
	if (!slow || !slow->own || !slow->peers || !slow->ranks || !slow->named)
		return zero_fail(ZERO_E_MEMORY, "no memory for the times of %zu ranks", world);
	slow->limit = (double)percent / 100;
	slow->opened = zero_seconds();
	slow->peers[world].local_rank = (uint64_t)job->place.local_rank;
	memcpy(slow->peers[world].node, job->place.node, sizeof(job->place.node));
	if (job->ops->device_text)
		job->ops->device_text(job->backend, slow->peers[world].device,
				      sizeof(slow->peers->device));
	job->comm->metered = true;
	return ZERO_OK;
}

const struct zero_report_slow *zero_slow_found(const zero_job *job, size_t *count)
{
	*count = job->slow ? job->slow->count : 0;
	return job->slow ? job->slow->found : NULL;
}

static void closed(zero_job *job)
{
	struct zero_slow *slow = job->slow;

	if (!slow)
		return;
	zero_nodes_free(&slow->nodes);
	free(slow->own);
	free(slow->peers);
	free(slow->ranks);
	free(slow->named);
	free(slow);
	job->slow = NULL;
}

const struct zero_hooks zero_slow_hooks = {
	.after_step = after_step,
	.closed = closed,
};
