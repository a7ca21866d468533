/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a collective of the CUDA backend, any number of them in one process. The collective is
 * called for each rank in turn and what it enqueues is recorded: sends and receives of a group, and
 * what follows them. Afterwards all ranks run what was recorded, each group to its end before the
 * next, as NCCL would: every send must have its receive, and no ranks may wait for each other.
 */
#ifndef NCCL_RECORD_H
#define NCCL_RECORD_H

#include <string.h>

#include "backend/cuda/gpu_comm.h"
#include "tests/ranks/reference.h"
#include "unit.h"

enum recorded_kind { SEND, RECV, REDUCE, SUM, COPY, PACK, CAST };

struct recorded {
	enum recorded_kind kind;
	const void *from;
	void *to;
	size_t bytes;
	int peer;
	zero_dtype dtype; /* of a reduce */
	const void *comm; /* likewise */
	union {
		struct zero_device_sum sum;
		struct zero_device_pack pack;
		struct zero_device_cast cast;
	};
	struct recorded *match; /* of a send: the next one to the same rank */
	bool done;              /* of a receive */
};

/* What one rank enqueues. */
struct record {
	struct recorded *ops;
	size_t count, capacity;
	size_t groups[4096]; /* index of the first operation of each */
	size_t group_count;
	size_t kept; /* operations of which the sent bytes were copied */
};

static struct record *recording;

static struct recorded *add_record(enum recorded_kind kind)
{
	if (recording->count == recording->capacity) {
		recording->capacity = recording->capacity ? 2 * recording->capacity : 64;
		recording->ops =
			realloc(recording->ops, recording->capacity * sizeof(*recording->ops));
		ck_assert_ptr_nonnull(recording->ops);
	}
	recording->ops[recording->count] = (struct recorded){.kind = kind};
	return &recording->ops[recording->count++];
}

/* Copies what the first operations send as it is now, as the device has read it by now at the
   latest: the caller may then write other values there. */
__attribute__((unused)) static void keep_sent(struct record *record, size_t count)
{
	for (; record->kept < count; record->kept++) {
		struct recorded *op = &record->ops[record->kept];
		void *copy;

		if (op->kind != SEND)
			continue;
		copy = malloc(op->bytes);
		ck_assert_ptr_nonnull(copy);
		op->from = memcpy(copy, op->from, op->bytes);
	}
}

