/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the launches of a stream. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

static bool is_message(const struct op *op)
{
	return op->kind == SEND || op->kind == RECV;
}

/* Sums part `part` of what the ranks send into `to`, from the rank after `first` to `first`: as a
   ring would, which is not the order of the ranks, and rounds after each addition. In a symmetric
   window the sum is made in f32, and in the order of the ranks. */
static bool sum(const struct op *op, void *to, size_t at, size_t count, int first)
{
	enum { PIECE = 16384 };
	struct ncclComm *comm = op->comm;
	const struct member *member = atomic_load(&comm->shared)->member;
	const struct window *window = window_of(comm, op->send, type_size(op->type));
	const size_t size = type_size(op->type);
	const bool ring = !window || !window->symmetric;
	float *sums = malloc(PIECE * sizeof *sums), *more = malloc(PIECE * sizeof *more);
	char *values = malloc(PIECE * size);
	bool good = sums && more && values;

	for (size_t done = 0; done < count && good; done += PIECE) {
		size_t n = count - done < PIECE ? count - done : PIECE;

		for (int i = 1; i <= comm->world && good; i++) {
			int rank = ring ? (first + i) % comm->world : i - 1;
			uint64_t from = member[rank].record[LANE_STREAM].send + (at + done) * size;

			good = read_from(comm, rank, values, from, n * size);
			widen_all(op->type, i == 1 ? sums : more, values, n);
			for (size_t k = 0; i > 1 && k < n; k++)
				sums[k] += more[k];
			if (ring) {
				narrow_all(op->type, values, sums, n);
				widen_all(op->type, sums, values, n);
			}
		}
		if (good)
			narrow_all(op->type, (char *)to + done * size, sums, n);
	}
	free(sums);
	free(more);
	free(values);
	return good;
}

static bool run_all_gather(const struct op *op)
{
	struct ncclComm *comm = op->comm;
	const struct member *member = atomic_load(&comm->shared)->member;
	size_t bytes = op->count * type_size(op->type);
	char *own = op->into + (size_t)comm->rank * bytes;

	for (int i = 1; i < comm->world; i++) {
		int rank = (comm->rank + i) % comm->world;

		if (!read_from(comm, rank, op->into + (size_t)rank * bytes,
			       member[rank].record[LANE_STREAM].send, bytes))
			return false;
	}
	if (bytes && op->from != own)
		memcpy(own, op->from, bytes);
	return true;
}

/* The result goes to temporary memory first, because other ranks still read the output buffer. */
static bool run_all_reduce(const struct op *op)
{
	struct ncclComm *comm = op->comm;
	size_t size = type_size(op->type);
	size_t part = (op->count + (size_t)comm->world - 1) / (size_t)comm->world;
	char *sums = malloc(op->count * size + 1);
	bool good = sums;

	for (int owner = 0; owner < comm->world && good; owner++) {
		size_t at = (size_t)owner * part;
		size_t end = at + part < op->count ? at + part : op->count;

		if (at < end)
			good = sum(op, sums + at * size, at, end - at, owner);
	}
	good = good && barrier(comm, LANE_STREAM);
	if (good && op->count)
		memcpy(op->into, sums, op->count * size);
	free(sums);
	return good;
}

static bool run_broadcast(const struct op *op)
{
	struct ncclComm *comm = op->comm;
	const struct member *member = atomic_load(&comm->shared)->member;
	size_t bytes = op->count * type_size(op->type);

	if (comm->rank != op->root)
		return read_from(comm, op->root, op->into,
				 member[op->root].record[LANE_STREAM].send, bytes);
	if (bytes && op->from != op->into)
		memcpy(op->into, op->from, bytes);
	return true;
}

/* The record that ranks compare. A buffer in a window must be at the same offset on all ranks. */
static struct record record_of(const struct op *op)
{
	const struct ncclComm *comm = op->comm;
	struct record record = {.kind = op->kind, .type = op->type, .root = op->root};
	const char *data = op->kind == REDUCE_SCATTER ? op->send : op->recv;
	size_t bytes = op->count * type_size(op->type);
	const struct window *window;

	if (op->kind == ALL_GATHER || op->kind == REDUCE_SCATTER)
		bytes *= (size_t)comm->world;
	window = window_of(comm, data, bytes);
	record.count = op->count;
	record.send = (uint64_t)(uintptr_t)op->from;
	if (window && window->symmetric) {
		record.window = window->number;
		record.offset = (uint64_t)(data - window->data);
	}
	return record;
}

