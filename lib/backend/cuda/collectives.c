/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the operations of a submission. Each collective has a file of its own. */
#include <string.h>

#include "gpu_comm.h"

/* Operations of this kind at the start of `ops`. */
static size_t count_same(const struct zero_op *ops, size_t count, enum zero_op_kind kind)
{
	size_t same = 1;

	while (same < count && ops[same].kind == kind)
		same++;
	return same;
}

static zero_status allgather_bytes(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	uint64_t sent = cuda->comm.bytes_sent;
	zero_status status = ZERO_OK;

	if (op->on_device) {
		struct zero_op gather = {.kind = ZERO_OP_ALL_GATHER,
					 .from = ZERO_U8,
					 .to = ZERO_U8,
					 .send = op->send,
					 .recv = op->recv,
					 .count = op->count};

		status = zero_cuda_all_gather(cuda, &gather, 1);
		cuda->comm.bytes_sent = sent;
	} else if (cuda->comm.net_team) {
		status = zero_net->allgather(cuda->comm.net_team, op->send, op->recv, op->count);
	} else if (op->count) {
		memmove(op->recv, op->send, op->count);
	}
	return status;
}

/* Runs the first operation, and with it those behind it that NCCL can run as one group. *done is
   how many. */
static zero_status run_first(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count,
			     size_t *done)
{
	*done = 1;
	switch (ops->kind) {
	case ZERO_OP_ALL_GATHER:
		*done = count_same(ops, count, ZERO_OP_ALL_GATHER);
		return zero_cuda_all_gather(cuda, ops, *done);
	case ZERO_OP_REDUCE_SCATTER:
		return zero_cuda_reduce_scatter(cuda, ops);
	case ZERO_OP_SCATTER:
		*done = count_same(ops, count, ZERO_OP_SCATTER);
		return zero_cuda_scatter(cuda, ops, *done);
	case ZERO_OP_BROADCAST:
		return zero_cuda_broadcast(cuda, ops);
	case ZERO_OP_ALLGATHER_BYTES:
		return allgather_bytes(cuda, ops);
	case ZERO_OP_CAST:
		zero_launch_cast(cuda->device, cuda->device->comm_stream, ops->to,
				 ops->shared ? zero_shared_base(ops->shared) + ops->at : ops->recv,
				 ops->from, ops->send, ops->count);
		return ZERO_OK;
	case ZERO_OP_ALL_TO_ALL:
		return zero_cuda_all_to_all(cuda, ops);
	case ZERO_OP_TEAM_COMM:
		return zero_cuda_team_comm(cuda, ops);
	case ZERO_OP_ALLOC:
	case ZERO_OP_FREE:
		break;
	}
	return ZERO_OK;
}

zero_status zero_cuda_run_operations(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				     size_t count)
{
	zero_status status = ZERO_OK;
	size_t done;

	for (size_t i = 0; !status && i < count; i += done) {
		status = run_first(cuda, ops + i, count - i, &done);
		if (zero_op_is_payload(&ops[i]))
			cuda->comm.collectives += done;
	}
	return status;
}
