/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operations do to memory: whether it is there, and whether work on the same bytes is in some
 * order. That is known from clocks (Lamport; Fidge), not from what happened to run first: work on
 * two streams has an order only by an event, or by the host having waited. What the host does to
 * pinned memory itself is not seen.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { RECORDS = 1024 };

/* An earlier access of a block. */
struct double_record {
	uintptr_t first, end; /* of the host: one memory may be at several addresses */
	uintptr_t at;
	unsigned id;
	uint64_t sequence;
	bool write;
	const char *call, *name;
};

static struct double_clock host;

void double_clock_join(struct double_clock *clock, const struct double_clock *other)
{
	for (size_t i = 0; i < DOUBLE_CLOCKS; i++)
		if (clock->at[i] < other->at[i])
			clock->at[i] = other->at[i];
}

void double_host_saw(const struct double_clock *clock)
{
	double_clock_join(&host, clock);
}

const struct double_clock *double_host_clock(void)
{
	return &host;
}

void double_access_add(struct double_op *op, void *slot, size_t count, size_t size, bool write)
{
	struct double_access *access;

	if (!count)
		return;
	if (op->access_count == op->access_size) {
		op->access_size = op->access_size ? 2 * op->access_size : 4;
		op->accesses = realloc(op->accesses, op->access_size * sizeof(*op->accesses));
		if (!op->accesses)
			double_die("the host has no memory for a list of accesses");
	}
	access = &op->accesses[op->access_count++];
	access->slot = slot;
	access->at = (uintptr_t)*access->slot;
	access->bytes = count > SIZE_MAX / size ? SIZE_MAX : count * size;
	access->align = size;
	access->write = write;
	access->block = NULL;
}

static const char *what(const struct double_op *op)
{
	return op->kernel ? op->kernel->name : "";
}

void double_access_queue(struct double_op *op, bool pending)
{
	for (size_t i = 0; i < op->access_count; i++) {
		struct double_access *access = &op->accesses[i];

		access->block = double_block_find(access->at);
		if (!access->block) {
			double_virtual_check(access->at, op->call);
			continue;
		}
		if (access->block->freed)
			double_die("%s %s: %p is in memory that was freed before (%zu bytes, the "
				   "%lluth allocated)",
				   op->call, what(op), (void *)access->at, access->block->bytes,
				   (unsigned long long)access->block->number);
		if (pending)
			access->block->pending++;
	}
}

/* After a fault no events are recorded, and nothing runs that was queued. */
static void race(const struct double_op *op, const struct double_access *access,
		 const struct double_record *before)
{
	if (op->stream && op->stream->context->fault)
		return;
	double_die(
		"%s %s %s %zu bytes at %p, and nothing puts it after %s %s, which %s %zu bytes at "
		"%p on another stream",
		op->call, what(op), access->write ? "writes" : "reads", access->bytes,
		(void *)access->at, before->call, before->name, before->write ? "writes" : "reads",
		before->end - before->first, (void *)before->at);
}

/* Records the access for later checks. It replaces older records that it is ordered after. */
static void record(struct double_op *op, struct double_access *access, struct double_block *block)
{
	const uintptr_t start = (uintptr_t)block->data + (access->at - block->base);
	const uintptr_t end = start + access->bytes;
	size_t kept = 0;

	if (block->physical)
		block = block->physical;

	for (size_t i = 0; i < block->record_count; i++) {
		const struct double_record *old = &block->records[i];
		bool after = op->clock.at[old->id] >= old->sequence;

		if (!after && old->first < end && start < old->end && (access->write || old->write))
			race(op, access, old);
		if (!after || old->first < start || old->end > end ||
		    (old->write && !access->write))
			block->records[kept++] = *old;
	}
	if (kept == RECORDS)
		memmove(block->records, block->records + 1, --kept * sizeof(*block->records));
	if (kept == block->record_size) {
		block->record_size = kept ? 2 * kept : 4;
		block->records =
			realloc(block->records, block->record_size * sizeof(*block->records));
		if (!block->records)
			double_die("the host has no memory for a list of accesses");
	}
	block->records[kept] = (struct double_record){.first = start,
						      .end = end,
						      .at = access->at,
						      .id = op->stream->id,
						      .sequence = op->sequence,
						      .write = access->write,
						      .call = op->call,
						      .name = what(op)};
	block->record_count = kept + 1;
}

bool double_block_allows(const struct double_block *block, bool write)
{
	return !block->physical || block->access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
	       (!write && block->access == CU_MEM_ACCESS_FLAGS_PROT_READ);
}

static CUresult check(struct double_op *op, struct double_access *access)
{
	struct double_block *block = double_block_find(access->at);

	if (block && block->state != DOUBLE_LIVE)
		double_die(
			"%s %s: %p is in memory that is %s in the order of the streams (%zu bytes, "
			"the %lluth allocated)",
			op->call, what(op), (void *)access->at,
			block->state == DOUBLE_GONE ? "freed" : "not yet allocated", block->bytes,
			(unsigned long long)block->number);
	if (!block || block->state != DOUBLE_LIVE ||
	    block->bytes - (access->at - block->base) < access->bytes)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	if (!double_block_allows(block, access->write))
		double_die("%s %s: %p is mapped, and the device may not %s there", op->call,
			   what(op), (void *)access->at, access->write ? "write" : "read");
	if (access->at % access->align)
		return CUDA_ERROR_MISALIGNED_ADDRESS;
	if (op->stream->id < DOUBLE_CLOCKS)
		record(op, access, block);
	if (access->slot)
		*access->slot = block->data + (access->at - block->base);
	return CUDA_SUCCESS;
}

CUresult double_access(struct double_op *op, size_t first)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = first; !result && i < op->access_count; i++)
		result = check(op, &op->accesses[i]);
	return result;
}

void double_access_done(struct double_op *op)
{
	for (size_t i = 0; i < op->access_count; i++)
		if (op->accesses[i].block)
			op->accesses[i].block->pending--;
}
