/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct zero_comm_ops of ranks with GPUs, for the queue that backends share: operations are
 * enqueued on the communication stream in the order of the program. The caller's stream waits for
 * that stream; the host does not. Where ranks agree they do so through the control plane.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_comm.h"

/* ---- order of a submission on the device ----------------------------------------------------- */

static void cuda_device_order_begin(struct zero_comm *comm, struct zero_device_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_device_enter(cuda->device);
	order->before = zero_event_record(cuda->device, cuda->device->compute_stream);
	zero_device_leave(cuda->device);
}

static zero_status cuda_device_order_join(struct zero_comm *comm,
					  const struct zero_device_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_device_enter(cuda->device);
	zero_stream_wait(cuda->device, cuda->device->compute_stream, order->after);
	zero_device_leave(cuda->device);
	return zero_device_error(cuda->device);
}

static void cuda_device_order_free(struct zero_comm *comm, struct zero_device_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_event_put(cuda->device, order->before);
	zero_event_put(cuda->device, order->after);
	*order = (struct zero_device_order){0};
}

static void cuda_wait(struct zero_comm *comm, bool begins)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	if (!cuda->first->comm.metered)
		return;
	zero_device_enter(cuda->device);
	(begins ? zero_wait_begins : zero_wait_ends)(cuda->device);
	zero_device_leave(cuda->device);
}

static struct zero_spent cuda_spent(struct zero_comm *comm)
{
	struct zero_device *device = zero_cuda_of(comm)->device;
	struct zero_spent spent;

	zero_device_enter(device);
	spent = zero_wait_times(device);
	zero_device_leave(device);
	return spent;
}

static uint32_t cuda_device_reached(const struct zero_comm *comm)
{
	const struct zero_device *device = ((const struct zero_cuda_comm *)comm)->device;

	return device->reached ? atomic_load(device->reached) : 0;
}

/* ---- gather buffers -------------------------------------------------------------------------- */

static bool is_buffer(const struct zero_op *op)
{
	return op->kind == ZERO_OP_ALLOC && op->memory == ZERO_MEM_GATHERED;
}

/* Gives a gather buffer its memory on this rank; it is registered when all ranks have theirs. */
static zero_status take_output(struct zero_cuda_comm *cuda, const struct zero_op *op, bool fresh)
{
	struct zero_cuda_comm *first = cuda->first;
	struct zero_device_gather_buffer *buffer = zero_gather_buffer_at(&first->buffers, op->recv);
	zero_status status =
		zero_gather_buffer_acquire(op->own ? first->own_slots : cuda->slots, buffer, fresh);

	*op->shared = (struct zero_shared){.bytes = op->count, .kind = op->memory};
	if (status)
		return status;
	op->shared->data = op->recv;
	op->shared->base = zero_gather_buffer_base(buffer);
	op->shared->owner = buffer;
	return ZERO_OK;
}

static zero_status make_buffer(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	struct zero_shared *shared = op->shared;

	if (is_buffer(op))
		return take_output(cuda, op, false);
	*shared = (struct zero_shared){.bytes = op->count, .kind = op->memory};
	return zero_memory_alloc(cuda->memory, op->memory, op->count, op->zeroed,
				 cuda->device->comm_stream, (void **)&shared->data);
}

static void free_buffers(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		if (shared->owner)
			zero_gather_buffer_release(shared->owner);
		else
			zero_memory_free(cuda->memory, shared->data, cuda->device->comm_stream);
		*shared = (struct zero_shared){0};
	}
}

/* Returns a hash of the slots that this rank has chosen. */
static uint64_t choice_of(const struct zero_op *ops, size_t count)
{
	uint64_t choice = 0;

	for (size_t i = 0; i < count; i++)
		if (is_buffer(&ops[i]) && ops[i].shared->owner && !ops[i].own)
			choice = choice * UINT64_C(0x9e3779b97f4a7c15) +
				 zero_gather_buffer_slot(ops[i].shared->owner) + 1;
	return choice;
}

/* COLLECTIVE. The ranks chose different slots, so all of them make new ones. */
static zero_status renew_buffers(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				 size_t count)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (!is_buffer(&ops[i]) || ops[i].own || !zero_gather_buffer_slot(shared->owner))
			continue;
		zero_gather_buffer_release(shared->owner);
		status = take_output(cuda, &ops[i], true);
	}
	return cuda->comm.agree_status(&cuda->comm, status);
}

static zero_status register_buffers(const struct zero_op *ops, size_t count)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < count; i++)
		if (is_buffer(&ops[i]))
			status = zero_gather_buffer_register(ops[i].shared->owner);
	return status;
}

/* ---- operations ------------------------------------------------------------------------------ */

static zero_status cuda_begin(struct zero_comm *comm, const struct zero_op *ops, size_t count)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);
	zero_status status = zero_device_error(cuda->device);

	if (!status)
		zero_device_has_lost_peer(cuda->device, &status);
	zero_device_enter(cuda->device);
	for (size_t i = 0; i < count; i++) {
		zero_status one = ZERO_OK;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		*ops[i].shared = (struct zero_shared){0};
		if (!status)
			one = make_buffer(cuda, &ops[i]);
		status = status ? status : one;
	}
	if (!status)
		status = zero_cuda_reserve_pinned(cuda, ops, count);
	comm->choice = choice_of(ops, count);
	zero_device_leave(cuda->device);
	return status;
}

