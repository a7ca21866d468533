/* SPDX-License-Identifier: Apache-2.0 */
/* struct zero_backend_ops of the CUDA backend. Most functions enter the device and call another
   file. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/step_rule.h"
#include "backend/workers.h"
#include "gpu_comm.h"

const struct zero_core *zero_core;

struct zero_backend {
	const struct zero_kernels *kernels; /* for what is in the host's memory */
	struct zero_cuda_comm *comm;
	struct zero_device *device;
	struct zero_memory_pool *memory;
	struct zero_queue *queue;
	struct zero_workers *workers; /* that step what is offloaded */
	struct zero_nccl_comm caller; /* made at the first zero_nccl_comm */
	size_t sharing;               /* ranks that have the same GPU */
	double *parts; /* of a squared norm, and one more; few, and therefore in host memory */
	struct zero_device_products *products; /* NULL: not opened yet */
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
	zero_queue_delete(cuda->queue);
	zero_workers_delete(cuda->workers);
	if (cuda->device)
		zero_device_enter(cuda->device);
	if (cuda->comm && cuda->caller.device) {
		zero_nccl_watchdog_remove(cuda->comm->watchdog, &cuda->caller);
		zero_nccl_close(&cuda->caller, cuda->comm->comm.broken);
	}
	if (cuda->device) {
		zero_device_products_close(cuda->products);
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
			     struct zero_backend **backend)
{
	struct zero_backend *cuda = calloc(1, sizeof(*cuda));
	zero_status status;

	if (!cuda)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the cuda backend");
	strncpy(cuda->nccl_path, config->nccl, sizeof(cuda->nccl_path) - 1);
	cuda->kernels = zero_kernels_choose(config->isa);
	if (!cuda->kernels)
		cuda->kernels = zero_kernels_choose("auto");
	status = zero_cuda_open(config, &cuda->comm, &cuda->sharing);
	if (!cuda->comm) {
		cuda_close(cuda);
		return status;
	}
	cuda->device = cuda->comm->device;
	cuda->memory = cuda->comm->memory;
	*backend = cuda;
	if (status)
		return status;
	status = cuda_alloc(cuda, ZERO_MEM_PINNED, (ZERO_NORM2_PARTS + 1) * sizeof(double), false,
			    (void **)&cuda->parts);
	if (!status && cuda->comm->comm.place.world > 1)
		status = cuda_alloc(cuda, ZERO_MEM_PINNED, sizeof(*cuda->device->reached), true,
				    (void **)&cuda->device->reached);
	cuda->comm->comm.meter = config->meter;
	if (!status)
		status = zero_queue_new(&cuda->comm->comm, &cuda->queue);
	status = zero_agree_status(&cuda->comm->comm, status);
	if (!status)
		cuda->workers =
			zero_workers_new(zero_workers_budget(&cuda->comm->comm, config->threads));
	return status;
}

static void cuda_place(const struct zero_backend *cuda, const struct zero_team_comm *team_comm,
		       struct zero_place *place)
{
	*place = team_comm ? team_comm->place : cuda->comm->comm.place;
}

static void cuda_set_stream(struct zero_backend *cuda, void *stream)
{
	cuda->device->compute_stream = stream;
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
		zero_output_release(shared->owner);
	else
		zero_memory_free(cuda->memory, shared->data, cuda->device->compute_stream);
	zero_device_leave(cuda->device);
	*shared = (struct zero_shared){0};
}

static zero_status cuda_reserve(struct zero_backend *cuda, size_t bytes, void **address)
{
	zero_status status;

	zero_device_enter(cuda->device);
	status = zero_output_new(cuda->device, bytes, &cuda->comm->outputs, address);
	zero_device_leave(cuda->device);
	return status;
}

static void cuda_unreserve(struct zero_backend *cuda, void *address, size_t bytes)
{
	struct zero_device_output *output =
		address ? zero_output_at(&cuda->comm->outputs, address) : NULL;

	(void)bytes;
	if (!output)
		return;
	zero_device_enter(cuda->device);
	zero_device_finish(cuda->device);
	if (!cuda->device->hung)
		zero_output_delete(output, &cuda->comm->outputs);
	zero_device_leave(cuda->device);
}

