/* SPDX-License-Identifier: Apache-2.0 */
/* What a submission's operations are on the communication stream: gathers here, sums and scatters
   in files of their own. */
#include <stdlib.h>

#include "gpu.h"

/* ---- buffers --------------------------------------------------------------------------------- */

/* Two sets of pieces, one for each peer. */
zero_status zero_cuda_make_staging(struct zero_cuda_comm *cuda)
{
	size_t peers = (size_t)cuda->comm.place.world - 1;
	zero_status status = ZERO_OK;

	if (!peers)
		return ZERO_OK;
	cuda->summands = calloc(peers + 1, sizeof(*cuda->summands));
	if (!cuda->summands)
		return zero_core->fail(ZERO_E_COMM, "no memory for %zu peers", peers);
	cuda->piece = zero_exchange_piece(peers, true);
	for (int i = 0; !status && i < 2; i++)
		status = zero_memory_alloc(cuda->memory, ZERO_MEM_STAGING, cuda->piece * peers,
					   false, cuda->device->comm, &cuda->staging[i]);
	return status;
}

static void drop_pinned(struct zero_cuda_comm *cuda)
{
	struct zero_turns *pinned = &cuda->pinned;

	for (int i = 0; i < 2; i++) {
		zero_event_put(cuda->device, pinned->free[i]);
		zero_memory_free(cuda->memory, pinned->data[i], cuda->device->comm);
	}
	*pinned = (struct zero_turns){0};
}

/* Kept for the next load, as it takes long to come by. */
static zero_status make_pinned(struct zero_cuda_comm *cuda, size_t bytes)
{
	struct zero_turns *pinned = &cuda->pinned;
	zero_status status = ZERO_OK;

	if (pinned->bytes >= bytes)
		return ZERO_OK;
	drop_pinned(cuda);
	for (int i = 0; !status && i < 2; i++)
		status = zero_memory_alloc(cuda->memory, ZERO_MEM_PINNED, bytes, false,
					   cuda->device->comm, &pinned->data[i]);
	if (status)
		drop_pinned(cuda);
	else
		pinned->bytes = bytes;
	return status;
}

zero_status zero_cuda_prepare(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count)
{
	size_t bytes = zero_cuda_root_bytes(cuda, ops, count);

	return bytes ? make_pinned(cuda, bytes) : ZERO_OK;
}

void zero_cuda_drop_buffers(struct zero_cuda_comm *cuda)
{
	drop_pinned(cuda);
	for (int i = 0; i < 2; i++) {
		zero_memory_free(cuda->memory, cuda->staging[i], cuda->device->comm);
		cuda->staging[i] = NULL;
	}
	free(cuda->summands);
	cuda->summands = NULL;
}

/* ---- gathers --------------------------------------------------------------------------------- */

static char *output(const struct zero_op *op)
{
	return op->shared ? op->shared->data + op->at : op->recv;
}

void zero_cuda_copy(struct zero_cuda_comm *cuda, void *to, const void *from, size_t bytes)
{
	if (to != from && bytes)
		zero_device_note(cuda->device,
				 zero_driver.copy((CUdeviceptr)(uintptr_t)to,
						  (CUdeviceptr)(uintptr_t)from, bytes,
						  cuda->device->comm),
				 "cuMemcpyAsync");
}

/*
 * What changes its type is cast into the own part of the output, to be gathered from there. So is
 * what does not, if the output is a window: copy engines go from one window to another. Else it is
 * gathered from where it is stored.
 */
static const char *lay_own(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	size_t size = zero_core->dtype_size(op->to);
	char *own = output(op) + (size_t)cuda->comm.place.rank * op->count * size;

	if (op->from == op->to && !(op->shared && op->shared->owner))
		return op->send;
	if (op->from == op->to)
		zero_cuda_copy(cuda, own, op->send, op->count * size);
	else
		zero_launch_cast(cuda->device, cuda->device->comm, op->to, own, op->from, op->send,
				 op->count);
	return own;
}

/* As many as stand in a row: NCCL runs them as one. */
static zero_status all_gather(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count)
{
	const char **own = calloc(count, sizeof(*own));
	zero_status status;

	if (!own)
		return zero_core->fail(ZERO_E_COMM, "no memory for %zu gathers", count);
	for (size_t i = 0; i < count; i++)
		own[i] = lay_own(cuda, &ops[i]);
	status = zero_nccl_begin(&cuda->nccl);
	for (size_t i = 0; !status && i < count; i++) {
		size_t bytes = ops[i].count * zero_core->dtype_size(ops[i].to);

		status = zero_nccl_status(zero_nccl.all_gather(own[i], output(&ops[i]), bytes,
							       ncclInt8, cuda->nccl.comm,
							       (cudaStream_t)cuda->device->comm),
					  "ncclAllGather", cuda->nccl.comm);
		cuda->comm.bytes_sent += bytes * (size_t)(cuda->comm.place.world - 1);
		if (status || i + 1 == count)
			status = zero_nccl_end(&cuda->nccl, status);
	}
	free(own);
	return status;
}

/* One rank's part is all there is. */
static void gather_alone(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	const char *own = lay_own(cuda, op);

	if (own == op->send)
		zero_cuda_copy(cuda, output(op), own, op->count * zero_core->dtype_size(op->to));
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Operation i, and those of its kind behind it that go with it: *done of them. */
static zero_status run_some(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count,
			    size_t *done)
{
	*done = 1;
	switch (ops->kind) {
	case ZERO_OP_ALL_GATHER:
		if (cuda->comm.place.world == 1) {
			gather_alone(cuda, ops);
			return ZERO_OK;
		}
		while (*done < count && ops[*done].kind == ZERO_OP_ALL_GATHER)
			++*done;
		return all_gather(cuda, ops, *done);
	case ZERO_OP_REDUCE_SCATTER:
		return zero_cuda_reduce_scatter(cuda, ops);
	case ZERO_OP_SCATTER:
		while (*done < count && ops[*done].kind == ZERO_OP_SCATTER)
			++*done;
		return zero_cuda_scatter(cuda, ops, *done);
	case ZERO_OP_BROADCAST:
		return zero_cuda_broadcast(cuda, ops);
	case ZERO_OP_EXCHANGE:
		if (cuda->talk)
			return zero_control_exchange(cuda->talk, ops->send, ops->recv, ops->count);
		for (size_t i = 0; i < ops->count; i++)
			((char *)ops->recv)[i] = ((const char *)ops->send)[i];
		return ZERO_OK;
	case ZERO_OP_CAST:
		zero_launch_cast(cuda->device, cuda->device->comm, ops->to, ops->recv, ops->from,
				 ops->send, ops->count);
		return ZERO_OK;
	case ZERO_OP_TEAM_COMM:
		return zero_cuda_team_comm(cuda, ops);
	case ZERO_OP_ALLOC:
	case ZERO_OP_FREE:
		break;
	}
	return ZERO_OK;
}

zero_status zero_cuda_run(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count)
{
	zero_status status = ZERO_OK;
	size_t done;

	for (size_t i = 0; !status && i < count; i += done) {
		status = run_some(cuda, ops + i, count - i, &done);
		if (zero_op_is_payload(&ops[i]))
			cuda->comm.collectives += done;
	}
	return status;
}
