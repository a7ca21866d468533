/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator of ranks with GPUs, for the queue that backends share: ranks agree by the control
 * connections, and what they agreed on is put on the communication stream. The host does not wait
 * for it; the caller's stream does.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

/* ---- a submission on the device -------------------------------------------------------------- */

static void cuda_order(struct zero_comm *comm, struct zero_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_device_enter(cuda->device);
	order->before = zero_event_record(cuda->device, cuda->device->compute);
	zero_device_leave(cuda->device);
}

static zero_status cuda_join(struct zero_comm *comm, const struct zero_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_device_enter(cuda->device);
	zero_event_order(cuda->device, cuda->device->compute, order->after);
	zero_device_leave(cuda->device);
	return zero_device_error(cuda->device);
}

static void cuda_forget(struct zero_comm *comm, struct zero_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_event_put(cuda->device, order->before);
	zero_event_put(cuda->device, order->after);
	*order = (struct zero_order){0};
}

/* ---- outputs --------------------------------------------------------------------------------- */

static bool has_window(const struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	return cuda->windows && op->memory == ZERO_MEM_GATHERED;
}

/* This rank's own part; a window's registration comes when all have theirs. */
static zero_status make_output(struct zero_cuda_comm *cuda, const struct zero_op *op, bool fresh)
{
	struct zero_shared *shared = op->shared;
	struct zero_window *window;
	zero_status status;

	*shared = (struct zero_shared){.bytes = op->count, .kind = op->memory};
	if (!has_window(cuda, op))
		return zero_memory_alloc(cuda->memory, op->memory, op->count, op->zeroed,
					 cuda->device->comm, (void **)&shared->data);
	status = zero_window_make(cuda->windows, zero_whole_pages(op->count), fresh, &window);
	if (status)
		return status;
	shared->data = zero_window_data(window);
	shared->owner = window;
	return ZERO_OK;
}

static void undo(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		if (shared->owner)
			zero_window_free(shared->owner, ZERO_NO_STREAM);
		else
			zero_memory_free(cuda->memory, shared->data, cuda->device->comm);
		*shared = (struct zero_shared){0};
	}
}

/* Which windows this rank would take. */
static uint64_t choice_of(const struct zero_op *ops, size_t count)
{
	uint64_t choice = 0;

	for (size_t i = 0; i < count; i++)
		if (ops[i].kind == ZERO_OP_ALLOC && ops[i].shared->owner)
			choice = choice * UINT64_C(0x9e3779b97f4a7c15) +
				 zero_window_id(ops[i].shared->owner) + 1;
	return choice;
}

/* COLLECTIVE, where ranks chose different windows: all take new ones. */
static zero_status renew_outputs(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				 size_t count)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (ops[i].kind != ZERO_OP_ALLOC || !shared->owner ||
		    !zero_window_id(shared->owner))
			continue;
		zero_window_free(shared->owner, ZERO_NO_STREAM);
		status = make_output(cuda, &ops[i], true);
	}
	return zero_agree_status(&cuda->comm, status);
}

static zero_status register_outputs(const struct zero_op *ops, size_t count)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < count; i++)
		if (ops[i].kind == ZERO_OP_ALLOC && ops[i].shared->owner)
			status = zero_window_register(ops[i].shared->owner);
	return status;
}

static void cuda_shared_free(struct zero_comm *comm, struct zero_shared *shared)
{
	zero_window_free(shared->owner, zero_cuda_of(comm)->device->compute);
}

/* ---- running --------------------------------------------------------------------------------- */

static zero_status cuda_begin(struct zero_comm *comm, const struct zero_op *ops, size_t count)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);
	zero_status status = zero_device_error(cuda->device);

	zero_device_enter(cuda->device);
	for (size_t i = 0; i < count; i++) {
		zero_status one = ZERO_OK;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		*ops[i].shared = (struct zero_shared){0};
		if (!status)
			one = make_output(cuda, &ops[i], false);
		status = status ? status : one;
	}
	if (!status)
		status = zero_cuda_prepare(cuda, ops, count);
	comm->choice = choice_of(ops, count);
	zero_device_leave(cuda->device);
	return status;
}

