/* SPDX-License-Identifier: Apache-2.0 */
/* struct zero_backend_ops of the CUDA backend. Most functions enter the device and call another
   file. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_comm.h"

const struct zero_core *zero_core;

struct zero_backend {
	struct zero_cuda_comm *comm;
	struct zero_device *device;
	struct zero_memory_pool *memory;
	struct zero_nccl_comm caller; /* made at the first zero_nccl_comm */
	size_t sharing;               /* ranks that have the same GPU */
	double *parts; /* of a squared norm, and one more; few, and therefore in host memory */
	struct zero_cublas *cublas; /* NULL: not opened yet */
	char nccl_path[PATH_MAX];
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool cuda_available(void)
{
	zero_status status = zero_driver_open();
	int count = 0;

	if (!status)
		status = zero_driver_status(zero_driver.device_count(&count), "cuDeviceGetCount");
	if (!status && !count)
		zero_core->fail(ZERO_E_UNSUPPORTED, "this process sees no GPU");
	return !status && count;
}

static void cuda_close(struct zero_backend *cuda)
{
	if (cuda->device)
		zero_device_enter(cuda->device);
	if (cuda->comm && cuda->caller.device) {
		zero_nccl_watchdog_remove(cuda->comm->watchdog, &cuda->caller);
		zero_nccl_close(&cuda->caller, cuda->comm->comm.broken);
	}
	if (cuda->device) {
		zero_cublas_close(cuda->cublas);
		zero_memory_free(cuda->memory, cuda->parts, cuda->device->compute_stream);
		zero_device_leave(cuda->device);
	}
	if (cuda->comm)
		zero_cuda_close(cuda->comm);
	free(cuda);
}

static zero_status cuda_alloc(struct zero_backend *cuda, enum zero_memory_kind kind, size_t bytes,
			      bool zeroed, void **data)
{
	zero_status status;

	zero_device_enter(cuda->device);
	status = zero_memory_alloc(cuda->memory, kind, bytes, zeroed, cuda->device->compute_stream,
				   data);
	zero_device_leave(cuda->device);
	return status;
}

static zero_status cuda_open(const struct zero_backend_config *config,
			     struct zero_backend **backend, struct zero_comm **comm)
{
	struct zero_backend *cuda = calloc(1, sizeof(*cuda));
	zero_status status;

	if (!cuda)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the cuda backend");
	strncpy(cuda->nccl_path, config->nccl, sizeof(cuda->nccl_path) - 1);
	status = zero_cuda_open(config, &cuda->comm, &cuda->sharing);
	if (!cuda->comm) {
		cuda_close(cuda);
		return status;
	}
	cuda->device = cuda->comm->device;
	cuda->memory = cuda->comm->memory;
	*backend = cuda;
	*comm = &cuda->comm->comm;
	if (status)
		return status;
	status = cuda_alloc(cuda, ZERO_MEM_PINNED, (ZERO_NORM2_PARTS + 1) * sizeof(double), false,
			    (void **)&cuda->parts);
	if (!status && cuda->comm->comm.place.world > 1)
		status = cuda_alloc(cuda, ZERO_MEM_PINNED, sizeof(*cuda->device->reached), true,
				    (void **)&cuda->device->reached);
	return config->agree_status(*comm, status);
}

static void cuda_set_stream(struct zero_backend *cuda, void *stream)
{
	cuda->device->compute_stream = stream;
}

static int cuda_device_index(const struct zero_backend *cuda)
{
	return (int)cuda->device->id;
}

/* As nvidia-smi -L prints the UUID. */
static void cuda_device_text(const struct zero_backend *cuda, char *text, size_t size)
{
	const struct zero_device *device = cuda->device;
	int length = snprintf(text, size, "%s, GPU", device->name);

	for (size_t i = 0; i < sizeof(device->uuid.bytes) && length < (int)size; i++)
		length += snprintf(text + length, size - (size_t)length, "%s%02x",
				   i && (i < 4 || i > 10 || i % 2) ? "" : "-",
				   (unsigned char)device->uuid.bytes[i]);
}

static bool cuda_capturing(struct zero_backend *cuda)
{
	bool capturing;

	zero_device_enter(cuda->device);
	capturing = zero_device_is_capturing(cuda->device);
	zero_device_leave(cuda->device);
	return capturing;
}

