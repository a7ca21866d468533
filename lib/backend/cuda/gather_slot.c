/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that groups are gathered into. An output, a flat buffer gathered as one type, has the
 * same address from its reservation to the end, so that what the program keeps of it stays right:
 * views, saved tensors, captured graphs. Physical memory is in slots, of which there are as many as
 * outputs were ever gathered at a time. A slot is mapped at the address of each output that uses it,
 * and at a base address of its own, which NCCL has registered and writes to. NCCL then copies
 * straight into it, with copy engines where it can (symmetric windows since NCCL 2.27, zero-CTA
 * policy since 2.28, registered buffers before).
 *
 * The ranks must gather into the same slot. An output gets its slot when it is gathered first, which
 * the ranks agree on: each chooses an idle slot, and if the choices differ all make a new one. Slots
 * are numbered in the order of their registration, which is collective. From then on the output has
 * this slot, and nothing is allocated, mapped or agreed on. Only if another output holds the slot,
 * in a program that gathers in another pattern than before, the output gets another one.
 */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_comm.h"

struct zero_slot {
	CUmemGenericAllocationHandle physical;
	char *base;
	size_t bytes;
	void *registration; /* NCCL's */
	uint64_t number;    /* of its registration, the same on all ranks; 0: not registered */
	void *held;         /* address of the output that has it now; NULL: it is idle */
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

struct zero_device_output {
	char *address;
	size_t bytes;           /* that are reserved */
	struct zero_slot *slot; /* mapped there; NULL: none */
	bool held;
	bool agreed; /* all ranks have that slot there */
};

/* ---- addresses ------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
	const struct zero_device_output *x = a, *y = b;

	return (x->address > y->address) - (x->address < y->address);
}

static CUmemAllocationProp physical_props(const struct zero_device *device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		/* NCCL gives it to the other ranks of the node. */
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
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

zero_status zero_output_new(struct zero_device *device, size_t bytes, void **outputs,
			    void **address)
{
	struct zero_device_output *output = calloc(1, sizeof(*output));
	zero_status status = ZERO_OK;

	*address = NULL;
	if (!output)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for an output");
	output->bytes = bytes;
	status = round_up(device, &output->bytes);
	if (!status)
		status = reserve(output->bytes, &output->address);
	if (status) {
		free(output);
		return status;
	}
	if (!tsearch(output, outputs, by_address)) {
		zero_output_delete(output, outputs);
		return zero_core->fail(ZERO_E_MEMORY, "no memory for an output");
	}
	*address = output->address;
	return ZERO_OK;
}

struct zero_device_output *zero_output_at(void *const *outputs, const void *address)
{
	struct zero_device_output key = {.address = (char *)(uintptr_t)address};
	void *node = tfind(&key, outputs, by_address);

	return node ? *(struct zero_device_output **)node : NULL;
}

static void unmap(struct zero_device_output *output)
{
	if (output->slot)
		zero_driver.unmap((CUdeviceptr)(uintptr_t)output->address, output->bytes);
	output->slot = NULL;
}

void zero_output_delete(struct zero_device_output *output, void **outputs)
{
	tdelete(output, outputs, by_address);
	unmap(output);
	zero_driver.address_free((CUdeviceptr)(uintptr_t)output->address, output->bytes);
	free(output);
}

void zero_outputs_delete(void **outputs)
{
	while (*outputs)
		zero_output_delete(*(struct zero_device_output **)*outputs, outputs);
}

/* ---- slots ----------------------------------------------------------------------------------- */

zero_status zero_slots_new(struct zero_nccl_comm *nccl, struct zero_device *device,
			   struct zero_memory_pool *memory, bool symmetric,
			   struct zero_slots **made)
{
	struct zero_slots *slots = calloc(1, sizeof(*slots));

