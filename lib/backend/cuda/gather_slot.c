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

enum { HANDLE_FABRIC = 8 }; /* CU_MEM_HANDLE_TYPE_FABRIC, which older headers lack */

struct zero_slot {
	CUmemGenericAllocationHandle physical;
	char *base;
	size_t bytes;
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
	bool agreed; /* all ranks have that slot there */
};

/* ---- addresses ------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
	const struct zero_device_gather_buffer *x = a, *y = b;

	return (x->address > y->address) - (x->address < y->address);
}

static CUmemAllocationProp physical_props(const struct zero_device *device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		/* NCCL gives it to the other ranks of the node, or of a rack with NVLink. */
		.requestedHandleTypes =
			device->fabric ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | HANDLE_FABRIC
				       : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device->id},
		.allocFlags.gpuDirectRDMACapable = device->gpu_direct != 0,
	};
}

static zero_status round_up(const struct zero_device *device, size_t *bytes)
{
	CUmemAllocationProp props = physical_props(device);
	size_t grain = 0;
	zero_status status;

	status = zero_driver_status(
		zero_driver.granularity(&grain, &props, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
		"cuMemGetAllocationGranularity");
	if (!status)
		*bytes = (*bytes + grain - 1) / grain * grain;
	return status;
}

static zero_status reserve(size_t bytes, char **address)
{
	CUdeviceptr data = 0;
	zero_status status = zero_driver_status(zero_driver.address_reserve(&data, bytes, 0, 0, 0),
						"cuMemAddressReserve");

	*address = (char *)(uintptr_t)data;
	return status;
}

static zero_status map(const struct zero_device *device, char *address, size_t bytes,
		       CUmemGenericAllocationHandle physical)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device->id},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUdeviceptr data = (CUdeviceptr)(uintptr_t)address;
	zero_status status =
		zero_driver_status(zero_driver.map(data, bytes, 0, physical, 0), "cuMemMap");

	if (status)
		return status;
	status = zero_driver_status(zero_driver.set_access(data, bytes, &access, 1),
				    "cuMemSetAccess");
	if (status)
		zero_driver.unmap(data, bytes);
	return status;
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
	status = round_up(device, &buffer->bytes);
	if (!status)
		status = reserve(buffer->bytes, &buffer->address);
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
	if (slot->base) {
		zero_driver.unmap((CUdeviceptr)(uintptr_t)slot->base, slot->bytes);
		zero_driver.address_free((CUdeviceptr)(uintptr_t)slot->base, slot->bytes);
	}
	if (slot->physical)
		zero_driver.physical_delete(slot->physical);
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

static CUresult create(struct zero_slots *slots, struct zero_slot *slot)
{
	CUmemAllocationProp props = physical_props(slots->device);

	return zero_driver.physical_new(&slot->physical, slot->bytes, &props, 0);
}

/* If there is no memory, freed memory that the pool still has goes back to the driver first. A
   process without a channel of IMEX may give memory to its own node alone, as for ncclMemAlloc. */
static zero_status alloc_physical(struct zero_slots *slots, struct zero_slot *slot)
{
	CUresult result = create(slots, slot);

	if (slots->device->fabric &&
	    (result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_SUPPORTED)) {
		slots->device->fabric = 0;
		result = create(slots, slot);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		zero_memory_trim(slots->memory);
		result = create(slots, slot);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return zero_memory_error(ZERO_MEM_GATHERED, slot->bytes);
	return zero_driver_status(result, "cuMemCreate");
}

static zero_status new_slot(struct zero_slots *slots, size_t bytes, struct zero_slot **made)
{
	struct zero_slot *slot = calloc(1, sizeof(*slot));
	zero_status status;

	if (!slot)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a gather buffer");
	slot->slots = slots;
	slot->bytes = bytes;
	status = alloc_physical(slots, slot);
	if (!status)
		status = reserve(bytes, &slot->base);
	if (!status) {
		status = map(slots->device, slot->base, bytes, slot->physical);
		if (status) {
			zero_driver.address_free((CUdeviceptr)(uintptr_t)slot->base, bytes);
			slot->base = NULL;
		}
	}
	if (status)
		delete_slot(slot);
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
		if (!slot->held && slot->bytes >= buffer->bytes &&
		    (!best || slot->bytes < best->bytes))
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
	if (buffer->slot) {
		status = zero_device_wait(device, zero_device_record(device));
		if (status)
			return status;
		unmap(buffer);
	}
	status = map(device, buffer->address, buffer->bytes, slot->physical);
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
	zero_status status = zero_memory_count(slot->slots->memory, ZERO_MEM_GATHERED, slot->bytes);

	if (status)
		return status;
	status = remap(buffer, slot);
	buffer->held = !status;
	if (status)
		zero_memory_uncount(slot->slots->memory, ZERO_MEM_GATHERED, slot->bytes);
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
	zero_memory_uncount(slot->slots->memory, ZERO_MEM_GATHERED, slot->bytes);
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
	return zero_nccl_register(slots->nccl, slot->base, slot->bytes, slots->symmetric,
				  &slot->registration);
}

uint64_t zero_gather_buffer_slot(const struct zero_device_gather_buffer *buffer)
{
	return buffer->slot->number;
}

char *zero_gather_buffer_base(const struct zero_device_gather_buffer *buffer)
{
	return buffer->slot->base;
}
