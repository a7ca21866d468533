/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scatter and broadcast. Scatters of several buffers run at the same time, and may have different
 * roots. Both run in rounds. A root sends from its device or from page-locked memory directly, and
 * copies pageable memory through two page-locked buffers: the host fills one while the device sends
 * the other. Receivers need no memory but their own part.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu_comm.h"

/*
 * A root sends its slices in the order of its scatters and of the ranks, so many bytes in one round
 * as its longest piece has, within limits: more would be no faster. A message is a whole slice, or
 * as much of it as the round has room for: neither that nor the rest is then short. A message fills
 * whole slots of a round, so that there are not too many of them in one group of NCCL.
 */
enum {
	MIN_MESSAGE = 64 << 10,
	MIN_ROUND = 4 << 20,
	MOST_ROUND = 32 << 20,
	SLOT = 4 << 10,
};

static size_t slots(size_t bytes)
{
	return (bytes + SLOT - 1) / SLOT * SLOT;
}

static bool is_root(const struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	return op->root == cuda->comm.place.rank;
}

static bool is_pageable(const struct zero_op *op)
{
	bool on_device;

	return !zero_device_can_read(op->send, &on_device);
}

static size_t piece_bytes(const struct zero_op *op)
{
	size_t bytes = op->piece * zero_core->dtype_size(op->from);

	return bytes < MOST_ROUND ? bytes : MOST_ROUND;
}

/* Bytes of a root's round, if this is one of its scatters. */
static size_t round_bytes(const struct zero_op *op, size_t bytes)
{
	size_t piece = slots(piece_bytes(op));

	piece = piece > MIN_ROUND ? piece : MIN_ROUND;
	return piece > bytes ? piece : bytes;
}

/* ---- page-locked buffers of a root ----------------------------------------------------------- */

static size_t input_bytes(const struct zero_op *op)
{
	return op->count * zero_core->dtype_size(op->from);
}

/* Bytes of page-locked memory that this rank needs, in each of two buffers, to be the root of the
   operations; 0: none. */
static size_t pinned_bytes(const struct zero_cuda_comm *cuda, const struct zero_op *ops,
			   size_t count)
{
	size_t world = (size_t)cuda->comm.place.world, all = 0, round = 0, most = 0;
	bool scatters = false;

	for (size_t i = 0; i < count && world > 1; i++) {
		const struct zero_op *op = &ops[i];
		size_t piece = piece_bytes(op);

		if (!is_root(cuda, op) || !op->count)
			continue;
		if (op->kind == ZERO_OP_SCATTER) {
			scatters = scatters || is_pageable(op);
			round = round_bytes(op, round);
			/* each rank's slice may begin a slot */
			all += input_bytes(op) + world * SLOT;
		} else if (op->kind == ZERO_OP_BROADCAST && is_pageable(op)) {
			piece = piece < input_bytes(op) ? piece : input_bytes(op);
			most = piece > most ? piece : most;
		}
	}
	round = round < slots(all) ? round : slots(all);
	return scatters && round > most ? round : most;
}

void zero_cuda_free_pinned(struct zero_cuda_comm *cuda)
{
	struct zero_pinned_buffers *pinned = &cuda->pinned;

	for (int i = 0; i < 2; i++) {
		zero_event_put(cuda->device, pinned->sent[i]);
		zero_memory_free(cuda->memory, pinned->data[i], cuda->device->comm_stream);
	}
	*pinned = (struct zero_pinned_buffers){0};
}

zero_status zero_cuda_reserve_pinned(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				     size_t count)
{
	size_t bytes = pinned_bytes(cuda, ops, count);
	zero_status status = ZERO_OK;

	for (int i = 0; !status && bytes && i < 2; i++)
		status = zero_memory_alloc(cuda->memory, ZERO_MEM_PINNED, bytes, false,
					   cuda->device->comm_stream, &cuda->pinned.data[i]);
	return status;
}

/* Returns the next buffer, once the device has sent its previous contents. */
static zero_status next_buffer(struct zero_cuda_comm *cuda, char **data)
{
	struct zero_pinned_buffers *pinned = &cuda->pinned;
	int i = pinned->next;
	zero_status status = ZERO_OK;

	*data = pinned->data[i];
	if (pinned->sent[i])
		status = zero_event_synchronize(cuda->device, pinned->sent[i]);
	zero_event_put(cuda->device, pinned->sent[i]);
	pinned->sent[i] = NULL;
	return status;
}

static void record_sent(struct zero_cuda_comm *cuda)
{
	struct zero_pinned_buffers *pinned = &cuda->pinned;

	pinned->sent[pinned->next] = zero_event_record(cuda->device, cuda->device->comm_stream);
	pinned->next = !pinned->next;
}

/* ---- the messages of scatters ---------------------------------------------------------------- */

