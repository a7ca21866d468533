/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks wait for each other and compare their operations. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "nccl.h"

void wait_for_abort(struct ncclComm *comm)
{
	struct segment *shared = comm->shared;

	while (!comm->aborted) {
		uint32_t seen = shared->lane[LANE_STREAM].word;

		if (!comm->aborted)
			wait_word(comm, &shared->lane[LANE_STREAM].word, seen);
	}
}

void mismatch(struct ncclComm *comm, const char *format, ...)
{
	struct segment *shared = comm->shared;
	char text[900];
	va_list arguments;

	if (!atomic_exchange(&shared->failed, true)) {
		va_start(arguments, format);
		vsnprintf(text, sizeof text, format, arguments);
		va_end(arguments);
		die("%s", text);
	}
	wait_for_abort(comm);
}

static void describe(const struct record *record, enum lane lane, char *text, size_t size)
{
	int at = snprintf(text, size, "%s", kind_name(record->kind));

	if (record->kind == WINDOW_REGISTER)
		at += snprintf(text + at, size - (size_t)at, " of %" PRIu64 " bytes",
			       record->count);
	else if (lane == LANE_STREAM)
		at += snprintf(text + at, size - (size_t)at, " of %" PRIu64 " %s", record->count,
			       type_name(record->type));
	if (record->root >= 0)
		at += snprintf(text + at, size - (size_t)at, " from rank %d", record->root);
	if (record->window)
		at += snprintf(text + at, size - (size_t)at, " at byte %" PRIu64 " of window %u",
			       record->offset, record->window);
	snprintf(text + at, size - (size_t)at, " as %s %" PRIu64,
		 lane == LANE_STREAM ? "operation" : "call", (uint64_t)record->number);
}

static bool is_same(const struct record *a, const struct record *b)
{
	return a->kind == b->kind && a->type == b->type && a->root == b->root &&
	       a->count == b->count && a->window == b->window && a->offset == b->offset;
}

/* NCCL's kernels can wait for each other in a circle if ranks launch them in different orders. */
static void compare_order(struct ncclComm *comm, const struct record *mine,
			  const struct record *other, int rank)
{
	char text[200];

	for (unsigned i = 0; i < mine->orders; i++)
		for (unsigned j = 0; j < other->orders; j++) {
			if (mine->order[i].id != other->order[j].id ||
			    mine->order[i].count == other->order[j].count)
				continue;
			describe(mine, LANE_STREAM, text, sizeof text);
			mismatch(comm,
				 "rank %d launched %s after %" PRIu64
				 " collectives of another communicator, and rank %d after "
				 "%" PRIu64 " of it",
				 comm->rank, text, mine->order[i].count, rank,
				 other->order[j].count);
		}
}

/* Compares with the ranks that have arrived already. */
static void compare(struct ncclComm *comm, enum lane lane)
{
	struct segment *shared = comm->shared;
	const struct record *mine = &shared->member[comm->rank].record[lane];
	char a[200], b[200];

	for (int rank = 0; rank < comm->world; rank++) {
		const struct record *other = &shared->member[rank].record[lane];

		if (other->number != mine->number)
			continue;
		if (is_same(mine, other)) {
			if (!shared->member[comm->rank].aborts && !shared->member[rank].aborts)
				compare_order(comm, mine, other, rank);
			continue;
		}
		/* Or the rank is about to write its next record. */
		if (other->number != mine->number)
			continue;
		describe(mine, lane, a, sizeof a);
		describe(other, lane, b, sizeof b);
		mismatch(comm, "rank %d runs %s while rank %d runs %s", comm->rank, a, rank, b);
	}
}

/* A rank that has finalized will never come. */
static void look_for_finalized(struct ncclComm *comm, enum lane lane)
{
	struct segment *shared = comm->shared;
	const struct record *mine = &shared->member[comm->rank].record[lane];
	char text[200];

	for (int rank = 0; rank < comm->world; rank++) {
		const struct member *other = &shared->member[rank];
		bool finalized = other->state == FINALIZED;

		if (!finalized || other->record[lane].number >= mine->number)
			continue;
		describe(mine, lane, text, sizeof text);
		mismatch(comm, "rank %d runs %s while rank %d has finalized the communicator",
			 comm->rank, text, rank);
	}
}

bool barrier(struct ncclComm *comm, enum lane lane)
{
	struct segment *shared = comm->shared;
	uint64_t all = comm->steps[lane] += (uint64_t)comm->world;

	if (comm->aborted)
		return false;
	if (atomic_fetch_add(&shared->lane[lane].steps, 1) + 1 == all)
		wake(&shared->lane[lane].word);
	while (shared->lane[lane].steps < all) {
		uint32_t seen = shared->lane[lane].word;

		if (comm->aborted)
			return false;
		look_for_finalized(comm, lane);
		if (shared->lane[lane].steps < all)
			wait_word(comm, &shared->lane[lane].word, seen);
	}
	return !comm->aborted;
}

bool agree(struct ncclComm *comm, enum lane lane, const struct record *mine)
{
	struct segment *shared = comm->shared;
	struct record *record = &shared->member[comm->rank].record[lane];

	atomic_store(&record->number, 0);
	record->kind = mine->kind;
	record->type = mine->type;
	record->root = mine->root;
	record->window = mine->window;
	record->offset = mine->offset;
	record->count = mine->count;
	record->send = mine->send;
	record->orders = mine->orders;
	memcpy(record->order, mine->order, mine->orders * sizeof *mine->order);
	atomic_store(&record->number, ++comm->number[lane]);
	compare(comm, lane);
	if (!barrier(comm, lane))
		return false;
	compare(comm, lane);
	return !comm->aborted;
}

bool read_from(struct ncclComm *comm, int rank, void *to, uint64_t from, size_t bytes)
{
	const struct member *other = &atomic_load(&comm->shared)->member[rank];
	const size_t piece = 64 << 20;

	for (size_t at = 0; at < bytes && !comm->aborted;) {
		size_t length = bytes - at < piece ? bytes - at : piece;
		struct iovec mine = {(char *)to + at, length};
		struct iovec theirs = {(void *)(uintptr_t)(from + at), length};
		ssize_t done = process_vm_readv(other->pid, &mine, 1, &theirs, 1, 0);

		if (done > 0) {
			at += (size_t)done;
			continue;
		}
		/* the rank was killed or aborted, which no rank learns of */
		if (errno == ESRCH || other->state == ABORTED)
			wait_for_abort(comm);
		else if (!comm->aborted)
			mismatch(comm, "rank %d cannot read %zu bytes of rank %d: %s", comm->rank,
				 bytes, rank, strerror(errno));
	}
	return !comm->aborted;
}
