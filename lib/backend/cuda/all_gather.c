/* SPDX-License-Identifier: Apache-2.0 */
/* All-gather: each rank's part of a flat buffer is cast if needed, and gathered on all ranks. */
#include <stdlib.h>

#include "gpu_comm.h"

static char *output(const struct zero_op *op)
{
	return op->shared ? zero_shared_base(op->shared) + op->at : op->recv;
}

/*
 * Returns where this rank's part is gathered from. A part that changes its type is cast into the
 * output. If the output is a window, any part is copied there first, because copy engines copy
 * from one window to another. All other parts are gathered from where they are stored.
 */
static const char *prepare_own_part(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	size_t size = zero_core->dtype_size(op->to);
	char *own = output(op) + (size_t)cuda->comm.place.rank * op->count * size;

	if (op->from == op->to && !(op->shared && op->shared->owner))
		return op->send;
	if (op->from == op->to)
		zero_device_copy(cuda->device, cuda->device->comm_stream, own, op->send,
				 op->count * size);
	else
		zero_launch_cast(cuda->device, cuda->device->comm_stream, op->to, own, op->from,
				 op->send, op->count);
	return own;
}

static zero_status gather_group(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				size_t count)
{
	const char **own = calloc(count, sizeof(*own));
	zero_status status;

	if (!own)
		return zero_core->fail(ZERO_E_COMM, "no memory for %zu gathers", count);
	for (size_t i = 0; i < count; i++)
		own[i] = prepare_own_part(cuda, &ops[i]);
	status = zero_nccl_group_begin(&cuda->nccl);
	for (size_t i = 0; !status && i < count; i++) {
		size_t bytes = ops[i].count * zero_core->dtype_size(ops[i].to);

		status = zero_nccl_status(
			zero_nccl.all_gather(own[i], output(&ops[i]), bytes, ncclInt8,
					     cuda->nccl.comm,
					     (cudaStream_t)cuda->device->comm_stream),
			"ncclAllGather", cuda->nccl.comm);
		cuda->comm.bytes_sent += bytes * (size_t)(cuda->comm.place.world - 1);
		if (status || i + 1 == count)
			status = zero_nccl_group_end(&cuda->nccl, status);
	}
	free(own);
	return status;
}

zero_status zero_cuda_all_gather(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				 size_t count)
{
	if (cuda->comm.place.world > 1)
		return gather_group(cuda, ops, count);
	for (size_t i = 0; i < count; i++) {
		const char *own = prepare_own_part(cuda, &ops[i]);

		if (own == ops[i].send)
			zero_device_copy(cuda->device, cuda->device->comm_stream, output(&ops[i]),
					 own, ops[i].count * zero_core->dtype_size(ops[i].to));
	}
	return ZERO_OK;
}
