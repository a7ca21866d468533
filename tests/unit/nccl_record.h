/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a collective of the CUDA backend, any number of them in one process. The collective is
 * called for each rank in turn and what it enqueues is recorded: sends and receives of a group, and
 * what follows them. Afterwards all ranks' groups are run together, and every send must have its
 * receive, in the same group.
 */
#ifndef NCCL_RECORD_H
#define NCCL_RECORD_H

#include <string.h>

#include "backend/cuda/gpu_comm.h"
#include "tests/ranks/reference.h"
#include "unit.h"

enum recorded_kind { SEND, RECV, SUM, COPY };

struct recorded {
	enum recorded_kind kind;
	const void *from;
	void *to;
	size_t bytes;
	int peer;
	struct zero_device_sum sum;
	struct recorded *match; /* of a send: the next one of the same rank */
};

/* What one rank enqueues. */
struct record {
	struct recorded *ops;
	size_t count, room;
	size_t groups[4096]; /* index of the first operation of each */
	size_t group_count;
};

static struct record *recording;
static bool keep_sent; /* what is sent is known when it is enqueued, and its buffer is used again */

static struct recorded *add_record(enum recorded_kind kind)
{
	if (recording->count == recording->room) {
		recording->room = recording->room ? 2 * recording->room : 64;
		recording->ops = realloc(recording->ops, recording->room * sizeof(*recording->ops));
		ck_assert_ptr_nonnull(recording->ops);
	}
	recording->ops[recording->count] = (struct recorded){.kind = kind};
	return &recording->ops[recording->count++];
}

static void free_record(struct record *record)
{
	for (size_t i = 0; keep_sent && i < record->count; i++)
		if (record->ops[i].kind == SEND)
			free((void *)record->ops[i].from);
	free(record->ops);
	*record = (struct record){0};
}

/* ---- in place of NCCL, events and memory ----------------------------------------------------- */

static ncclResult_t record_send(const void *data, size_t count, ncclDataType_t type, int peer,
				ncclComm_t comm, cudaStream_t stream)
{
	struct recorded *op = add_record(SEND);
	void *copy;

	(void)type, (void)comm, (void)stream;
	op->from = data;
	op->bytes = count;
	op->peer = peer;
	if (keep_sent) {
		copy = malloc(count);
		memcpy(copy, data, count);
		op->from = copy;
	}
	return ncclSuccess;
}

static ncclResult_t record_recv(void *data, size_t count, ncclDataType_t type, int peer,
				ncclComm_t comm, cudaStream_t stream)
{
	struct recorded *op = add_record(RECV);

	(void)type, (void)comm, (void)stream;
	op->to = data;
	op->bytes = count;
	op->peer = peer;
	return ncclSuccess;
}

struct zero_nccl_api zero_nccl = {.send = record_send, .recv = record_recv};

zero_status zero_nccl_status(ncclResult_t result, const char *call, ncclComm_t comm)
{
	(void)call, (void)comm;
	return result ? ZERO_E_COMM : ZERO_OK;
}

zero_status zero_nccl_group_begin(struct zero_nccl_comm *nccl)
{
	(void)nccl;
	ck_assert_uint_lt(recording->group_count, COUNT_OF(recording->groups));
	recording->groups[recording->group_count++] = recording->count;
	return ZERO_OK;
}

zero_status zero_nccl_group_end(struct zero_nccl_comm *nccl, zero_status status)
{
	(void)nccl;
	return status;
}

void zero_device_copy(struct zero_device *device, CUstream stream, void *to, const void *from,
		      size_t bytes)
{
	struct recorded *op = add_record(COPY);

	(void)device, (void)stream;
	op->from = from;
	op->to = to;
	op->bytes = bytes;
}

CUevent zero_event_record(struct zero_device *device, CUstream stream)
{
	(void)device, (void)stream;
	return NULL;
}

void zero_event_put(struct zero_device *device, CUevent event)
{
	(void)device, (void)event;
}

zero_status zero_memory_alloc(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes, bool zeroed, CUstream stream, void **data)
{
	(void)memory, (void)kind, (void)zeroed, (void)stream;
	*data = malloc(bytes);
	return *data ? ZERO_OK : ZERO_E_MEMORY;
}

