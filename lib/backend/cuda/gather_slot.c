/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that groups are gathered into. A gather buffer, a flat buffer gathered as one type,
 * has the same address from its reservation to the end, so that what the program keeps of it stays
 * right: views, saved tensors, captured graphs. Physical memory is in slots, of which there are as
 * many as gather buffers were ever gathered at a time. A slot is mapped at the address of each
 * gather buffer that uses it, and at a base address of its own, which NCCL has registered and
 * writes to. NCCL then copies straight into it, with copy engines where it can (symmetric windows
 * since NCCL 2.27, zero-CTA policy since 2.28, registered buffers before).
 *
 * The ranks must gather into the same slot. A gather buffer gets its slot when it is gathered
 * first, which the ranks agree on: each chooses an idle slot, and if the choices differ all make a
 * new one. Slots are numbered in the order of their registration, which is collective. From then on
 * the gather buffer has this slot, and nothing is allocated, mapped or agreed on. Only if another
 * gather buffer holds the slot, in a program that gathers in another pattern than before, the
 * gather buffer gets another one.
 */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_comm.h"

struct zero_slot {
	struct zero_window window;
	void *registration; /* NCCL's */
	uint64_t number;    /* of its registration, the same on all ranks; 0: not registered */
	void *held;         /* address of the gather buffer that has it now; NULL: it is idle */
	struct zero_slots *slots;
	struct zero_slot *next; /* in the order of their numbers */
};

struct zero_slots {
	struct zero_nccl_comm *nccl; /* NULL: of one rank alone */
	struct zero_device *device;
	struct zero_memory_pool *memory;
	pthread_mutex_t lock;
	struct zero_slot *first;
	uint64_t registered;
	bool symmetric; /* else registered buffers */
};

struct zero_device_gather_buffer {
	char *address;
	size_t bytes;           /* that are reserved */
	struct zero_slot *slot; /* mapped there; NULL: none */
	bool held;
	bool captured; /* a graph reads it, and writes to the base of its slot */
	bool agreed;   /* all ranks have that slot there */
};

/* ---- addresses ------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
	const struct zero_device_gather_buffer *x = a, *y = b;

	return (x->address > y->address) - (x->address < y->address);
}

zero_status zero_gather_buffer_new(struct zero_device *device, size_t bytes, void **buffers,
				   void **address)
{
	struct zero_device_gather_buffer *buffer = calloc(1, sizeof(*buffer));
	zero_status status = ZERO_OK;

	*address = NULL;
	if (!buffer)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a gather buffer");
	buffer->bytes = bytes;
	status = zero_window_round_up(device, &buffer->bytes);
	if (!status)
		status = zero_window_reserve(buffer->bytes, &buffer->address);
	if (status) {
		free(buffer);
		return status;
	}
	if (!tsearch(buffer, buffers, by_address)) {
		zero_gather_buffer_delete(buffer, buffers);
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a gather buffer");
	}
	*address = buffer->address;
	return ZERO_OK;
}

struct zero_device_gather_buffer *zero_gather_buffer_at(void *const *buffers, const void *address)
{
	struct zero_device_gather_buffer key = {.address = (char *)(uintptr_t)address};
	void *node = tfind(&key, buffers, by_address);

	return node ? *(struct zero_device_gather_buffer **)node : NULL;
}

static void unmap(struct zero_device_gather_buffer *buffer)
{
	if (buffer->slot)
		zero_driver.unmap((CUdeviceptr)(uintptr_t)buffer->address, buffer->bytes);
	buffer->slot = NULL;
}

void zero_gather_buffer_delete(struct zero_device_gather_buffer *buffer, void **buffers)
{
	tdelete(buffer, buffers, by_address);
	unmap(buffer);
	zero_driver.address_free((CUdeviceptr)(uintptr_t)buffer->address, buffer->bytes);
	free(buffer);
}

void zero_gather_buffers_delete(void **buffers)
{
	while (*buffers)
		zero_gather_buffer_delete(*(struct zero_device_gather_buffer **)*buffers, buffers);
}

/* ---- slots ----------------------------------------------------------------------------------- */

zero_status zero_slots_new(struct zero_nccl_comm *nccl, struct zero_device *device,
			   struct zero_memory_pool *memory, bool symmetric,
			   struct zero_slots **made)
{
	struct zero_slots *slots = calloc(1, sizeof(*slots));

	if (!slots)
		return zero_core->fail(ZERO_E_COMM, "no memory for gather buffers");
	slots->nccl = nccl;
	slots->device = device;
	slots->memory = memory;
	slots->symmetric = symmetric;
	pthread_mutex_init(&slots->lock, NULL);
	*made = slots;
	return ZERO_OK;
}

static void delete_slot(struct zero_slot *slot)
{
	struct zero_slots *slots = slot->slots;

	if (slot->registration)
		zero_nccl_deregister(slots->nccl, slot->registration, slots->symmetric);
	zero_window_delete(&slot->window);
	free(slot);
}

void zero_slots_delete(struct zero_slots *slots)
{
	if (!slots)
		return;
	while (slots->first && !slots->device->hung) {
		struct zero_slot *slot = slots->first;

		slots->first = slot->next;
		delete_slot(slot);
	}
	pthread_mutex_destroy(&slots->lock);
	free(slots);
}

static zero_status new_slot(struct zero_slots *slots, size_t bytes, struct zero_slot **made)
{
	struct zero_slot *slot = calloc(1, sizeof(*slot));
	zero_status status;

	if (!slot)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a gather buffer");
	slot->slots = slots;
	status = zero_window_new(slots->device, slots->memory, ZERO_MEM_GATHERED, bytes,
				 &slot->window);
	if (status)
		free(slot);
	else
		*made = slot;
	return status;
}

