/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses and physical memory apart: a range of addresses is reserved, and memory of a handle is
 * mapped there, at any number of addresses at once. The memory is an anonymous file. Each mapping
 * is a block of its own (cuda_block.c); what is written by one is seen by all, and their accesses
 * are checked for an order together.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

/* Physical memory. It goes with the last of its references and mappings. */
struct physical {
	struct double_object object;
	CUcontext context;
	CUmemAllocationProp properties;
	int file;
	unsigned references, mappings;
	struct double_block memory; /* its data, and all accesses to it; it has no address */
};

/* Reserved addresses. They are given to nobody else afterwards, so that a late use is detected. */
struct range {
	struct double_object object;
	uintptr_t base;
	size_t bytes;
};

/* Errors of the context are returned by all calls; those that free something do it all the same. */
static CUresult enter(const char *call)
{
	CUresult result = double_enter(call, DOUBLE_INIT);
	CUcontext context = double_context_of(0);

	return !result && context ? context->fault : result;
}

static bool whole(size_t value)
{
	return value % double_settings.grain == 0;
}

static bool is_good(const CUmemAllocationProp *properties)
{
	return properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       double_context_of(properties->location.id);
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
					       CUmemAllocationGranularity_flags option)
{
	CUresult result = enter(__func__);

	if (!result && (!bytes || !is_good(properties) ||
			(option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
			 option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*bytes = double_settings.grain;
	return double_leave(result);
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* The range that the address is in, of those that were freed too; NULL: none. */
static struct range *range_of(uintptr_t at)
{
	for (struct double_object *o = double_objects(); o; o = o->next)
		if (o->kind == DOUBLE_RANGE &&
		    at - ((struct range *)o)->base < ((struct range *)o)->bytes)
			return (struct range *)o;
	return NULL;
}

void double_virtual_check(uintptr_t at, const char *call)
{
	const struct range *range = double_block_find(at) ? NULL : range_of(at);

	if (range)
		double_die("%s: %p is an address that is %s, and no memory is mapped there", call,
			   (void *)at, range->object.dead ? "freed" : "reserved");
}

static void *reserved(void *at, size_t bytes)
{
	void *map = mmap(at, bytes, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);

	if (map == MAP_FAILED)
		double_die("the host has no %zu bytes of addresses", bytes);
	return map;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *data, size_t bytes, size_t align,
				     CUdeviceptr wish, unsigned long long flags)
{
	CUresult result = enter(__func__);
	struct range *range;

	(void)wish; /* the driver may give other addresses */
	if (!result && (!data || !bytes || !whole(bytes) || align & (align - 1) || flags))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && bytes > (size_t)1 << 46)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!result) {
		if (align < double_settings.grain)
			align = double_settings.grain;
		range = double_new(1, sizeof(*range));
		double_object_add(range, DOUBLE_RANGE);
		range->bytes = bytes;
		range->base = (uintptr_t)reserved(NULL, bytes + align);
		range->base = (range->base + align - 1) / align * align;
		*data = range->base;
	}
	return double_leave(result);
}

/* The first mapping of the range [at, at + bytes); NULL: none. */
static struct double_block *mapped_in(uintptr_t at, size_t bytes)
{
	struct double_block *block = double_block_next(at);

	return block && block->base < at + bytes ? block : NULL;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr data, size_t bytes)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);
	struct range *range;

	if (!result) {
		range = range_of(data);
		if (!range || range->object.dead || range->base != data || range->bytes != bytes ||
		    mapped_in(data, bytes))
			result = CUDA_ERROR_INVALID_VALUE;
		else
			range->object.dead = true;
	}
	return double_leave(result);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A handle that was released and whose memory is mapped is no handle any more. */
static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *memory = (struct physical *)(uintptr_t)handle;

	if (handle < 4096 || handle % 8 || memory->object.kind != DOUBLE_PHYSICAL)
		return NULL;
	return memory->references ? memory : NULL;
}

static void *file_map(const struct physical *memory, void *at, size_t bytes, int access)
{
	void *map = mmap(at, bytes, access, MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0),
			 memory->file, 0);

	if (map == MAP_FAILED)
		double_die("the host has no %zu bytes", bytes);
	return map;
}

static struct physical *physical_new(size_t bytes, const CUmemAllocationProp *properties)
{
	struct physical *memory = double_new(1, sizeof(*memory));

	double_object_add(memory, DOUBLE_PHYSICAL);
	memory->context = double_context_of(properties->location.id);
	memory->context->reserved += bytes;
	memory->properties = *properties;
	memory->references = 1;
	memory->file = memfd_create("stand-in for device memory", MFD_CLOEXEC);
	if (memory->file < 0 || ftruncate(memory->file, (off_t)bytes))
		double_die("the host has no %zu bytes", bytes);
	memory->memory.bytes = bytes;
	memory->memory.data = file_map(memory, NULL, bytes, PROT_READ | PROT_WRITE);
	double_poison(memory->memory.data, bytes);
	return memory;
}