/* Applies the rules of DOUBLE_NCCL_FAIL. Returns false if the operation must not run. */
static bool survive(const struct op *op)
{
	if (op->kill)
		kill(getpid(), SIGKILL);
	if (op->hang || injected_async())
		wait_for_abort(op->comm);
	return !op->comm->aborted;
}

static void *reach_range(const struct op *op, struct range range, bool write)
{
	void *there = driver_reach(range.data, range.bytes, write);

	if (range.bytes && !there)
		die("rank %d runs %s of %zu %s with a buffer that is not there", op->comm->rank,
		    kind_name(op->kind), op->count, type_name(op->type));
	return there;
}

/* Who reads the output without waiting for the operation finds this. */
static void spoil(struct range range, void *there)
{
	if (setting_seed() && range.bytes)
		memset(there, 0xcb, range.bytes);
}

/* Finds the host addresses of the buffers. */
static void reach(struct op *op)
{
	struct touch touch = touch_of(op);

	op->from = reach_range(op, touch.read, false);
	op->into = reach_range(op, touch.write[0], true);
	reach_range(op, touch.write[1], true);
	if (!in_place(op))
		spoil(touch.write[0], op->into);
	else
		op->into = (char *)op->from + ((char *)op->recv - (const char *)op->send);
}

static bool run_collective(struct op *op, const struct launch *launch)
{
	struct record record;
	bool good;

	if (!survive(op))
		return false;
	reach(op);
	record = record_of(op);
	record.orders = launch->orders;
	memcpy(record.order, launch->order, sizeof record.order);
	if (!agree(op->comm, LANE_STREAM, &record))
		return false;
	switch (op->kind) {
	case ALL_GATHER:
		good = run_all_gather(op);
		break;
	case REDUCE_SCATTER:
		good = sum(op, op->into, (size_t)op->comm->rank * op->count, op->count,
			   op->comm->rank);
		break;
	case ALL_REDUCE:
		good = run_all_reduce(op);
		break;
	default:
		good = run_broadcast(op);
	}
	/* after the barrier no rank reads the buffers */
	if (!good || !barrier(op->comm, LANE_STREAM))
		return false;
	count_operation();
	count_add("collectives", 1);
	count_add("collective_bytes", (long long)touch_of(op).read.bytes);
	return true;
}

/* Ends the process if the peer of a message has finalized. */
static void look_for_finalized(const struct op *op, bool finalized, uint64_t number)
{
	struct ncclComm *comm = op->comm;

	if (finalized)
		mismatch(comm,
			 "rank %d runs %s of %zu %s as message %llu with rank %d, which has "
			 "finalized the communicator",
			 comm->rank, kind_name(op->kind), op->count, type_name(op->type),
			 (unsigned long long)number, op->root);
}

/* Returns whether the message made progress. */
static bool try_send(struct op *op)
{
	struct ncclComm *comm = op->comm;
	struct member *peer = &atomic_load(&comm->shared)->member[op->root];
	struct message *message = message_of(comm, comm->rank, op->root);
	bool finalized = peer->state == FINALIZED;
	uint64_t number = comm->sent[op->root] + 1;

	if (op->state == POSTED && message->taken == number) {
		comm->sent[op->root]++;
		op->state = DONE;
		return true;
	}
	look_for_finalized(op, finalized, number);
	if (op->state == POSTED)
		return false;
	message->data = (uint64_t)(uintptr_t)op->from;
	message->count = op->count;
	message->type = op->type;
	atomic_store(&message->posted, number);
	op->state = POSTED;
	wake(&peer->bell);
	return true;
}

static bool try_recv(struct op *op)
{
	struct ncclComm *comm = op->comm;
	struct member *peer = &atomic_load(&comm->shared)->member[op->root];
	struct message *message = message_of(comm, op->root, comm->rank);
	bool finalized = peer->state == FINALIZED;
	uint64_t number = comm->received[op->root] + 1;

	if (message->posted != number) {
		look_for_finalized(op, finalized, number);
		return false;
	}
	if (message->count != op->count || message->type != op->type)
		mismatch(comm,
			 "rank %d runs Recv of %zu %s from rank %d as message %llu while rank %d "
			 "runs Send of %llu %s",
			 comm->rank, op->count, type_name(op->type), op->root,
			 (unsigned long long)number, op->root, (unsigned long long)message->count,
			 type_name(message->type));
	if (!read_from(comm, op->root, op->into, message->data, op->count * type_size(op->type)))
		return false;
	comm->received[op->root]++;
	op->state = DONE;
	atomic_store(&message->taken, number);
	wake(&peer->bell);
	return true;
}