struct message {
	const struct zero_op *op;
	int rank;  /* that receives it */
	size_t at; /* byte of the root's input */
	size_t bytes;
	size_t round, slot; /* when it is sent, and where it is in a page-locked buffer */
	size_t number;      /* in the order in which it was planned */
	bool pageable;      /* the root must copy it */
};

/* A root's round that is being filled. */
struct filling {
	size_t bytes, used, round;
};

/* What this rank sends and receives. All ranks come to the same rounds. */
struct plan {
	const struct zero_cuda_comm *cuda;
	struct filling *roots; /* [world] */
	struct message *messages;
	size_t count, capacity;
};

static bool add_message(struct plan *plan, const struct message *message)
{
	if (plan->count == plan->capacity) {
		size_t capacity = plan->capacity ? 2 * plan->capacity : 64;
		struct message *grown = realloc(plan->messages, capacity * sizeof(*grown));

		if (!grown)
			return false;
		plan->messages = grown;
		plan->capacity = capacity;
	}
	plan->messages[plan->count] = *message;
	plan->messages[plan->count].number = plan->count;
	plan->count++;
	return true;
}

/* Bytes of the next message of a slice that has so many left; 0: it begins a new round. */
static size_t next_bytes(size_t left, size_t capacity)
{
	size_t most;

	if (left <= capacity)
		return left;
	if (left < 2 * MIN_MESSAGE)
		return 0;
	most = (left - MIN_MESSAGE) / SLOT * SLOT;
	most = most < capacity ? most : capacity;
	return most < MIN_MESSAGE ? 0 : most;
}

static bool plan_slice(struct plan *plan, const struct zero_op *op, int rank, bool pageable)
{
	struct filling *filling = &plan->roots[op->root];
	size_t size = zero_core->dtype_size(op->from), end = zero_op_slice(op, rank + 1) * size;
	bool mine = rank == plan->cuda->comm.place.rank || is_root(plan->cuda, op);
	bool made = true;

	for (size_t at = zero_op_slice(op, rank) * size, bytes; made && at < end; at += bytes) {
		bytes = next_bytes(end - at, filling->bytes - filling->used);
		if (!bytes) {
			filling->round++;
			filling->used = 0;
			continue;
		}
		if (mine)
			made = add_message(plan, &(struct message){.op = op,
								   .rank = rank,
								   .at = at,
								   .bytes = bytes,
								   .round = filling->round,
								   .slot = filling->used,
								   .pageable = pageable});
		filling->used += slots(bytes);
	}
	return made;
}

static bool plan_scatter(struct plan *plan, const struct zero_op *op)
{
	bool pageable = op->count && is_root(plan->cuda, op) && is_pageable(op), made = true;

	/* from the first rank that has a slice to the last one */
	for (int rank = op->count ? (int)(op->first / op->shard) : 0;
	     made && zero_op_slice(op, rank) < op->count; rank++)
		if (rank != op->root)
			made = plan_slice(plan, op, rank, pageable);
	return made;
}

static int by_round(const void *a, const void *b)
{
	const struct message *x = a, *y = b;

	if (x->round != y->round)
		return x->round < y->round ? -1 : 1;
	return x->number < y->number ? -1 : 1;
}

static zero_status make_plan(struct plan *plan, const struct zero_op *ops, size_t count)
{
	bool made;

	plan->roots = calloc((size_t)plan->cuda->comm.place.world, sizeof(*plan->roots));
	made = plan->roots;
	for (size_t i = 0; made && i < count; i++)
		plan->roots[ops[i].root].bytes =
			round_bytes(&ops[i], plan->roots[ops[i].root].bytes);
	for (size_t i = 0; made && i < count; i++)
		made = plan_scatter(plan, &ops[i]);
	if (!made)
		return zero_core->fail(ZERO_E_MEMORY, "no memory to scatter %zu buffers", count);
	if (plan->count)
		qsort(plan->messages, plan->count, sizeof(*plan->messages), by_round);
	return ZERO_OK;
}

/* ---- scatter --------------------------------------------------------------------------------- */

/* `buffer` is page-locked, for pageable input. */
static zero_status send_message(struct zero_cuda_comm *cuda, const struct message *message,
				char *buffer)
{
	const char *from = (const char *)message->op->send + message->at;

	if (message->pageable)
		from = memcpy(buffer + message->slot, from, message->bytes);
	cuda->comm.bytes_sent += message->bytes;
	return zero_nccl_status(zero_nccl.send(from, message->bytes, ncclInt8, message->rank,
					       cuda->nccl.comm,
					       (cudaStream_t)cuda->device->comm_stream),
				"ncclSend", cuda->nccl.comm);
}

