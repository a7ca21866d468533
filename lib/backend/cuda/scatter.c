/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scatter and broadcast. Scatters of several buffers run at the same time, and may have different
 * roots. Both run in rounds. A root sends from its device or from page-locked memory directly, and
 * copies pageable memory through two page-locked buffers: the host fills one while the device sends
 * the other. Receivers need no memory but their own part.
 */
#include <string.h>

#include "gpu_comm.h"

/* ---- page-locked buffers of a root ----------------------------------------------------------- */

/* Scatters of one root share its buffers. */
static size_t count_scatters(const struct zero_op *ops, size_t count, int root)
{
	size_t same = 0;

	for (size_t i = 0; i < count; i++)
		same += ops[i].kind == ZERO_OP_SCATTER && ops[i].root == root;
	return same;
}

/* Elements of each rank's slice in one round. A root sends one piece in each round, to all ranks and
   for all its scatters together. */
static size_t round_elements(const struct zero_cuda_comm *cuda, const struct zero_op *ops,
			     size_t count, const struct zero_op *op)
{
	size_t each =
		op->piece / (size_t)cuda->comm.place.world / count_scatters(ops, count, op->root);

	return each ? each : 1;
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

static size_t input_bytes(const struct zero_op *op)
{
	return op->count * zero_core->dtype_size(op->from);
}

/* Bytes of page-locked memory that this rank needs, in each of two buffers, to be the root of the
   operations; 0: none. */
static size_t pinned_bytes(const struct zero_cuda_comm *cuda, const struct zero_op *ops,
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
				: round_elements(cuda, ops, count, op) * world * size;
		bytes = bytes < input_bytes(op) ? bytes : input_bytes(op);
		if (op->kind == ZERO_OP_SCATTER)
			scatters += bytes;
		else
			most = bytes > most ? bytes : most;
	}
	return scatters > most ? scatters : most;
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
	struct zero_pinned_buffers *pinned = &cuda->pinned;
	zero_status status = ZERO_OK;

	/* Large buffers stay for the next load: page-locking takes long. */
	if (pinned->bytes >= bytes)
		return ZERO_OK;
	zero_cuda_free_pinned(cuda);
	for (int i = 0; !status && i < 2; i++)
		status = zero_memory_alloc(cuda->memory, ZERO_MEM_PINNED, bytes, false,
					   cuda->device->comm_stream, &pinned->data[i]);
	if (status)
		zero_cuda_free_pinned(cuda);
	else
		pinned->bytes = bytes;
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

/* ---- scatter --------------------------------------------------------------------------------- */

struct round {
	struct zero_cuda_comm *cuda;
	const struct zero_op *ops;
	size_t count;
	size_t number;
	char *buffer; /* page-locked, for pageable input */
	size_t used;
};

/* Returns how many elements of a rank's slice are sent in this round. *first is the index of the
   first one in the root's input. */
static size_t slice_of(const struct round *round, const struct zero_op *op, int rank, size_t *first)
{
	size_t each = round_elements(round->cuda, round->ops, round->count, op);
	size_t at = op->bounds[rank] + round->number * each, end = op->bounds[rank + 1];

	*first = at;
	if (at >= end)
		return 0;
	return end - at < each ? end - at : each;
}

static zero_status send_slices(struct round *round, const struct zero_op *op)
{
	struct zero_cuda_comm *cuda = round->cuda;
	size_t size = zero_core->dtype_size(op->from), first;
	bool pageable = is_pageable(op);
	zero_status status = ZERO_OK;

	for (int rank = 0; !status && rank < cuda->comm.place.world; rank++) {
		size_t bytes = slice_of(round, op, rank, &first) * size;
		const char *from = (const char *)op->send + first * size;

		if (!bytes || rank == cuda->comm.place.rank)
			continue;
		if (pageable) {
			memcpy(round->buffer + round->used, from, bytes);
			from = round->buffer + round->used;
			round->used += bytes;
		}
		status = zero_nccl_status(zero_nccl.send(from, bytes, ncclInt8, rank,
							 cuda->nccl.comm,
							 (cudaStream_t)cuda->device->comm_stream),
					  "ncclSend", cuda->nccl.comm);
		cuda->comm.bytes_sent += bytes;
	}
	return status;
}

static zero_status receive_slice(struct round *round, const struct zero_op *op)
{
	struct zero_cuda_comm *cuda = round->cuda;
	int rank = cuda->comm.place.rank;
	size_t size = zero_core->dtype_size(op->from), first;
	size_t bytes = slice_of(round, op, rank, &first) * size;

	if (!bytes)
		return ZERO_OK;
	return zero_nccl_status(zero_nccl.recv((char *)op->recv + (first - op->bounds[rank]) * size,
					       bytes, ncclInt8, op->root, cuda->nccl.comm,
					       (cudaStream_t)cuda->device->comm_stream),
				"ncclRecv", cuda->nccl.comm);
}

/* Whether any rank has a slice in this round. */
static bool has_more(const struct round *round)
{
	size_t first;

	for (size_t i = 0; i < round->count; i++)
		for (int rank = 0; rank < round->cuda->comm.place.world; rank++)
			if (slice_of(round, &round->ops[i], rank, &first))
				return true;
	return false;
}

static bool needs_buffer(const struct round *round)
{
	for (size_t i = 0; i < round->count; i++)
		if (is_root(round->cuda, &round->ops[i]) && round->ops[i].count &&
		    is_pageable(&round->ops[i]))
			return true;
	return false;
}

static zero_status run_round(struct round *round)
{
	struct zero_cuda_comm *cuda = round->cuda;
	bool staged = cuda->pinned.bytes && needs_buffer(round);
	zero_status status = ZERO_OK;

	round->used = 0;
	if (staged)
		status = next_buffer(cuda, &round->buffer);
	if (!status)
		status = zero_nccl_group_begin(&cuda->nccl);
	if (status)
		return status;
	for (size_t i = 0; !status && i < round->count; i++)
		status = is_root(cuda, &round->ops[i]) ? send_slices(round, &round->ops[i])
						       : receive_slice(round, &round->ops[i]);
	status = zero_nccl_group_end(&cuda->nccl, status);
	if (staged)
		record_sent(cuda);
	return status;
}

static void copy_own_slice(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	int rank = cuda->comm.place.rank;
	size_t size = zero_core->dtype_size(op->from);

	if (is_root(cuda, op))
		zero_device_copy(cuda->device, cuda->device->comm_stream, op->recv,
				 (const char *)op->send + op->bounds[rank] * size,
				 (op->bounds[rank + 1] - op->bounds[rank]) * size);
}

zero_status zero_cuda_scatter(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count)
{
	struct round round = {.cuda = cuda, .ops = ops, .count = count};
	zero_status status = ZERO_OK;

	for (; !status && cuda->comm.place.world > 1 && has_more(&round); round.number++)
		status = run_round(&round);
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
		now = bytes - at < op->piece * size ? bytes - at : op->piece * size;
		status = send_piece(cuda, op, at, now, staged);
	}
	if (is_root(cuda, op))
		cuda->comm.bytes_sent += bytes * (size_t)(cuda->comm.place.world - 1);
	return status;
}
