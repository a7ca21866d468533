/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZERO_OP_ALLOC of a buffer that no other rank shares: a block of the pool. An output with an address
 * of its own is a block that is mapped there too. Without memfd it is fresh memory at each gather,
 * which has only that address.
 */
#include "host.h"

static zero_status map_fresh(struct zero_pool *pool, const struct zero_op *op)
{
	struct zero_shared *shared = op->shared;
	zero_status status = zero_pool_count(pool, shared->kind, shared->bytes);

	if (status)
		return status;
	status = zero_outputs_map(zero_pool_outputs(pool), op->recv, NULL, -1, 0);
	if (status)
		zero_pool_uncount(pool, shared->kind, shared->bytes);
	else
		shared->data = op->recv;
	return status;
}

zero_status zero_own_buffer_alloc(struct zero_pool *pool, const struct zero_op *op)
{
	struct zero_outputs *outputs = zero_pool_outputs(pool);
	struct zero_shared *shared = op->shared;
	zero_status status;
	const void *last;
	void *block;
	size_t at;
	int file;

	*shared = (struct zero_shared){.bytes = op->count, .kind = op->memory};
	if (op->recv && !zero_pool_has_file(pool))
		return map_fresh(pool, op);
	last = op->recv ? zero_outputs_base(outputs, op->recv) : NULL;
	status = zero_pool_alloc(pool, op->memory, op->count, op->zeroed, last, &block);
	if (status)
		return status;
	if (op->recv) {
		zero_pool_file(pool, block, &file, &at);
		status = zero_outputs_map(outputs, op->recv, block, file, at);
	}
	if (status) {
		zero_pool_free(pool, block);
		return status;
	}
	shared->base = block;
	shared->data = op->recv ? op->recv : block;
	return ZERO_OK;
}

void zero_own_buffer_free(struct zero_pool *pool, struct zero_shared *shared)
{
	if (shared->data && zero_outputs_revoke(zero_pool_outputs(pool), shared->data) &&
	    !shared->base)
		zero_pool_uncount(pool, shared->kind, shared->bytes);
	zero_pool_free(pool, shared->base);
	*shared = (struct zero_shared){0};
}