/* Operations up to the first that is no reduce, but for what they free; 0 without a reduce. */
static size_t count_reduces(const struct zero_op *ops, size_t count)
{
	size_t end = 0, reduces = 0;

	for (; end < count; end++)
		if (ops[end].kind == ZERO_OP_REDUCE_SCATTER)
			reduces++;
		else if (ops[end].kind != ZERO_OP_FREE)
			break;
	return reduces ? end : 0;
}

static bool have_payload(const struct zero_op *ops, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (zero_op_is_payload(&ops[i]))
			return true;
	return false;
}

static void follow(struct zero_device *device, CUstream stream, CUstream other)
{
	struct zero_event *event = zero_event_record(device, other);

	zero_stream_wait(device, stream, event);
	zero_event_put(device, event);
}

/*
 * Reduces, which come first, are on a stream of their own, and all else is on the communication
 * stream. With teams each submission follows the one before it, on either stream: devices then
 * cannot wait for each other in different orders. So does one without operations, which is how the
 * program waits for all that was begun, see zero_nccl_comm.
 */
static zero_status run_on_streams(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				  size_t count, struct zero_device_order *order)
{
	struct zero_device *device = cuda->device;
	size_t reduces = count_reduces(ops, count);
	bool teams = cuda->first->comm.team_comms;
	zero_status status = ZERO_OK;

	if (reduces) {
		zero_stream_wait(device, device->reduce_stream, order->before);
		if (teams)
			follow(device, device->reduce_stream, device->comm_stream);
		status = zero_cuda_run_operations(cuda, ops, reduces);
		if (!teams && !have_payload(ops + reduces, count - reduces)) {
			order->after = zero_event_record(device, device->reduce_stream);
			return status;
		}
		follow(device, device->comm_stream, device->reduce_stream);
	}
	if (!count)
		follow(device, device->comm_stream, device->reduce_stream);
	if (!status)
		status = zero_cuda_run_operations(cuda, ops + reduces, count - reduces);
	/* With one team they cannot either. */
	if (count && teams)
		order->mark = zero_device_mark(device);
	order->after = zero_event_record(device, device->comm_stream);
	return status;
}

static zero_status cuda_run(struct zero_comm *comm, const struct zero_op *ops, size_t count,
			    zero_status status, struct zero_device_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);
	struct zero_device *device = cuda->device;

	zero_device_enter(device);
	if (!count_reduces(ops, count))
		zero_stream_wait(device, device->comm_stream, order->before);
	if (!status && !comm->choices_equal)
		status = renew_buffers(cuda, ops, count);
	if (status) {
		free_buffers(cuda, ops, count);
	} else {
		status = register_buffers(ops, count);
		if (!status)
			status = run_on_streams(cuda, ops, count, order);
	}
	zero_cuda_free_pinned(cuda);
	zero_device_leave(device);
	if (cuda->first != cuda) {
		cuda->first->comm.bytes_sent += atomic_exchange(&comm->bytes_sent, 0);
		cuda->first->comm.collectives += atomic_exchange(&comm->collectives, 0);
	}
	return status;
}

static void cuda_fail_all(struct zero_comm *comm, const char *text)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_net->fail_all(cuda->net, ZERO_E_COMM, cuda->first->comm.place.rank, text);
}

static void cuda_abandon(struct zero_comm *comm)
{
	zero_nccl_watchdog_abort(zero_cuda_of(comm)->watchdog);
}

static void cuda_free(struct zero_comm *comm, void *data, const struct zero_device_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_device_enter(cuda->device);
	/* If nothing was run, the stream has not waited for the caller's yet. */
	zero_stream_wait(cuda->device, cuda->device->reduce_stream,
			 order->after ? order->after : order->before);
	zero_memory_free(cuda->memory, data, cuda->device->reduce_stream);
	zero_device_leave(cuda->device);
}

/* NCCL does not say which of its ways it took; without windows it has no copy engines. */
static const char *cuda_gathers(const struct zero_comm *comm)
{
	const struct zero_cuda_comm *cuda = (const struct zero_cuda_comm *)(const void *)comm;

	if (cuda->comm.place.world == 1)
		return "copies on the device";
	if (!cuda->symmetric)
		return "kernels, registered buffers";
	return cuda->copy_engines && zero_nccl.version >= ZERO_NCCL_CTA_SINCE
		       ? "copy engines, symmetric windows"
		       : "kernels, symmetric windows";
}

/* ---- tables ---------------------------------------------------------------------------------- */

const struct zero_comm_ops zero_cuda_comm_ops = {
	.close = zero_cuda_team_close,
	.begin = cuda_begin,
	.run = cuda_run,
	.fail_all = cuda_fail_all,
	.gathers = cuda_gathers,
	.abandon = cuda_abandon,
	.free = cuda_free,
	.begin_max = zero_net_comm_begin_max,
	.finish_max = zero_net_comm_finish_max,
	.allgather = zero_net_comm_allgather,
	.broadcast = zero_net_comm_broadcast,
	.device_order_begin = cuda_device_order_begin,
	.device_order_join = cuda_device_order_join,
	.device_order_free = cuda_device_order_free,
	.wait = cuda_wait,
	.spent = cuda_spent,
	.device_reached = cuda_device_reached,
};

/* One rank has no control plane. */
const struct zero_comm_ops zero_cuda_single_rank_ops = {
	.close = zero_cuda_team_close,
	.gathers = cuda_gathers,
	.begin = cuda_begin,
	.run = cuda_run,
	.free = cuda_free,
	.device_order_begin = cuda_device_order_begin,
	.device_order_join = cuda_device_order_join,
	.device_order_free = cuda_device_order_free,
};
