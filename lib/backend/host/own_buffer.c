/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZERO_OP_ALLOC of a buffer that no other rank shares: a block of the pool. For a gather buffer
 * with an address of its own the block moves there, and back when it is freed. Where the system
 * cannot move it, the gather buffer has fresh memory in each gather.
 */
#include "host.h"

static zero_status take_fresh(struct zero_pool *pool, const struct zero_op *op)
{
	struct zero_shared *shared = op->shared;
	zero_status status = zero_pool_count(pool, shared->kind, shared->bytes);

	if (status)
		return status;
	status = zero_gather_buffers_fill(zero_pool_gather_buffers(pool), op->recv);
	if (status)
		zero_pool_uncount(pool, shared->kind, shared->bytes);
	else
		shared->data = op->recv;
	return status;
}

zero_status zero_own_buffer_alloc(struct zero_pool *pool, const struct zero_op *op)
{
	struct zero_shared *shared = op->shared;
	zero_status status;
	void *block;

	*shared = (struct zero_shared){.bytes = op->count, .kind = op->memory};
	status = zero_pool_alloc(pool, op->memory, op->count, op->zeroed, &block);
	if (status)
		return status;
	if (!op->recv)
		shared->data = block;
	else if (zero_gather_buffers_move_in(zero_pool_gather_buffers(pool), op->recv, block))
		shared->data = op->recv;
	if (shared->data)
		return ZERO_OK;
	zero_pool_free(pool, block);
	return take_fresh(pool, op);
}

void zero_own_buffer_free(struct zero_pool *pool, struct zero_shared *shared)
{
	void *block;

	if (!zero_gather_buffers_unmap(zero_pool_gather_buffers(pool), shared->data, &block))
		zero_pool_free(pool, shared->data);
	else if (block)
		zero_pool_free(pool, block);
	else
		zero_pool_uncount(pool, shared->kind, shared->bytes);
	*shared = (struct zero_shared){0};
}
