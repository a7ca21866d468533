/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of one rank: each collective is a copy, or nothing. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

struct self {
	struct zero_comm comm;
	const struct zero_kernels *kernels;
	struct zero_pool *pool;
};

static void self_close(struct zero_comm *comm)
{
	zero_team_comms_close(comm);
	free(comm);
}

static zero_status self_begin(struct zero_comm *comm, const struct zero_op *ops, size_t count)
{
	const struct self *self = (const struct self *)comm;
	zero_status status = ZERO_OK;

	for (size_t i = 0; i < count; i++) {
		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		*ops[i].shared = (struct zero_shared){0};
		if (!status)
			status = zero_own_buffer_alloc(self->pool, &ops[i]);
	}
	return status;
}

static void copy(void *to, const void *from, size_t bytes)
{
	if (to != from && bytes)
		memcpy(to, from, bytes);
}

/* A team of one rank is that rank. */
static zero_status open_team(struct zero_comm *comm, const struct zero_op *op, bool member,
			     struct zero_comm **team)
{
	(void)op;
	(void)member;
	*team = comm;
	return ZERO_OK;
}

static zero_status run_op(struct self *self, const struct zero_op *op)
{
	size_t size = zero_core->dtype_size(op->from);
	void *recv = op->shared ? zero_shared_base(op->shared) + op->at : op->recv;
	const void *send = op->send;

	switch (op->kind) {
	case ZERO_OP_ALL_GATHER:
		if (op->from == op->to)
			copy(recv, send, op->count * size);
		else
			self->kernels->cast(op->to, recv, op->from, send, op->count);
		break;
	case ZERO_OP_REDUCE_SCATTER:
		if (op->accumulate || op->from != ZERO_F32)
			self->kernels->sum(recv, op->from, &send, 1, op->count, op->accumulate);
		else
			copy(recv, send, op->count * size);
		break;
	case ZERO_OP_SCATTER:
		copy(recv, send, op->count * size);
		break;
	case ZERO_OP_ALL_TO_ALL:
		zero_copy_to_self(op, 0);
		break;
	case ZERO_OP_BROADCAST:
		copy(recv, send, op->count * size);
		break;
	case ZERO_OP_ALLGATHER_BYTES:
		copy(recv, send, op->count);
		break;
	case ZERO_OP_CAST:
		self->kernels->cast(op->to, recv, op->from, send, op->count);
		break;
	case ZERO_OP_TEAM_COMM:
		return zero_team_comm_new(&self->comm, op, open_team);
	case ZERO_OP_ALLOC:
	case ZERO_OP_FREE:
		break;
	}
	return ZERO_OK;
}

static void undo(struct self *self, const struct zero_op *ops, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (ops[i].kind == ZERO_OP_ALLOC)
			zero_own_buffer_free(self->pool, ops[i].shared);
}

static zero_status self_run(struct zero_comm *comm, const struct zero_op *ops, size_t count,
			    zero_status status, struct zero_device_order *order)
{
	struct self *self = (struct self *)comm;

	(void)order;
	if (status)
		undo(self, ops, count);
	for (size_t i = 0; !status && i < count; i++) {
		comm->collectives += zero_op_is_payload(&ops[i]);
		status = run_op(self, &ops[i]);
	}
	return status;
}

static void self_free(struct zero_comm *comm, void *data, const struct zero_device_order *order)
{
	(void)order;
	zero_pool_free(((struct self *)comm)->pool, data);
}

static const struct zero_comm_ops self_ops = {
	.close = self_close,
	.begin = self_begin,
	.run = self_run,
	.free = self_free,
};

zero_status zero_comm_single(const struct zero_kernels *kernels, struct zero_pool *pool,
			     struct zero_comm **comm)
{
	struct self *self = calloc(1, sizeof(*self));

	if (!self)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a communicator");
	self->comm.ops = &self_ops;
	self->comm.place = (struct zero_rank_info){
		.world = 1, .local_world = 1, .shm_world = 1, .shm_groups = 1, .shm_world_min = 1};
	gethostname(self->comm.place.node, sizeof(self->comm.place.node) - 1);
	self->comm.threaded = true;
	self->kernels = kernels;
	self->pool = pool;
	*comm = &self->comm;
	return ZERO_OK;
}