void zero_memory_free(struct zero_memory_pool *memory, void *data, CUstream stream)
{
	(void)memory, (void)stream;
	free(data);
}

static zero_status record_fail(zero_status status, const char *format, ...)
{
	ck_abort_msg("%s", format);
	return status;
}

static size_t record_dtype_size(zero_dtype dtype)
{
	return dtype == ZERO_F32 ? 4 : 2;
}

static const struct zero_core record_core = {.fail = record_fail, .dtype_size = record_dtype_size};
const struct zero_core *zero_core = &record_core;

/* ---- running what was recorded --------------------------------------------------------------- */

static void run_sum(const struct zero_device_sum *sum)
{
	size_t size = record_dtype_size(sum->from);

	for (size_t i = 0; i < sum->count; i++) {
		float total = sum->first ? sum->first[i] : 0;
		const char *row = sum->others;

		for (int k = 0; k < sum->n; k++) {
			const char *in = k == sum->own_at ? sum->own : row;
			float value = ref_widen(sum->from, in + i * size);

			total = k || sum->first ? total + value : value;
			row += k == sum->own_at ? 0 : sum->count * size;
		}
		sum->out[i] = sum->accumulate ? sum->out[i] + total : total;
	}
}

static size_t end_of_group(const struct record *record, size_t group)
{
	return group + 1 < record->group_count ? record->groups[group + 1] : record->count;
}

/* Fills queue[rank] with what each rank sends to this one in the group, in order. */
static void queue_sends(struct record *records, int world, int to, size_t group,
			struct recorded **queue)
{
	for (int rank = 0; rank < world; rank++) {
		struct record *record = &records[rank];
		struct recorded **last = &queue[rank];

		*last = NULL;
		if (group >= record->group_count)
			continue;
		for (size_t i = record->groups[group]; i < end_of_group(record, group); i++) {
			struct recorded *op = &record->ops[i];

			if (op->kind != SEND || op->peer != to)
				continue;
			*last = op;
			last = &op->match;
			op->match = NULL;
		}
	}
}

/* What rank `to` receives in the group. */
static void run_receives(struct record *records, int world, int to, size_t group)
{
	struct recorded **queue = calloc((size_t)world, sizeof(struct recorded *));
	struct record *record = &records[to];

	queue_sends(records, world, to, group, queue);
	for (size_t i = group < record->group_count ? record->groups[group] : SIZE_MAX;
	     group < record->group_count && i < end_of_group(record, group); i++) {
		struct recorded *op = &record->ops[i], *sent;

		if (op->kind != RECV)
			continue;
		sent = queue[op->peer];
		must(sent, "group %zu: rank %d does not send to %d", group, op->peer, to);
		must(sent->bytes == op->bytes, "group %zu: rank %d sends %zu bytes to %d, not %zu",
		     group, op->peer, sent->bytes, to, op->bytes);
		memcpy(op->to, sent->from, op->bytes);
		queue[op->peer] = sent->match;
	}
	for (int rank = 0; rank < world; rank++)
		must(!queue[rank], "group %zu: what %d sends to %d is not received", group, rank,
		     to);
	free(queue);
}

__attribute__((unused)) static void run_records(struct record *records, int world)
{
	size_t groups = 0;

	for (int rank = 0; rank < world; rank++)
		if (records[rank].group_count > groups)
			groups = records[rank].group_count;
	for (size_t group = 0; group < groups; group++) {
		for (int rank = 0; rank < world; rank++)
			run_receives(records, world, rank, group);
		for (int rank = 0; rank < world; rank++) {
			struct record *record = &records[rank];

			if (group >= record->group_count)
				continue;
			for (size_t i = record->groups[group]; i < end_of_group(record, group); i++)
				if (record->ops[i].kind == SUM)
					run_sum(&record->ops[i].sum);
				else if (record->ops[i].kind == COPY)
					memcpy(record->ops[i].to, record->ops[i].from,
					       record->ops[i].bytes);
		}
	}
}

#endif