static bool cuda_reuse(struct zero_backend *cuda, void *address, size_t bytes,
		       struct zero_shared *shared)
{
	struct zero_device_output *output = zero_output_at(&cuda->comm->outputs, address);

	if (!output || !zero_output_retake(output))
		return false;
	*shared = (struct zero_shared){
		.data = address,
		.base = zero_output_base(output),
		.bytes = bytes,
		.kind = ZERO_MEM_GATHERED,
		.owner = output,
	};
	return true;
}

static void *cuda_holder(struct zero_backend *cuda, void *address)
{
	return zero_output_holder(zero_output_at(&cuda->comm->outputs, address));
}

static void cuda_memory(const struct zero_backend *cuda, zero_memory *memory)
{
	zero_memory_read(cuda->memory, memory);
}

static void cuda_memory_high(struct zero_backend *cuda, size_t kinds[ZERO_MEM_KINDS])
{
	zero_memory_at_peak(cuda->memory, kinds);
}

static void cuda_traffic(const struct zero_backend *cuda, zero_traffic *traffic)
{
	*traffic = (zero_traffic){.bytes_sent = cuda->comm->comm.bytes_sent,
				  .collectives = cuda->comm->comm.collectives};
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

/* ---- submissions ----------------------------------------------------------------------------- */

static zero_status cuda_submit(struct zero_backend *cuda, const struct zero_submission *submission,
			       struct zero_work **work)
{
	return zero_queue_submit(cuda->queue, submission, work);
}

static zero_status cuda_wait(struct zero_backend *cuda, struct zero_work *work)
{
	return zero_queue_wait(cuda->queue, work);
}

static bool cuda_recent(struct zero_backend *cuda, struct zero_recent_submission *recent)
{
	return zero_queue_recent(cuda->queue, recent);
}

static void cuda_end_deadlock(struct zero_backend *cuda, int rank, const char *text)
{
	zero_net->fail_all(cuda->comm->net, ZERO_E_ORDER, rank, text);
}

/* What devices wait for ends when their processes end. */
static void cuda_abort(struct zero_backend *cuda, int status, const char *text)
{
	zero_rendezvous_abort(&cuda->comm->rendezvous, status, text);
}

static void cuda_work_get(struct zero_backend *cuda, struct zero_work *work)
{
	(void)cuda;
	zero_work_get(work);
}

static void cuda_work_put(struct zero_backend *cuda, struct zero_work *work)
{
	(void)cuda;
	zero_work_put(work);
}

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

	zero_queue_device_wait(cuda->queue, true);
	zero_device_enter(cuda->device);
	status = zero_device_wait(cuda->device, number);
	zero_device_leave(cuda->device);
	zero_queue_device_wait(cuda->queue, false);
	return status;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* The host does what has no argument on the device. */
static bool is_host(const void *data)
{
	bool on_device = false;

	if (data)
		zero_device_can_read(data, &on_device);
	return !on_device;
}

static void cuda_fill_constant(struct zero_backend *cuda, zero_dtype dtype, void *out, size_t count,
			       double value)
{
	struct zero_device_fill fill = {
		.out = out, .count = count, .size = zero_core->dtype_size(dtype)};

	zero_fill_constant(dtype, &fill.pattern, 1, value);
	zero_device_enter(cuda->device);
	zero_launch(cuda->device, cuda->device->compute_stream, ZERO_K_FILL, &fill,
		    count * fill.size / 16 + (count > 0));
	zero_device_leave(cuda->device);
}

static void launch_random(struct zero_backend *cuda, enum zero_kernel kernel,
			  const struct zero_device_random *random)
{
	zero_device_enter(cuda->device);
	zero_launch(cuda->device, cuda->device->compute_stream, kernel, random,
		    random->count / 4 + (random->count > 0));
	zero_device_leave(cuda->device);
}

static void cuda_fill_uniform(struct zero_backend *cuda, zero_dtype dtype, void *out, size_t first,
			      size_t count, double low, double high, uint64_t seed, uint64_t stream)
{
	struct zero_device_random random = {.out = out,
					    .first = first,
					    .count = count,
					    .seed = seed,
					    .stream = stream,
					    .a = low,
					    .b = high,
					    .dtype = dtype};

	random.cut = cuda->kernels->uniform_ends(dtype, low, high, &random.first_value,
						 &random.last_value);
	launch_random(cuda, ZERO_K_UNIFORM, &random);
}

static void cuda_fill_normal(struct zero_backend *cuda, zero_dtype dtype, void *out, size_t first,
			     size_t count, double mean, double stddev, uint64_t seed,
			     uint64_t stream)
{
	struct zero_device_random random = {.out = out,
					    .first = first,
					    .count = count,
					    .seed = seed,
					    .stream = stream,
					    .a = mean,
					    .b = stddev,
					    .dtype = dtype};

	launch_random(cuda, ZERO_K_NORMAL, &random);
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

static void cuda_cast(struct zero_backend *cuda, zero_dtype to, void *out, zero_dtype from,
		      const void *in, size_t count)
{
	zero_device_enter(cuda->device);
	if (is_host(out) && is_host(in))
		cuda->kernels->cast(to, out, from, in, count);
	else
		zero_launch_cast(cuda->device, cuda->device->compute_stream, to, out, from, in,
				 count);
	zero_device_leave(cuda->device);
}

static bool cuda_convertible(const struct zero_backend *cuda, zero_dtype to, zero_dtype from)
{
	(void)cuda;
	return zero_convertible(to, from);
}

static bool cuda_convert(struct zero_backend *cuda, zero_dtype to, void *out, zero_dtype from,
			 const void *in, size_t count, size_t *bad)
{
	return zero_convert(cuda->kernels, to, out, from, in, count, bad);
}

static void cuda_quantize(const struct zero_backend *cuda, bool is_signed, uint8_t *codes,
			  float *absmax, const float *x, size_t count)
{
	cuda->kernels->quantize(zero_dynamic_map(is_signed), codes, absmax, x, count);
}

static void cuda_dequantize(const struct zero_backend *cuda, bool is_signed, float *x,
			    const uint8_t *codes, const float *absmax, size_t count)
{
	cuda->kernels->dequantize(zero_dynamic_map(is_signed), x, codes, absmax, count);
}

static void cuda_transpose(struct zero_backend *cuda, void *out, size_t out_stride, const void *in,
			   size_t in_stride, size_t rows, size_t columns, size_t element_size)
{
	(void)cuda;
	zero_transpose(out, out_stride, in, in_stride, rows, columns, element_size);
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

static void cuda_step_rule(struct zero_backend *cuda, const struct zero_step_rule *rule)
{
	zero_device_enter(cuda->device);
	zero_launch_blocks(cuda->device, cuda->device->compute_stream, ZERO_K_STEP_RULE, rule, 1);
	zero_device_leave(cuda->device);
}

static void cuda_group_rule(struct zero_backend *cuda, const struct zero_group_rule *rule)
{
	zero_device_enter(cuda->device);
	if (is_host(rule->groups))
		for (size_t i = 0; i < rule->count; i++)
			zero_group_rule_apply(rule, &rule->groups[i]);
	else
		zero_launch(cuda->device, cuda->device->compute_stream, ZERO_K_GROUP_RULE, rule,
			    rule->count);
	zero_device_leave(cuda->device);
}

static void cuda_adamw(struct zero_backend *cuda, const struct zero_adamw_args *args,
		       const struct zero_step_state *state, float *p,
		       const struct zero_moments *moments, const float *g, void *low,
		       zero_dtype low_dtype, size_t count)
{
	struct zero_device_adamw adamw = {.args = *args,
					  .state = state,
					  .p = p,
					  .moments = *moments,
					  .g = g,
					  .low = low,
					  .low_dtype = low_dtype,
					  .count = count};
	const void *of_moments = moments->m ? (void *)moments->m : moments->m_codes;

	zero_device_enter(cuda->device);
	if (is_host(p) && is_host(of_moments) && is_host(g) && is_host(low)) {
		struct zero_adamw_args of_step = zero_adamw_args_of_step(args, state);

		if (!state->skipped)
			zero_cpu_adamw(cuda->workers, cuda->kernels, &of_step, p, moments, g, low,
				       low_dtype, count);
	} else if (!moments->m) {
		adamw.maps[false] = *zero_dynamic_map(false);
		adamw.maps[true] = *zero_dynamic_map(true);
		zero_launch(cuda->device, cuda->device->compute_stream, ZERO_K_ADAMW_8BIT, &adamw,
			    count);
	} else {
		zero_launch(cuda->device, cuda->device->compute_stream, ZERO_K_ADAMW, &adamw,
			    count / 4 + (count % 4 != 0));
	}
	zero_device_leave(cuda->device);
}

static void launch_muon(struct zero_backend *cuda, enum zero_kernel kernel,
			const struct zero_device_muon *muon)
{
	zero_device_enter(cuda->device);
	zero_launch(cuda->device, cuda->device->compute_stream, kernel, muon,
		    muon->count / 4 + (muon->count % 4 != 0));
	zero_device_leave(cuda->device);
}

static void cuda_muon_momentum(struct zero_backend *cuda, const struct zero_muon_args *args,
			       const struct zero_step_state *state, float *m, const float *g,
			       float *out, size_t count)
{
	launch_muon(cuda, ZERO_K_MUON_MOMENTUM,
		    &(struct zero_device_muon){.args = *args,
					       .state = state,
					       .changed = m,
					       .from = g,
					       .out = out,
					       .count = count});
}

static void cuda_muon_update(struct zero_backend *cuda, const struct zero_muon_args *args,
			     const struct zero_step_state *state, float *p, const float *update,
			     void *low, zero_dtype low_dtype, size_t count)
{
	launch_muon(cuda, ZERO_K_MUON_UPDATE,
		    &(struct zero_device_muon){.args = *args,
					       .state = state,
					       .changed = p,
					       .from = update,
					       .out = low,
					       .low_dtype = low_dtype,
					       .count = count});
}

static zero_status cuda_open_products(struct zero_backend *cuda)
{
	zero_status status;

	zero_device_enter(cuda->device);
	status = zero_device_products_open(cuda->device, cuda->parts,
					   cuda->parts + ZERO_NORM2_PARTS, &cuda->products);
	zero_device_leave(cuda->device);
	return status;
}

static zero_status cuda_orthogonalise(struct zero_backend *cuda,
				      const struct zero_newton_schulz *rule, float *x, size_t rows,
				      size_t columns, float *scratch)
{
	zero_status status;

	zero_device_enter(cuda->device);
	status = zero_device_orthogonalise(cuda->products, rule, x, rows, columns, scratch);
	zero_device_leave(cuda->device);
	return status;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct zero_backend_ops cuda_ops = {
	.abi = ZERO_MODULE_ABI,
	.name = "cuda",
	.available = cuda_available,
	.open = cuda_open,
	.close = cuda_close,
	.place = cuda_place,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.limit = cuda_limit,
	.caller_block = cuda_caller_block,
	.shared_free = cuda_shared_free,
	.reserve = cuda_reserve,
	.unreserve = cuda_unreserve,
	.reuse = cuda_reuse,
	.holder = cuda_holder,
	.memory = cuda_memory,
	.memory_at_peak = cuda_memory_high,
	.traffic = cuda_traffic,
	.memory_free = cuda_memory_free,
	.trim = cuda_trim,
	.submit = cuda_submit,
	.wait = cuda_wait,
	.work_get = cuda_work_get,
	.work_put = cuda_work_put,
	.recent = cuda_recent,
	.end_deadlock = cuda_end_deadlock,
	.abort = cuda_abort,
	.set_stream = cuda_set_stream,
	.capturing = cuda_capturing,
	.caller_comm = cuda_caller_comm,
	.event_record = cuda_event_record,
	.event_wait = cuda_event_wait,
	.fill_constant = cuda_fill_constant,
	.fill_uniform = cuda_fill_uniform,
	.fill_normal = cuda_fill_normal,
	.copy = cuda_copy,
	.copy_many = cuda_copy_many,
	.cast = cuda_cast,
	.convertible = cuda_convertible,
	.convert = cuda_convert,
	.quantize = cuda_quantize,
	.dequantize = cuda_dequantize,
	.transpose = cuda_transpose,
	.norm2 = cuda_norm2,
	.step_rule = cuda_step_rule,
	.group_rule = cuda_group_rule,
	.adamw = cuda_adamw,
	.muon_momentum = cuda_muon_momentum,
	.muon_update = cuda_muon_update,
	.open_products = cuda_open_products,
	.orthogonalise = cuda_orthogonalise,
};

const void *zero_module_cuda(const struct zero_core *core);

const void *zero_module_cuda(const struct zero_core *core)
{
	zero_core = core;
	return &cuda_ops;
}