static zero_status cuda_caller_comm(struct zero_backend *cuda, void **comm)
{
	zero_status status = ZERO_OK;

	if (!cuda->caller.comm)
		status = zero_cuda_caller_comm(cuda->comm, cuda->nccl_path, &cuda->caller);
	*comm = cuda->caller.comm;
	return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void cuda_free(struct zero_backend *cuda, void *data)
{
	if (!data)
		return;
	zero_device_enter(cuda->device);
	zero_memory_free(cuda->memory, data, cuda->device->compute_stream);
	zero_device_leave(cuda->device);
}

static void cuda_limit(struct zero_backend *cuda, size_t bytes)
{
	zero_memory_limit(cuda->memory, bytes);
}

static void cuda_hold(struct zero_backend *cuda, size_t bytes)
{
	zero_memory_hold(cuda->memory, bytes);
}

static bool cuda_caller_block(struct zero_backend *cuda, const void *data, size_t *bytes)
{
	bool is_block;

	zero_device_enter(cuda->device);
	is_block = zero_memory_caller_block(cuda->memory, data, bytes);
	zero_device_leave(cuda->device);
	return is_block;
}

static void cuda_shared_free(struct zero_backend *cuda, struct zero_shared *shared)
{
	zero_device_enter(cuda->device);
	if (shared->owner)
		zero_gather_buffer_release(shared->owner);
	else
		zero_memory_free(cuda->memory, shared->data, cuda->device->compute_stream);
	zero_device_leave(cuda->device);
	*shared = (struct zero_shared){0};
}

static zero_status cuda_reserve(struct zero_backend *cuda, size_t bytes, void **address)
{
	zero_status status;

	zero_device_enter(cuda->device);
	status = zero_gather_buffer_new(cuda->device, bytes, &cuda->comm->buffers, address);
	zero_device_leave(cuda->device);
	return status;
}

static void cuda_unreserve(struct zero_backend *cuda, void *address, size_t bytes)
{
	struct zero_device_gather_buffer *buffer =
		address ? zero_gather_buffer_at(&cuda->comm->buffers, address) : NULL;

	(void)bytes;
	if (!buffer)
		return;
	zero_device_enter(cuda->device);
	zero_device_finish(cuda->device);
	if (!cuda->device->hung)
		zero_gather_buffer_delete(buffer, &cuda->comm->buffers);
	zero_device_leave(cuda->device);
}

static bool cuda_reuse(struct zero_backend *cuda, void *address, size_t bytes,
		       struct zero_shared *shared)
{
	struct zero_device_gather_buffer *buffer =
		zero_gather_buffer_at(&cuda->comm->buffers, address);

	if (!buffer || !zero_gather_buffer_reacquire(buffer))
		return false;
	*shared = (struct zero_shared){
		.data = address,
		.base = zero_gather_buffer_base(buffer),
		.bytes = bytes,
		.kind = ZERO_MEM_GATHERED,
		.owner = buffer,
	};
	return true;
}

static void *cuda_holder(struct zero_backend *cuda, void *address)
{
	return zero_gather_buffer_holder(zero_gather_buffer_at(&cuda->comm->buffers, address));
}

static void cuda_memory(struct zero_backend *cuda, zero_memory *memory,
			size_t at_peak[ZERO_MEM_KINDS])
{
	zero_memory_read(cuda->memory, memory, at_peak);
}

static size_t cuda_memory_free(const struct zero_backend *cuda)
{
	size_t bytes = 0, total = 0;

	zero_device_enter(cuda->device);
	zero_device_check(cuda->device, zero_driver.memory_info(&bytes, &total), "cuMemGetInfo");
	zero_device_leave(cuda->device);
	return bytes / cuda->sharing;
}

static void cuda_trim(struct zero_backend *cuda)
{
	zero_device_enter(cuda->device);
	zero_memory_trim_pinned(cuda->memory);
	zero_device_leave(cuda->device);
}

/* What devices wait for ends when their processes end. */
static void cuda_abort(struct zero_backend *cuda, int status, const char *text)
{
	zero_rendezvous_abort(&cuda->comm->rendezvous, status, text);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static uint64_t cuda_event_record(struct zero_backend *cuda)
{
	uint64_t number;

	zero_device_enter(cuda->device);
	number = zero_device_record(cuda->device);
	zero_device_leave(cuda->device);
	return number;
}

static zero_status cuda_event_wait(struct zero_backend *cuda, uint64_t number)
{
	zero_status status;

	zero_device_enter(cuda->device);
	status = zero_device_wait(cuda->device, number);
	zero_device_leave(cuda->device);
	return status;
}

static void cuda_launch(struct zero_backend *cuda, int kernel, const void *arguments)
{
	zero_device_enter(cuda->device);
	zero_launch(cuda->device, cuda->device->compute_stream, (enum zero_kernel)kernel,
		    arguments);
	zero_device_leave(cuda->device);
}

static void cuda_copy(struct zero_backend *cuda, void *to, const void *from, size_t bytes)
{
	zero_device_enter(cuda->device);
	zero_device_copy(cuda->device, cuda->device->compute_stream, to, from, bytes);
	zero_device_leave(cuda->device);
}

static void cuda_copy_many(struct zero_backend *cuda, const struct zero_copy *copies, size_t count)
{
	zero_device_enter(cuda->device);
	zero_device_copy_many(cuda->device, cuda->memory, copies, count);
	zero_device_leave(cuda->device);
}

static void cuda_norm2(struct zero_backend *cuda, const float *x, size_t count, double *sum)
{
	struct zero_device *device = cuda->device;
	struct zero_device_norm2 norm2 = {.x = x, .count = count, .parts = cuda->parts};
	struct zero_device_norm2_fold fold = {.parts = cuda->parts,
					      .count = zero_norm2_parts(count),
					      .sum = sum,
					      .accumulate = true};

	if (!count)
		return;
	zero_device_enter(device);
	zero_launch_blocks(device, device->compute_stream, ZERO_K_NORM2, &norm2, fold.count);
	zero_launch_blocks(device, device->compute_stream, ZERO_K_NORM2_FOLD, &fold, 1);
	zero_device_leave(device);
}

static zero_status cuda_open_gemm(struct zero_backend *cuda)
{
	zero_status status;

	zero_device_enter(cuda->device);
	status = zero_cublas_open(cuda->device, cuda->parts, cuda->parts + ZERO_NORM2_PARTS,
				  &cuda->cublas);
	zero_device_leave(cuda->device);
	return status;
}

static zero_status cuda_orthogonalise(struct zero_backend *cuda,
				      const struct zero_newton_schulz *rule, float *x, size_t rows,
				      size_t columns, float *scratch)
{
	zero_status status;

	zero_device_enter(cuda->device);
	status = zero_cublas_orthogonalise(cuda->cublas, rule, x, rows, columns, scratch);
	zero_device_leave(cuda->device);
	return status;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct zero_backend_ops cuda_ops = {
	.abi = ZERO_MODULE_ABI,
	.name = "cuda",
	.available = cuda_available,
	.kernels = zero_kernels_choose,
	.open = cuda_open,
	.close = cuda_close,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.limit = cuda_limit,
	.hold = cuda_hold,
	.caller_block = cuda_caller_block,
	.shared_free = cuda_shared_free,
	.reserve = cuda_reserve,
	.unreserve = cuda_unreserve,
	.reuse = cuda_reuse,
	.holder = cuda_holder,
	.memory = cuda_memory,
	.memory_free = cuda_memory_free,
	.trim = cuda_trim,
	.abort = cuda_abort,
	.set_stream = cuda_set_stream,
	.device_index = cuda_device_index,
	.device_text = cuda_device_text,
	.capturing = cuda_capturing,
	.caller_comm = cuda_caller_comm,
	.event_record = cuda_event_record,
	.event_wait = cuda_event_wait,
	.copy = cuda_copy,
	.copy_many = cuda_copy_many,
	.launch = cuda_launch,
	.norm2 = cuda_norm2,
	.open_gemm = cuda_open_gemm,
	.orthogonalise = cuda_orthogonalise,
};

const void *zero_module_cuda(const struct zero_core *core);

const void *zero_module_cuda(const struct zero_core *core)
{
	zero_core = core;
	return &cuda_ops;
}
