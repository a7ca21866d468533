/* SPDX-License-Identifier: Apache-2.0 */
/* Any rank sends to any, as one group of NCCL: in several, a rank could wait in one of its own for
   what another rank sends in its next. */
#include "gpu_comm.h"

static zero_status begin_transfer(struct zero_cuda_comm *cuda, const struct zero_transfer *transfer,
				  size_t size, bool sends)
{
	cudaStream_t stream = (cudaStream_t)cuda->device->comm_stream;
	size_t bytes = transfer->count * size;

	if (!sends)
		return zero_nccl_status(zero_nccl.recv(transfer->data, bytes, ncclInt8,
						       transfer->rank, cuda->nccl.comm, stream),
					"ncclRecv", cuda->nccl.comm);
	cuda->comm.bytes_sent += bytes;
	return zero_nccl_status(zero_nccl.send(transfer->data, bytes, ncclInt8, transfer->rank,
					       cuda->nccl.comm, stream),
				"ncclSend", cuda->nccl.comm);
}

static void copy_to_self(struct zero_cuda_comm *cuda, const struct zero_op *op, size_t size)
{
	int self = cuda->comm.place.rank;
	size_t r = 0;

	for (size_t s = 0; s < op->send_count; s++) {
		if (op->sends[s].rank != self)
			continue;
		while (op->receives[r].rank != self)
			r++;
		zero_device_copy(cuda->device, cuda->device->comm_stream, op->receives[r++].data,
				 op->sends[s].data, op->sends[s].count * size);
	}
}

zero_status zero_cuda_all_to_all(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	size_t size = zero_core->dtype_size(op->from);
	int self = cuda->comm.place.rank;
	zero_status status = ZERO_OK;

	if (cuda->comm.place.world > 1) {
		status = zero_nccl_group_begin(&cuda->nccl);
		if (status)
			return status;
		for (size_t i = 0; !status && i < op->send_count; i++)
			if (op->sends[i].rank != self)
				status = begin_transfer(cuda, &op->sends[i], size, true);
		for (size_t i = 0; !status && i < op->receive_count; i++)
			if (op->receives[i].rank != self)
				status = begin_transfer(cuda, &op->receives[i], size, false);
		status = zero_nccl_group_end(&cuda->nccl, status);
	}
	if (!status)
		copy_to_self(cuda, op, size);
	return status;
}
