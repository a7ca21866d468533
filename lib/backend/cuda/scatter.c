/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From one rank to all: scatter, of several buffers at once whose roots may be different ranks, and
 * broadcast, in turns. What a root has on its device, or in page-locked memory, is sent from there;
 * what is in pageable memory goes through two page-locked buffers, one of which the host fills
 * while the other is sent. Receivers need nothing beside their own part.
 */
#include <string.h>

#include "gpu.h"

/* Operations of the list that come from the same rank as this one: they share its buffers. */
static size_t of_root(const struct zero_op *ops, size_t count, int root)
{
	size_t same = 0;

	for (size_t i = 0; i < count; i++)
		same += ops[i].kind == ZERO_OP_SCATTER && ops[i].root == root;
	return same;
}

/* Elements of each rank's slice in one turn: all of a root's are a piece together. */
static size_t turn_elements(const struct zero_cuda_comm *cuda, const struct zero_op *ops,
			    size_t count, const struct zero_op *op)
{
	size_t each = op->piece / (size_t)cuda->comm.place.world / of_root(ops, count, op->root);

	return each ? each : 1;
}

static bool is_root(const struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	return op->root == cuda->comm.place.rank;
}

static bool is_pageable(const struct zero_op *op)
{
	bool on_device;

	return !zero_device_reads(op->send, &on_device);
}

/* What a buffer need not be longer than, whatever the piece. */
static size_t whole_bytes(const struct zero_op *op)
{
	return op->count * zero_core->dtype_size(op->from);
}

size_t zero_cuda_root_bytes(const struct zero_cuda_comm *cuda, const struct zero_op *ops,
			    size_t count)
{
	size_t world = (size_t)cuda->comm.place.world, scatters = 0, most = 0;

	for (size_t i = 0; i < count; i++) {
		const struct zero_op *op = &ops[i];
		size_t size = zero_core->dtype_size(op->from), bytes = 0;

		if ((op->kind != ZERO_OP_SCATTER && op->kind != ZERO_OP_BROADCAST) || world == 1 ||
		    !is_root(cuda, op) || !op->count || !is_pageable(op))
			continue;
		bytes = op->kind == ZERO_OP_BROADCAST
				? op->piece * size
				: turn_elements(cuda, ops, count, op) * world * size;
		bytes = bytes < whole_bytes(op) ? bytes : whole_bytes(op);
		if (op->kind == ZERO_OP_SCATTER)
			scatters += bytes;
		else
			most = bytes > most ? bytes : most;
	}
	return scatters > most ? scatters : most;
}

/* The buffer that is free, once it is: *used bytes of it are taken. */
static zero_status next_buffer(struct zero_cuda_comm *cuda, char **data)
{
	struct zero_turns *pinned = &cuda->pinned;
	int i = pinned->next;
	zero_status status = ZERO_OK;

	*data = pinned->data[i];
	if (pinned->free[i])
		status = zero_event_finish(cuda->device, pinned->free[i]);
	zero_event_put(cuda->device, pinned->free[i]);
	pinned->free[i] = NULL;
	return status;
}

static void buffer_sent(struct zero_cuda_comm *cuda)
{
	struct zero_turns *pinned = &cuda->pinned;

	pinned->free[pinned->next] = zero_event_record(cuda->device, cuda->device->comm);
	pinned->next = !pinned->next;
}

/* ---- scatter --------------------------------------------------------------------------------- */

struct turn {
	struct zero_cuda_comm *cuda;
	const struct zero_op *ops;
	size_t count;
	size_t number;
	char *buffer; /* for what is pageable */
	size_t used;
};

/* The part of a rank's slice that is sent in this turn: elements of the root's from *first on. */
static size_t slice_of(const struct turn *turn, const struct zero_op *op, int rank, size_t *first)
{
	size_t each = turn_elements(turn->cuda, turn->ops, turn->count, op);
	size_t at = op->bounds[rank] + turn->number * each, end = op->bounds[rank + 1];

	*first = at;
	if (at >= end)
		return 0;
	return end - at < each ? end - at : each;
}

static zero_status give(struct turn *turn, const struct zero_op *op)
{
	struct zero_cuda_comm *cuda = turn->cuda;
	size_t size = zero_core->dtype_size(op->from), first;
	bool pageable = is_pageable(op);
	zero_status status = ZERO_OK;

	for (int rank = 0; !status && rank < cuda->comm.place.world; rank++) {
		size_t bytes = slice_of(turn, op, rank, &first) * size;
		const char *from = (const char *)op->send + first * size;

		if (!bytes || rank == cuda->comm.place.rank)
			continue;
		if (pageable) {
			memcpy(turn->buffer + turn->used, from, bytes);
			from = turn->buffer + turn->used;
			turn->used += bytes;
		}
		status = zero_nccl_status(zero_nccl.send(from, bytes, ncclInt8, rank,
							 cuda->nccl.comm,
							 (cudaStream_t)cuda->device->comm),
					  "ncclSend", cuda->nccl.comm);
		cuda->comm.bytes_sent += bytes;
	}
	return status;
}