static void free_record(struct record *record)
{
	for (size_t i = 0; i < record->kept; i++)
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

	(void)type, (void)comm, (void)stream;
	op->from = data;
	op->bytes = count;
	op->peer = peer;
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

static ncclResult_t record_reduce(const void *send, void *recv, size_t count, ncclDataType_t type,
				  ncclRedOp_t how, ncclComm_t comm, cudaStream_t stream)
{
	struct recorded *op = add_record(REDUCE);

	(void)stream;
	ck_assert_int_eq(how, ncclSum);
	op->dtype = type == ncclFloat32 ? ZERO_F32 : type == ncclFloat16 ? ZERO_F16 : ZERO_BF16;
	op->from = send;
	op->to = recv;
	op->bytes = count * (type == ncclFloat32 ? 4 : 2);
	op->comm = comm;
	return ncclSuccess;
}

struct zero_nccl_api zero_nccl = {
	.send = record_send, .recv = record_recv, .reduce_scatter = record_reduce};

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

/* An event is the number of operations before it. */
struct zero_event *zero_event_record(struct zero_device *device, CUstream stream)
{
	(void)device, (void)stream;
	return (struct zero_event *)recording->count;
}

void zero_event_put(struct zero_device *device, struct zero_event *event)
{
	(void)device, (void)event;
}

/* Behind the bytes is a guard, and before them their number. */
enum { GUARD = 64 };

zero_status zero_memory_alloc(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes, bool zeroed, CUstream stream, void **data)
{
	char *block = malloc(bytes + 2 * (size_t)GUARD);

	(void)memory, (void)kind, (void)zeroed, (void)stream;
	ck_assert_ptr_nonnull(block);
	memcpy(block, &bytes, sizeof(bytes));
	memset(block + GUARD + bytes, 0xa5, GUARD);
	*data = block + GUARD;
	return ZERO_OK;
}

void zero_memory_free(struct zero_memory_pool *memory, void *data, CUstream stream)
{
	unsigned char *block = data;
	size_t bytes;

	(void)memory, (void)stream;
	if (!data)
		return;
	block -= GUARD;
	memcpy(&bytes, block, sizeof(bytes));
	for (size_t i = 0; i < GUARD; i++)
		must(block[GUARD + bytes + i] == 0xa5, "a buffer of %zu bytes is written beyond",
		     bytes);
	free(block);
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

/* Ranks that run what was recorded, each one group after the other. */
struct running {
	struct record *records;
	int world;
	struct recorded **first, **last; /* [from][to] sends that are under way, in order */
	struct rank_running {
		size_t group;
		bool posted;
		size_t under_way; /* sends of the group */
	} * ranks;
};

static size_t end_of_group(const struct record *record, size_t group)
{
	return group + 1 < record->group_count ? record->groups[group + 1] : record->count;
}

static void post_sends(struct running *running, int rank, size_t begin, size_t end)
{
	struct record *record = &running->records[rank];

	for (size_t i = begin; i < end; i++) {
		struct recorded *op = &record->ops[i];
		size_t pair = (size_t)rank * (size_t)running->world + (size_t)op->peer;

		if (op->kind != SEND)
			continue;
		*(running->first[pair] ? &running->last[pair]->match : &running->first[pair]) = op;
		running->last[pair] = op;
		running->ranks[rank].under_way++;
	}
}

/* Returns whether all that the group receives has come. */
static bool receive(struct running *running, int rank, size_t begin, size_t end)
{
	struct record *record = &running->records[rank];
	bool all = true;

	for (size_t i = begin; i < end; i++) {
		struct recorded *op = &record->ops[i], **sent;

		if (op->kind != RECV || op->done)
			continue;
		sent = &running->first[(size_t)op->peer * (size_t)running->world + (size_t)rank];
		all = all && *sent;
		if (!*sent)
			continue;
		must((*sent)->bytes == op->bytes, "rank %d sends %zu bytes to %d, not %zu",
		     op->peer, (*sent)->bytes, rank, op->bytes);
		memcpy(op->to, (*sent)->from, op->bytes);
		*sent = (*sent)->match;
		op->done = true;
		running->ranks[op->peer].under_way--;
	}
	return all;
}

static void run_pack(const struct zero_device_pack *pack)
{
	for (size_t k = 0; k < pack->count; k++) {
		size_t from = pack->order ? (size_t)pack->order[k] : k;

		memcpy((char *)pack->out + k * pack->bytes,
		       (const char *)pack->in + from * pack->stride, pack->bytes);
	}
}

static void run_rest(const struct record *record, size_t begin, size_t end)
{
	for (size_t i = begin; i < end; i++) {
		const struct recorded *op = &record->ops[i];

		if (op->kind == SUM)
			run_sum(&op->sum);
		else if (op->kind == COPY)
			memcpy(op->to, op->from, op->bytes);
		else if (op->kind == PACK)
			run_pack(&op->pack);
		else if (op->kind == CAST)
			ref_cast(op->cast.to, op->cast.out, op->cast.from, op->cast.in,
				 op->cast.count);
	}
}

/* Returns whether the rank has ended its group. */
static bool advance(struct running *running, int rank)
{
	struct record *record = &running->records[rank];
	struct rank_running *own = &running->ranks[rank];
	size_t begin = record->groups[own->group], end = end_of_group(record, own->group);

	if (!own->posted)
		post_sends(running, rank, begin, end);
	own->posted = true;
	if (!receive(running, rank, begin, end) || own->under_way)
		return false;
	run_rest(record, begin, end);
	own->group++;
	own->posted = false;
	return true;
}

static void run_records(struct record *records, int world)
{
	size_t pairs = (size_t)world * (size_t)world, left = (size_t)world;
	struct running running = {
		.records = records,
		.world = world,
		.first = calloc(pairs, sizeof(struct recorded *)),
		.last = calloc(pairs, sizeof(struct recorded *)),
		.ranks = calloc((size_t)world, sizeof(*running.ranks)),
	};

	for (int rank = 0; rank < world; rank++)
		if (!records[rank].group_count) {
			run_rest(&records[rank], 0, records[rank].count);
			left--;
		}
	/* a message is posted in one turn and may be received in the next, and then seen by its
	   sender */
	for (int idle = 0; left; idle++) {
		must(idle < 3, "%zu of %d ranks wait for each other", left, world);
		for (int rank = 0; rank < world; rank++) {
			if (running.ranks[rank].group == records[rank].group_count)
				continue;
			if (!advance(&running, rank))
				continue;
			idle = 0;
			left -= running.ranks[rank].group == records[rank].group_count;
		}
	}
	free(running.first);
	free(running.last);
	free(running.ranks);
}

#endif
