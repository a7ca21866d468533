/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory of the device that NCCL gives to other ranks, mapped at an address of its own. */
#include "gpu.h"

enum { HANDLE_FABRIC = 8 }; /* CU_MEM_HANDLE_TYPE_FABRIC, which older headers lack */

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

zero_status zero_window_round_up(const struct zero_device *device, size_t *bytes)
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

zero_status zero_window_reserve(size_t bytes, char **address)
{
	CUdeviceptr data = 0;
	zero_status status = zero_driver_status(zero_driver.address_reserve(&data, bytes, 0, 0, 0),
						"cuMemAddressReserve");

	*address = (char *)(uintptr_t)data;
	return status;
}

zero_status zero_window_map(const struct zero_device *device, char *address, size_t bytes,
			    const struct zero_window *window)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device->id},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUdeviceptr data = (CUdeviceptr)(uintptr_t)address;
	zero_status status = zero_driver_status(
		zero_driver.map(data, bytes, 0, window->physical, 0), "cuMemMap");

	if (status)
		return status;
	status = zero_driver_status(zero_driver.set_access(data, bytes, &access, 1),
				    "cuMemSetAccess");
	if (status)
		zero_driver.unmap(data, bytes);
	return status;
}

void zero_window_delete(struct zero_window *window)
{
	if (window->base) {
		zero_driver.unmap((CUdeviceptr)(uintptr_t)window->base, window->bytes);
		zero_driver.address_free((CUdeviceptr)(uintptr_t)window->base, window->bytes);
	}
	if (window->physical)
		zero_driver.physical_delete(window->physical);
	*window = (struct zero_window){0};
}

static CUresult create(const struct zero_device *device, struct zero_window *window)
{
	CUmemAllocationProp props = physical_props(device);

	return zero_driver.physical_new(&window->physical, window->bytes, &props, 0);
}

/* If there is no memory, freed memory that the pool still has goes back to the driver first. A
   process without a channel of IMEX may give memory to its own node alone, as for ncclMemAlloc. */
static zero_status alloc_physical(struct zero_device *device, struct zero_memory_pool *memory,
				  enum zero_memory_kind kind, struct zero_window *window)
{
	CUresult result = create(device, window);

	if (device->fabric &&
	    (result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_SUPPORTED)) {
		device->fabric = 0;
		result = create(device, window);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		zero_memory_trim(memory);
		result = create(device, window);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return zero_memory_error(kind, window->bytes);
	return zero_driver_status(result, "cuMemCreate");
}

zero_status zero_window_new(struct zero_device *device, struct zero_memory_pool *memory,
			    enum zero_memory_kind kind, size_t bytes, struct zero_window *window)
{
	zero_status status;

	*window = (struct zero_window){.bytes = bytes};
	status = zero_window_round_up(device, &window->bytes);
	if (!status)
		status = alloc_physical(device, memory, kind, window);
	if (!status)
		status = zero_window_reserve(window->bytes, &window->base);
	if (!status) {
		status = zero_window_map(device, window->base, window->bytes, window);
		if (status) {
			zero_driver.address_free((CUdeviceptr)(uintptr_t)window->base,
						 window->bytes);
			window->base = NULL;
		}
	}
	if (status)
		zero_window_delete(window);
	return status;
}