static zero_status take(struct turn *turn, const struct zero_op *op)
{
	struct zero_cuda_comm *cuda = turn->cuda;
	int rank = cuda->comm.place.rank;
	size_t size = zero_core->dtype_size(op->from), first;
	size_t bytes = slice_of(turn, op, rank, &first) * size;

	if (!bytes)
		return ZERO_OK;
	return zero_nccl_status(zero_nccl.recv((char *)op->recv + (first - op->bounds[rank]) * size,
					       bytes, ncclInt8, op->root, cuda->nccl.comm,
					       (cudaStream_t)cuda->device->comm),
				"ncclRecv", cuda->nccl.comm);
}

/* Whether anything is left for this turn, for whichever rank. */
static bool has_more(const struct turn *turn)
{
	size_t first;

	for (size_t i = 0; i < turn->count; i++)
		for (int rank = 0; rank < turn->cuda->comm.place.world; rank++)
			if (slice_of(turn, &turn->ops[i], rank, &first))
				return true;
	return false;
}

static bool stages(const struct turn *turn)
{
	for (size_t i = 0; i < turn->count; i++)
		if (is_root(turn->cuda, &turn->ops[i]) && turn->ops[i].count &&
		    is_pageable(&turn->ops[i]))
			return true;
	return false;
}

static zero_status run_turn(struct turn *turn)
{
	struct zero_cuda_comm *cuda = turn->cuda;
	bool staged = cuda->pinned.bytes && stages(turn);
	zero_status status = ZERO_OK;

	turn->used = 0;
	if (staged)
		status = next_buffer(cuda, &turn->buffer);
	if (!status)
		status = zero_nccl_begin(&cuda->nccl);
	if (status)
		return status;
	for (size_t i = 0; !status && i < turn->count; i++)
		status = is_root(cuda, &turn->ops[i]) ? give(turn, &turn->ops[i])
						      : take(turn, &turn->ops[i]);
	status = zero_nccl_end(&cuda->nccl, status);
	if (staged)
		buffer_sent(cuda);
	return status;
}

/* A root keeps its own slice. */
static void keep_own(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	int rank = cuda->comm.place.rank;
	size_t size = zero_core->dtype_size(op->from);

	if (is_root(cuda, op))
		zero_cuda_copy(cuda, op->recv, (const char *)op->send + op->bounds[rank] * size,
			       (op->bounds[rank + 1] - op->bounds[rank]) * size);
}

zero_status zero_cuda_scatter(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count)
{
	struct turn turn = {.cuda = cuda, .ops = ops, .count = count};
	zero_status status = ZERO_OK;

	for (; !status && cuda->comm.place.world > 1 && has_more(&turn); turn.number++)
		status = run_turn(&turn);
	for (size_t i = 0; !status && i < count; i++)
		keep_own(cuda, &ops[i]);
	return status;
}

/* ---- broadcast ------------------------------------------------------------------------------- */

/* What a root has on its device it sends in place: NCCL chooses how by what a buffer is, and must
   choose alike on all ranks. */
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
	status = zero_nccl_begin(&cuda->nccl);
	if (status)
		return status;
	status = zero_nccl_status(zero_nccl.broadcast(is_root(cuda, op) ? from : to,
						      in_place ? (char *)(uintptr_t)from : to,
						      bytes, ncclInt8, op->root, cuda->nccl.comm,
						      (cudaStream_t)cuda->device->comm),
				  "ncclBroadcast", cuda->nccl.comm);
	status = zero_nccl_end(&cuda->nccl, status);
	if (in_place)
		zero_cuda_copy(cuda, to, from, bytes);
	if (staged)
		buffer_sent(cuda);
	return status;
}

zero_status zero_cuda_broadcast(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	size_t size = zero_core->dtype_size(op->from), bytes = op->count * size;
	bool staged = is_root(cuda, op) && bytes && is_pageable(op);
	zero_status status = ZERO_OK;

	if (cuda->comm.place.world == 1) {
		zero_cuda_copy(cuda, op->recv, op->send, bytes);
		return ZERO_OK;
	}
	for (size_t at = 0, now; !status && at < bytes; at += now) {
		now = bytes - at < op->piece * size ? bytes - at : op->piece * size;
		status = send_piece(cuda, op, at, now, staged);
	}
	if (is_root(cuda, op))
		cuda->comm.bytes_sent += bytes * (size_t)(cuda->comm.place.world - 1);
	return status;
}