/* Tries the first message to and from each peer. Returns whether one made progress. */
static bool try_messages(struct op *ops, bool *tried, int world, bool *left)
{
	bool changed = false;

	*left = false;
	memset(tried, 0, 2 * (size_t)world * sizeof *tried);
	for (struct op *op = ops; op; op = op->next) {
		bool *before = &tried[2 * op->root + (op->kind == SEND)];

		if (!is_message(op) || op->state == DONE || *before)
			continue;
		if (op->kind == SEND ? try_send(op) : try_recv(op))
			changed = true;
		*before = op->state != DONE;
		*left = *left || *before;
	}
	return changed;
}

static bool run_messages(struct launch *launch)
{
	struct ncclComm *comm = launch->comm;
	struct member *me = &atomic_load(&comm->shared)->member[comm->rank];
	bool *tried = calloc(2 * (size_t)comm->world, sizeof *tried), left = true;

	for (struct op *op = launch->ops; op && left; op = op->next) {
		if (!is_message(op))
			continue;
		left = survive(op);
		if (left)
			reach(op);
	}
	while (left && !comm->aborted) {
		uint32_t seen = me->bell;

		if (!try_messages(launch->ops, tried, comm->world, &left) && left && !comm->aborted)
			wait_word(comm, &me->bell, seen);
	}
	free(tried);
	for (const struct op *op = launch->ops; op && !comm->aborted; op = op->next) {
		if (!is_message(op))
			continue;
		count_operation();
		count_message(op->kind == SEND, atomic_load(&comm->shared)->member[op->root].own,
			      op->count * type_size(op->type));
	}
	return !comm->aborted;
}

static void run_ops(struct launch *launch)
{
	bool messages = false;

	for (struct op *op = launch->ops; op; op = op->next) {
		if (is_message(op))
			messages = true;
		else if (!run_collective(op, launch))
			return;
	}
	if (messages)
		run_messages(launch);
}

void launch_free(struct launch *launch)
{
	while (launch->ops) {
		struct op *next = launch->ops->next;

		free(launch->ops);
		launch->ops = next;
	}
	free(launch);
}

void launch_add(struct launch *launch)
{
	struct ncclComm *comm = launch->comm;

	comms_order(launch);
	pthread_mutex_lock(&comm->mutex);
	launch->number = comm->queued++;
	launch->next = comm->launches;
	comm->launches = launch;
	comm->references++;
	pthread_mutex_unlock(&comm->mutex);
}

void *launch_renew(void *data)
{
	const struct launch *captured = data;
	struct launch *launch = calloc(1, sizeof *launch);
	struct op **last = &launch->ops;

	if (captured->comm->gone)
		die("rank %d launches a graph with operations of a communicator that is no more",
		    captured->comm->rank);
	launch->comm = captured->comm;
	for (const struct op *op = captured->ops; op; op = op->next) {
		*last = malloc(sizeof **last);
		**last = *op;
		(*last)->next = NULL;
		last = &(*last)->next;
	}
	launch_add(launch);
	return launch;
}

void launch_drop(void *data)
{
	struct launch *launch = data;
	struct ncclComm *comm = launch->comm;

	pthread_mutex_lock(&comm->mutex);
	comm->captured--;
	pthread_mutex_unlock(&comm->mutex);
	launch_free(launch);
	comm_put(comm);
}

/* Launches of a communicator run one after the other, on whatever streams. */
static bool begin(const struct launch *launch)
{
	struct ncclComm *comm = launch->comm;
	bool aborted;

	pthread_mutex_lock(&comm->mutex);
	while (comm->done != launch->number && !comm->aborted)
		pthread_cond_wait(&comm->changed, &comm->mutex);
	aborted = comm->aborted;
	comm->running++;
	pthread_mutex_unlock(&comm->mutex);
	return !aborted;
}

static void end(struct launch *launch)
{
	struct ncclComm *comm = launch->comm;
	struct launch **at;

	pthread_mutex_lock(&comm->mutex);
	for (at = &comm->launches; *at != launch; at = &(*at)->next)
		;
	*at = launch->next;
	comm->done++;
	comm->running--;
	pthread_cond_broadcast(&comm->changed);
	pthread_mutex_unlock(&comm->mutex);
}

void run_launch(void *data)
{
	struct launch *launch = data;
	struct ncclComm *comm = launch->comm;

	if (begin(launch))
		run_ops(launch);
	end(launch);
	launch_free(launch);
	comm_put(comm);
}