/* Returns the smallest idle slot that is large enough, of equal ones the first, and holds it. */
static struct zero_slot *hold_idle(struct zero_slots *slots,
				   const struct zero_device_gather_buffer *buffer)
{
	struct zero_slot *best = NULL;

	pthread_mutex_lock(&slots->lock);
	for (struct zero_slot *slot = slots->first; slot; slot = slot->next)
		if (!slot->held && slot->window.bytes >= buffer->bytes &&
		    (!best || slot->window.bytes < best->window.bytes))
			best = slot;
	if (best)
		best->held = buffer->address;
	pthread_mutex_unlock(&slots->lock);
	return best;
}

static void make_idle(struct zero_slot *slot)
{
	pthread_mutex_lock(&slot->slots->lock);
	slot->held = NULL;
	pthread_mutex_unlock(&slot->slots->lock);
}

/* The device may still read what was gathered at this address before. */
static zero_status remap(struct zero_device_gather_buffer *buffer, struct zero_slot *slot)
{
	struct zero_device *device = slot->slots->device;
	zero_status status = ZERO_OK;

	if (buffer->slot == slot)
		return ZERO_OK;
	if (buffer->captured)
		return zero_core->fail(ZERO_E_STATE,
				       "a group is gathered beside others than when its gather was "
				       "captured, so that it would need other memory than the "
				       "graph's: release what is gathered first, or capture again "
				       "in a new job");
	if (buffer->slot) {
		status = zero_device_wait(device, zero_device_record(device));
		if (status)
			return status;
		unmap(buffer);
	}
	status = zero_window_map(device, buffer->address, buffer->bytes, &slot->window);
	if (!status)
		buffer->slot = slot;
	return status;
}

/* A slot that is not registered is unknown to the other ranks, and is freed. */
static void give_back(struct zero_slot *slot)
{
	if (slot->number)
		make_idle(slot);
	else
		delete_slot(slot);
}

/* The gather buffer holds the slot from now on. */
static zero_status hold(struct zero_device_gather_buffer *buffer, struct zero_slot *slot)
{
	zero_status status =
		zero_memory_count(slot->slots->memory, ZERO_MEM_GATHERED, slot->window.bytes);

	if (status)
		return status;
	status = remap(buffer, slot);
	buffer->held = !status;
	buffer->captured |= buffer->held && zero_device_is_capturing(slot->slots->device);
	if (status)
		zero_memory_uncount(slot->slots->memory, ZERO_MEM_GATHERED, slot->window.bytes);
	return status;
}

zero_status zero_gather_buffer_acquire(struct zero_slots *slots,
				       struct zero_device_gather_buffer *buffer, bool fresh)
{
	struct zero_slot *slot = fresh ? NULL : hold_idle(slots, buffer);
	zero_status status = ZERO_OK;

	if (!slot)
		status = new_slot(slots, buffer->bytes, &slot);
	if (status)
		return status;
	slot->held = buffer->address;
	buffer->agreed = false;
	status = hold(buffer, slot);
	if (status)
		give_back(slot);
	return status;
}

bool zero_gather_buffer_reacquire(struct zero_device_gather_buffer *buffer)
{
	struct zero_slot *slot = buffer->slot;
	bool idle;

	if (!buffer->agreed)
		return false;
	pthread_mutex_lock(&slot->slots->lock);
	idle = !slot->held;
	if (idle)
		slot->held = buffer->address;
	pthread_mutex_unlock(&slot->slots->lock);
	if (idle && hold(buffer, slot))
		make_idle(slot);
	return idle && buffer->held;
}

void *zero_gather_buffer_holder(const struct zero_device_gather_buffer *buffer)
{
	struct zero_slot *slot = buffer->slot;
	void *holder;

	if (!slot)
		return NULL;
	pthread_mutex_lock(&slot->slots->lock);
	holder = slot->held;
	pthread_mutex_unlock(&slot->slots->lock);
	return holder;
}

void zero_gather_buffer_release(struct zero_device_gather_buffer *buffer)
{
	struct zero_slot *slot = buffer->slot;
	struct zero_device *device;

	if (!buffer->held)
		return;
	device = slot->slots->device;
	buffer->held = false;
	zero_memory_uncount(slot->slots->memory, ZERO_MEM_GATHERED, slot->window.bytes);
	if (!slot->number || device->check) {
		/* Not before the device has read what it reads in time. */
		if (slot->number && zero_device_wait(device, zero_device_record(device)))
			return;
		unmap(buffer);
		buffer->agreed = false;
	}
	give_back(slot);
}

zero_status zero_gather_buffer_register(struct zero_device_gather_buffer *buffer)
{
	struct zero_slot *slot = buffer->slot, **last = &slot->slots->first;
	struct zero_slots *slots = slot->slots;

	buffer->agreed = true;
	if (slot->number)
		return ZERO_OK;
	slot->number = ++slots->registered;
	pthread_mutex_lock(&slots->lock);
	while (*last)
		last = &(*last)->next;
	*last = slot;
	pthread_mutex_unlock(&slots->lock);
	if (!slots->nccl)
		return ZERO_OK;
	return zero_nccl_register(slots->nccl, slot->window.base, slot->window.bytes,
				  slots->symmetric, &slot->registration);
}

uint64_t zero_gather_buffer_slot(const struct zero_device_gather_buffer *buffer)
{
	return buffer->slot->number;
}

char *zero_gather_buffer_base(const struct zero_device_gather_buffer *buffer)
{
	return buffer->slot->window.base;
}