static void put(struct physical *memory)
{
	struct double_block *all = &memory->memory;

	memory->object.dead = !memory->references;
	if (memory->references || memory->mappings)
		return;
	memory->context->reserved -= all->bytes;
	munmap(all->data, all->bytes);
	close(memory->file);
	free(all->records);
	all->data = NULL;
	all->records = NULL;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
			     const CUmemAllocationProp *properties, unsigned long long flags)
{
	const char *fabric = getenv("DOUBLE_CUDA_FABRIC");
	CUresult result = enter(__func__);

	if (!result && (!handle || !bytes || !whole(bytes) || !is_good(properties) || flags))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC &&
	    (!fabric || strcmp(fabric, "yes") != 0))
		result = fabric ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_NOT_SUPPORTED;
	if (!result &&
	    (bytes > double_settings.memory ||
	     bytes > double_settings.memory - double_context_of(properties->location.id)->reserved))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!result)
		*handle = (uintptr_t)physical_new(bytes, properties);
	return double_leave(result);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);
	struct physical *memory;

	if (!result) {
		memory = physical_of(handle);
		if (memory) {
			memory->references--;
			put(memory);
		} else {
			result = CUDA_ERROR_INVALID_VALUE;
		}
	}
	return double_leave(result);
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
							CUmemGenericAllocationHandle handle)
{
	CUresult result = enter(__func__);

	if (!result && (!properties || !physical_of(handle)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*properties = physical_of(handle)->properties;
	return double_leave(result);
}

static struct physical *memory_of(struct double_block *block)
{
	return (struct physical *)((char *)block->physical - offsetof(struct physical, memory));
}

/* The handle of the memory that is mapped there, which is to be released, too. */
CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at)
{
	CUresult result = enter(__func__);
	struct double_block *block;

	if (!result) {
		block = double_block_find((uintptr_t)at);
		if (handle && block && block->physical) {
			memory_of(block)->references++;
			memory_of(block)->object.dead = false;
			*handle = (uintptr_t)memory_of(block);
		} else {
			result = CUDA_ERROR_INVALID_VALUE;
		}
	}
	return double_leave(result);
}

/* ---- mappings -------------------------------------------------------------------------------- */

static void map_new(struct physical *memory, uintptr_t at, size_t bytes)
{
	struct double_block *block = double_new(1, sizeof(*block));

	memory->mappings++;
	block->base = at;
	block->map = (void *)at;
	block->bytes = block->map_bytes = bytes;
	block->data = memory->memory.data;
	block->physical = &memory->memory;
	block->context = memory->context;
	block->state = DOUBLE_LIVE;
	double_block_add(block);
}

/* Nothing may reach the memory there before cuMemSetAccess. */
CUresult CUDAAPI cuMemMap(CUdeviceptr at, size_t bytes, size_t offset,
			  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = enter(__func__);
	struct physical *memory;
	struct range *range;

	if (!result) {
		memory = physical_of(handle);
		range = range_of(at);
		if (!memory || !range || range->object.dead || !bytes || !whole(at) ||
		    !whole(bytes) || offset || flags || bytes > memory->memory.bytes ||
		    bytes > range->bytes - (at - range->base) || mapped_in(at, bytes))
			result = CUDA_ERROR_INVALID_VALUE;
		else
			map_new(memory, at, bytes);
	}
	return double_leave(result);
}

/* Whether the bytes are whole mappings, without a gap. */
static bool whole_mappings(uintptr_t at, size_t bytes)
{
	const uintptr_t end = at + bytes;

	while (at < end) {
		struct double_block *block = double_block_find(at);

		if (!block || !block->physical || block->base != at || block->bytes > end - at)
			return false;
		at += block->bytes;
	}
	return bytes > 0;
}

/* Nothing waits for streams here, so no operation may still use the addresses. */
static void unmap(struct double_block *block)
{
	struct physical *memory = memory_of(block);

	double_block_wait(block);
	if (block->pending)
		double_die("cuMemUnmap: %p is still used by %u operations (%zu bytes)",
			   (void *)block->base, block->pending, block->bytes);
	if (block->pins)
		double_die("cuMemUnmap: %p is registered with NCCL (%zu bytes)",
			   (void *)block->base, block->bytes);
	reserved((void *)block->base, block->bytes);
	memory->mappings--;
	put(memory);
	double_block_remove(block);
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);
	struct double_block *block;

	if (!result && !whole_mappings(at, bytes))
		result = CUDA_ERROR_INVALID_VALUE;
	while (!result && (block = mapped_in(at, bytes)))
		unmap(block);
	return double_leave(result);
}

static void set_access(struct double_block *block, CUmemAccess_flags flags)
{
	int access = PROT_NONE;

	block->access = flags;
	if (!double_settings.protect && flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
		access = PROT_READ;
	if (!double_settings.protect && flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		access = PROT_READ | PROT_WRITE;
	file_map(memory_of(block), (void *)block->base, block->bytes, access);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access,
				size_t count)
{
	CUresult result = enter(__func__);
	struct double_block *block;

	if (!result && (!access || count != 1 || !whole_mappings(at, bytes) ||
			(access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
			 access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
			 access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
			!double_context_of(access->location.id)))
		result = CUDA_ERROR_INVALID_DEVICE;
	for (size_t done = 0; !result && done < bytes; done += block->bytes) {
		block = double_block_find(at + done);
		set_access(block, access->flags);
	}
	return double_leave(result);
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	const struct double_block *block = NULL;

	if (!result) {
		block = double_block_find(at);
		if (!block || block->freed)
			result = CUDA_ERROR_NOT_FOUND;
	}
	if (!result && base)
		*base = block->base;
	if (!result && bytes)
		*bytes = block->bytes;
	return double_leave(result);
}

bool double_cuda_pin(CUdeviceptr at, bool pin)
{
	struct double_block *block;

	double_lock();
	block = double_block_find(at);
	if (block)
		block->pins += pin ? 1 : -1;
	double_unlock();
	return block != NULL;
}