static zero_status receive_message(struct zero_cuda_comm *cuda, const struct message *message)
{
	const struct zero_op *op = message->op;
	size_t begin = zero_op_slice(op, message->rank) * zero_core->dtype_size(op->from);

	return zero_nccl_status(zero_nccl.recv((char *)op->recv + (message->at - begin),
					       message->bytes, ncclInt8, op->root, cuda->nccl.comm,
					       (cudaStream_t)cuda->device->comm_stream),
				"ncclRecv", cuda->nccl.comm);
}

/* The messages of one round, as one group. */
static zero_status run_round(struct zero_cuda_comm *cuda, const struct message *messages,
			     size_t count)
{
	zero_status status = ZERO_OK;
	char *buffer = NULL;
	bool staged = false;

	for (size_t i = 0; i < count; i++)
		staged = staged || messages[i].pageable;
	if (staged)
		status = next_buffer(cuda, &buffer);
	if (!status)
		status = zero_nccl_group_begin(&cuda->nccl);
	if (status)
		return status;
	for (size_t i = 0; !status && i < count; i++)
		status = is_root(cuda, messages[i].op) ? send_message(cuda, &messages[i], buffer)
						       : receive_message(cuda, &messages[i]);
	status = zero_nccl_group_end(&cuda->nccl, status);
	if (staged)
		record_sent(cuda);
	return status;
}

static zero_status run_plan(struct zero_cuda_comm *cuda, const struct plan *plan)
{
	zero_status status = ZERO_OK;

	for (size_t at = 0, count; !status && at < plan->count; at += count) {
		count = 1;
		while (at + count < plan->count &&
		       plan->messages[at + count].round == plan->messages[at].round)
			count++;
		status = run_round(cuda, plan->messages + at, count);
	}
	return status;
}

static void copy_own_slice(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	int rank = cuda->comm.place.rank;
	size_t size = zero_core->dtype_size(op->from), begin = zero_op_slice(op, rank) * size;

	if (is_root(cuda, op))
		zero_device_copy(cuda->device, cuda->device->comm_stream, op->recv,
				 (const char *)op->send + begin,
				 zero_op_slice(op, rank + 1) * size - begin);
}

zero_status zero_cuda_scatter(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count)
{
	struct plan plan = {.cuda = cuda};
	zero_status status = ZERO_OK;

	if (cuda->comm.place.world > 1) {
		status = make_plan(&plan, ops, count);
		if (!status)
			status = run_plan(cuda, &plan);
		free(plan.messages);
		free(plan.roots);
	}
	for (size_t i = 0; !status && i < count; i++)
		copy_own_slice(cuda, &ops[i]);
	return status;
}

/* ---- broadcast ------------------------------------------------------------------------------- */

/* A root sends in place what it has on its device. NCCL chooses its algorithm by the properties of
   the buffer, and all ranks must choose the same. */
static zero_status send_piece(struct zero_cuda_comm *cuda, const struct zero_op *op, size_t at,
			      size_t bytes, bool staged)
{
	const char *from = (const char *)op->send + at;
	char *to = (char *)op->recv + at, *buffer;
	bool in_place = is_root(cuda, op) && !staged;
	zero_status status = ZERO_OK;

	if (staged) {
		status = next_buffer(cuda, &buffer);
		if (status)
			return status;
		memcpy(buffer, from, bytes);
		from = buffer;
	}
	status = zero_nccl_group_begin(&cuda->nccl);
	if (status)
		return status;
	status = zero_nccl_status(zero_nccl.broadcast(is_root(cuda, op) ? from : to,
						      in_place ? (char *)(uintptr_t)from : to,
						      bytes, ncclInt8, op->root, cuda->nccl.comm,
						      (cudaStream_t)cuda->device->comm_stream),
				  "ncclBroadcast", cuda->nccl.comm);
	status = zero_nccl_group_end(&cuda->nccl, status);
	if (in_place)
		zero_device_copy(cuda->device, cuda->device->comm_stream, to, from, bytes);
	if (staged)
		record_sent(cuda);
	return status;
}

zero_status zero_cuda_broadcast(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	size_t size = zero_core->dtype_size(op->from), bytes = op->count * size;
	bool staged = is_root(cuda, op) && bytes && is_pageable(op);
	zero_status status = ZERO_OK;

	if (cuda->comm.place.world == 1) {
		zero_device_copy(cuda->device, cuda->device->comm_stream, op->recv, op->send,
				 bytes);
		return ZERO_OK;
	}
	for (size_t at = 0, now; !status && at < bytes; at += now) {
		now = bytes - at < piece_bytes(op) ? bytes - at : piece_bytes(op);
		status = send_piece(cuda, op, at, now, staged);
	}
	if (is_root(cuda, op))
		cuda->comm.bytes_sent += bytes * (size_t)(cuda->comm.place.world - 1);
	return status;
}