static zero_status cuda_run(struct zero_comm *comm, const struct zero_op *ops, size_t count,
			    zero_status status, struct zero_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);
	struct zero_device *device = cuda->device;

	zero_device_enter(device);
	zero_event_order(device, device->comm, order->before);
	if (!status && !comm->chose_alike)
		status = renew_outputs(cuda, ops, count);
	if (status) {
		undo(cuda, ops, count);
	} else {
		status = register_outputs(ops, count);
		if (!status)
			status = zero_cuda_run(cuda, ops, count);
		/* The others are in what this rank could not begin. */
		if (status && cuda->control)
			zero_control_fail_all(cuda->control, cuda->first->comm.place.rank,
					   zero_core->last_error());
		order->after = zero_event_record(device, device->comm);
	}
	zero_device_leave(device);
	if (cuda->first != cuda) {
		cuda->first->comm.bytes_sent += atomic_exchange(&comm->bytes_sent, 0);
		cuda->first->comm.collectives += atomic_exchange(&comm->collectives, 0);
	}
	return status;
}

static void cuda_free(struct zero_comm *comm, void *data, const struct zero_order *order)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_device_enter(cuda->device);
	/* Nothing else may have been begun. */
	zero_event_order(cuda->device, cuda->device->comm, order->before);
	zero_memory_free(cuda->memory, data, cuda->device->comm);
	zero_device_leave(cuda->device);
}

/* ---- talk ------------------------------------------------------------------------------------ */

static zero_status cuda_begin_max(struct zero_comm *comm)
{
	return zero_control_begin_max(zero_cuda_of(comm)->talk, comm->agreement.mine,
				      ZERO_AGREE_VALUES);
}

static zero_status cuda_finish_max(struct zero_comm *const *comms, int count, int *index)
{
	uint64_t all[ZERO_AGREE_VALUES];
	struct zero_control_team **teams;
	zero_status status = ZERO_OK;
	size_t which = 0;

	*index = -1;
	if (!count)
		return ZERO_OK;
	teams = calloc((size_t)count, sizeof(struct zero_control_team *));
	if (!teams)
		return zero_core->fail(ZERO_E_COMM, "no memory to agree in %d teams", count);
	for (int i = 0; i < count; i++)
		teams[i] = zero_cuda_of(comms[i])->talk;
	status = zero_control_finish_max(teams, (size_t)count, &which, all);
	if (!status) {
		*index = (int)which;
		memcpy(comms[which]->agreement.all, all, sizeof(all));
	}
	free(teams);
	return status;
}

static zero_status cuda_exchange(struct zero_comm *comm, const void *send, void *recv, size_t bytes)
{
	return zero_control_exchange(zero_cuda_of(comm)->talk, send, recv, bytes);
}

static zero_status cuda_broadcast(struct zero_comm *comm, void *data, size_t bytes, int root)
{
	return zero_control_broadcast(zero_cuda_of(comm)->talk, data, bytes, root);
}

/* ---- teams ----------------------------------------------------------------------------------- */

void zero_cuda_part(struct zero_cuda_comm *cuda, struct zero_nccl_comm *nccl)
{
	char text[1024];
	int rank;

	zero_watch_remove(cuda->watch, nccl);
	if (cuda->control && nccl->device &&
	    zero_control_has_failed(cuda->control, text, sizeof(text), &rank))
		zero_nccl_abort(&nccl, 1);
}

static void team_close(struct zero_comm *comm)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	zero_cuda_part(cuda, &cuda->nccl);
	zero_cuda_drop_buffers(cuda);
	zero_windows_delete(cuda->windows);
	zero_nccl_close(&cuda->nccl, comm->broken || cuda->first->comm.broken);
	free(comm->members);
	free(comm->shown);
	free(cuda);
}

