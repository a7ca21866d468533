/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of NCCL that only pass on their arguments. */
#include "nccl.h"

ncclResult_t ncclGetVersion(int *version)
{
	ncclResult_t result;

	if (trouble_in("ncclGetVersion", false, &result) == FAIL)
		return result;
	if (!version)
		return ncclInvalidArgument;
	*version = NCCL_DOUBLE_VERSION;
	return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	ncclResult_t result;

	if (trouble_in("ncclGetUniqueId", false, &result) == FAIL)
		return result;
	if (!id)
		return ncclInvalidArgument;
	return segment_new(id) ? ncclSuccess : refuse(ncclSystemError, "no shared memory");
}

const char *ncclGetErrorString(ncclResult_t result)
{
	switch (result) {
	case ncclSuccess:
		return "no error";
	case ncclUnhandledCudaError:
		return "unhandled cuda error";
	case ncclSystemError:
		return "unhandled system error";
	case ncclInternalError:
		return "internal error";
	case ncclInvalidArgument:
		return "invalid argument";
	case ncclInvalidUsage:
		return "invalid usage";
	case ncclRemoteError:
		return "remote process exited or there was a network error";
	case ncclInProgress:
		return "NCCL operation in progress";
	default:
		return "unknown result code";
	}
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
			   ncclComm_t comm, cudaStream_t stream)
{
	return submit_op(&(struct op){.kind = ALL_GATHER,
				      .comm = comm,
				      .stream = stream,
				      .send = send,
				      .recv = recv,
				      .count = count,
				      .type = type,
				      .root = -1},
			 "ncclAllGather");
}

static ncclResult_t reduce(struct op op, ncclRedOp_t reduction, const char *function)
{
	if (reduction != ncclSum)
		return refuse(ncclInvalidArgument, "%s: the stand-in only adds", function);
	return submit_op(&op, function);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
			       ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
	return reduce((struct op){.kind = REDUCE_SCATTER,
				  .comm = comm,
				  .stream = stream,
				  .send = send,
				  .recv = recv,
				  .count = count,
				  .type = type,
				  .root = -1},
		      reduction, "ncclReduceScatter");
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
			   ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
	return reduce((struct op){.kind = ALL_REDUCE,
				  .comm = comm,
				  .stream = stream,
				  .send = send,
				  .recv = recv,
				  .count = count,
				  .type = type,
				  .root = -1},
		      reduction, "ncclAllReduce");
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
			   int root, ncclComm_t comm, cudaStream_t stream)
{
	return submit_op(&(struct op){.kind = BROADCAST,
				      .comm = comm,
				      .stream = stream,
				      .send = send,
				      .recv = recv,
				      .count = count,
				      .type = type,
				      .root = root},
			 "ncclBroadcast");
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
		      ncclComm_t comm, cudaStream_t stream)
{
	return submit_op(&(struct op){.kind = SEND,
				      .comm = comm,
				      .stream = stream,
				      .send = data,
				      .count = count,
				      .type = type,
				      .root = peer},
			 "ncclSend");
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
		      cudaStream_t stream)
{
	return submit_op(&(struct op){.kind = RECV,
				      .comm = comm,
				      .stream = stream,
				      .recv = data,
				      .count = count,
				      .type = type,
				      .root = peer},
			 "ncclRecv");
}