	if (!slots)
		return zero_core->fail(ZERO_E_COMM, "no memory for outputs of gathers");
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

/* If there is no memory, freed memory that the pool still has goes back to the driver first. */
static zero_status alloc_physical(struct zero_slots *slots, struct zero_slot *slot)
{
	CUmemAllocationProp props = physical_props(slots->device);
	CUresult result = zero_driver.physical_new(&slot->physical, slot->bytes, &props, 0);

	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		zero_memory_trim(slots->memory);
		result = zero_driver.physical_new(&slot->physical, slot->bytes, &props, 0);
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
		return zero_core->fail(ZERO_E_MEMORY, "no memory for an output");
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
				   const struct zero_device_output *output)
{
	struct zero_slot *best = NULL;

	pthread_mutex_lock(&slots->lock);
	for (struct zero_slot *slot = slots->first; slot; slot = slot->next)
		if (!slot->held && slot->bytes >= output->bytes &&
		    (!best || slot->bytes < best->bytes))
			best = slot;
	if (best)
		best->held = output->address;
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
static zero_status remap(struct zero_device_output *output, struct zero_slot *slot)
{
	struct zero_device *device = slot->slots->device;
	zero_status status = ZERO_OK;

	if (output->slot == slot)
		return ZERO_OK;
	if (output->slot) {
		status = zero_device_wait(device, zero_device_record(device));
		if (status)
			return status;
		unmap(output);
	}
	status = map(device, output->address, output->bytes, slot->physical);
	if (!status)
		output->slot = slot;
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

/* The output holds the slot from now on. */
static zero_status hold(struct zero_device_output *output, struct zero_slot *slot)
{
	zero_status status = zero_memory_count(slot->slots->memory, ZERO_MEM_GATHERED, slot->bytes);

	if (status)
		return status;
	status = remap(output, slot);
	output->held = !status;
	if (status)
		zero_memory_uncount(slot->slots->memory, ZERO_MEM_GATHERED, slot->bytes);
	return status;
}

zero_status zero_output_take(struct zero_slots *slots, struct zero_device_output *output,
			     bool fresh)
{
	struct zero_slot *slot = fresh ? NULL : hold_idle(slots, output);
	zero_status status = ZERO_OK;

	if (!slot)
		status = new_slot(slots, output->bytes, &slot);
	if (status)
		return status;
	slot->held = output->address;
	output->agreed = false;
	status = hold(output, slot);
	if (status)
		give_back(slot);
	return status;
}

bool zero_output_retake(struct zero_device_output *output)
{
	struct zero_slot *slot = output->slot;
	bool idle;

	if (!output->agreed)
		return false;
	pthread_mutex_lock(&slot->slots->lock);
	idle = !slot->held;
	if (idle)
		slot->held = output->address;
	pthread_mutex_unlock(&slot->slots->lock);
	if (idle && hold(output, slot))
		make_idle(slot);
	return idle && output->held;
}

void *zero_output_holder(const struct zero_device_output *output)
{
	struct zero_slot *slot = output->slot;
	void *holder;

	if (!slot)
		return NULL;
	pthread_mutex_lock(&slot->slots->lock);
	holder = slot->held;
	pthread_mutex_unlock(&slot->slots->lock);
	return holder;
}

void zero_output_release(struct zero_device_output *output)
{
	struct zero_slot *slot = output->slot;

	if (!output->held)
		return;
	output->held = false;
	zero_memory_uncount(slot->slots->memory, ZERO_MEM_GATHERED, slot->bytes);
	if (!slot->number)
		unmap(output);
	give_back(slot);
}

zero_status zero_output_register(struct zero_device_output *output)
{
	struct zero_slot *slot = output->slot, **last = &slot->slots->first;
	struct zero_slots *slots = slot->slots;

	output->agreed = true;
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

uint64_t zero_output_slot(const struct zero_device_output *output)
{
	return output->slot->number;
}

char *zero_output_base(const struct zero_device_output *output)
{
	return output->slot->base;
}