/* Where its ranks are, from what all know of all. */
static void place_team(struct zero_cuda_comm *team, const struct zero_op *op)
{
	const struct zero_cuda_comm *first = team->first;
	struct zero_place *place = &team->comm.place;
	bool one_node = true;

	*place = first->comm.place;
	place->world = place->nodes = (int)op->count;
	place->local_world = place->local_rank = 0;
	for (int i = 0; i < place->world; i++) {
		int rank = op->members[i];

		if (rank == first->comm.place.rank) {
			place->rank = i;
			place->local_rank = place->local_world;
		}
		if (first->nodes[rank] == first->nodes[first->comm.place.rank])
			place->local_world++;
		else
			one_node = false;
	}
	team->ordered =
		first->reduce == ZERO_REDUCE_AUTO ? one_node : first->reduce == ZERO_REDUCE_ORDERED;
}

static zero_status fill_team(struct zero_cuda_comm *team, struct zero_cuda_comm *first,
			     const struct zero_op *op)
{
	zero_status status;

	team->comm.ops = &zero_cuda_team_ops;
	team->comm.threaded = true;
	team->device = first->device;
	team->memory = first->memory;
	team->control = first->control;
	team->watch = first->watch;
	team->first = first;
	team->open_seconds = first->open_seconds;
	team->comm.members = calloc(op->count, sizeof(int));
	team->comm.shown = calloc(op->count, sizeof(*team->comm.shown));
	if (!team->comm.members || !team->comm.shown)
		return zero_core->fail(ZERO_E_COMM, "no memory for a team of %zu ranks", op->count);
	memcpy(team->comm.members, op->members, op->count * sizeof(int));
	place_team(team, op);
	status = zero_control_team_new(first->control, op->members, op->count, &team->talk);
	return status ? status : zero_cuda_make_staging(team);
}

/* COLLECTIVE over all ranks. */
static zero_status make_team(struct zero_comm *comm, const struct zero_op *op, bool member,
			     struct zero_comm **made)
{
	struct zero_cuda_comm *first = zero_cuda_of(comm), *team = NULL;
	zero_status status, split;

	/* A team of the only rank is that rank. */
	if (comm->place.world == 1) {
		*made = comm;
		return ZERO_OK;
	}
	team = member ? calloc(1, sizeof(*team)) : NULL;
	split = zero_nccl_split(&first->nccl, member ? 0 : -1, comm->place.rank,
				first->open_seconds, team ? &team->nccl : first->none);
	if (!member)
		return split;
	if (!team)
		return zero_core->fail(ZERO_E_COMM, "no memory for a team");
	status = fill_team(team, first, op);
	zero_watch_add(team->watch, &team->nccl);
	if (!status && first->uses_windows)
		status = zero_windows_new(&team->nccl, team->memory, first->symmetric,
					  &team->windows);
	*made = &team->comm;
	return split ? split : status;
}

zero_status zero_cuda_team_comm(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	return zero_team_comm_new(&cuda->comm, op, make_team);
}

/* ---- the table ------------------------------------------------------------------------------- */

const struct zero_comm_ops zero_cuda_team_ops = {
	.close = team_close,
	.begin = cuda_begin,
	.run = cuda_run,
	.free = cuda_free,
	.shared_free = cuda_shared_free,
	.begin_max = cuda_begin_max,
	.finish_max = cuda_finish_max,
	.exchange = cuda_exchange,
	.broadcast = cuda_broadcast,
	.order = cuda_order,
	.join = cuda_join,
	.forget = cuda_forget,
};

/* One rank talks to nobody. */
const struct zero_comm_ops zero_cuda_alone_ops = {
	.close = team_close,
	.begin = cuda_begin,
	.run = cuda_run,
	.free = cuda_free,
	.shared_free = cuda_shared_free,
	.order = cuda_order,
	.join = cuda_join,
	.forget = cuda_forget,
};
