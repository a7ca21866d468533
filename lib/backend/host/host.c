/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: open, and the table, whose functions call the pool, the queue and kernels. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/step_rule.h"
#include "backend/workers.h"
#include "config.h"
#include "host.h"

const struct zero_core *zero_core;

struct zero_backend {
	const struct zero_kernels *kernels;
	struct zero_pool *pool;
	struct zero_comm *comm;
	struct zero_queue *queue;
	struct zero_workers *workers;
	struct zero_products_library products;
};

static void host_close(struct zero_backend *host)
{
	zero_queue_delete(host->queue);
	if (host->comm)
		host->comm->ops->close(host->comm);
	zero_pool_delete(host->pool);
	zero_workers_delete(host->workers);
	free(host);
}

static zero_status open_comm(struct zero_backend *host, const struct zero_backend_config *config)
{
	int expected_world = config->expected_world;
	zero_status status = ZERO_OK;

#ifdef HAVE_MPI
	status = zero_comm_mpi(host->kernels, host->pool, config->share, &host->comm);
#endif
	if (!status && !host->comm)
		status = zero_comm_single(host->kernels, host->pool, &host->comm);
	if (!status && expected_world && expected_world != host->comm->place.world)
		status = zero_core->fail(ZERO_E_COMM,
					 "the launcher started %d ranks, but libzero sees %d: was "
					 "the program built with another MPI, or libzero without?",
					 expected_world, host->comm->place.world);
	return status;
}

static zero_status host_open(const struct zero_backend_config *config,
			     struct zero_backend **backend)
{
	struct zero_backend *host = calloc(1, sizeof(*host));
	zero_status status = ZERO_OK;

	if (!host)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the host backend");
	host->pool = zero_pool_new();
	if (!host->pool)
		status = zero_core->fail(ZERO_E_MEMORY, "no memory for the host backend");
	host->kernels = zero_kernels_choose(config->isa);
	if (!host->kernels)
		host->kernels = zero_kernels_choose("auto");
	if (!status)
		status = open_comm(host, config);
	if (!status && !zero_kernels_choose(config->isa))
		status = zero_core->fail(ZERO_E_UNSUPPORTED,
					 "this machine does not support %s (option isa): the best "
					 "that it supports is %s",
					 config->isa, zero_kernels_isa(0));
	if (!status) {
		host->comm->meter = config->meter;
		status = zero_queue_new(host->comm, &host->queue);
	}
	if (host->comm) {
		*backend = host;
		status = zero_agree_status(host->comm, status);
		if (!status)
			host->workers =
				zero_workers_new(zero_workers_budget(host->comm, config->threads));
		return status;
	}
	host_close(host);
	return status;
}

static void host_place(const struct zero_backend *host, const struct zero_team_comm *team_comm,
		       struct zero_place *place)
{
	*place = team_comm ? team_comm->place : host->comm->place;
}

static zero_status host_alloc(struct zero_backend *host, enum zero_memory_kind kind, size_t bytes,
			      bool zeroed, void **data)
{
	/* Here the device is the host: nothing need be page-locked. */
	if (kind == ZERO_MEM_PINNED)
		kind = ZERO_MEM_STAGING;
	return zero_pool_alloc(host->pool, kind, bytes, zeroed, data);
}

static void host_free(struct zero_backend *host, void *data)
{
	zero_pool_free(host->pool, data);
}

static void host_limit(struct zero_backend *host, size_t bytes)
{
	zero_pool_limit(host->pool, bytes);
}

static bool host_caller_block(struct zero_backend *host, const void *data, size_t *bytes)
{
	return zero_pool_caller_block(host->pool, data, bytes);
}

static void host_shared_free(struct zero_backend *host, struct zero_shared *shared)
{
	struct zero_comm *comm = shared->owner;

	if (comm)
		comm->ops->shared_free(comm, shared);
	else
		zero_own_buffer_free(host->pool, shared);
	*shared = (struct zero_shared){0};
}

static zero_status host_reserve(struct zero_backend *host, size_t bytes, void **address)
{
	return zero_outputs_reserve(zero_pool_outputs(host->pool), bytes, address);
}

static void host_unreserve(struct zero_backend *host, void *address, size_t bytes)
{
	(void)bytes;
	zero_outputs_unreserve(zero_pool_outputs(host->pool), address);
}

static void host_memory(const struct zero_backend *host, zero_memory *memory)
{
	zero_pool_memory(host->pool, memory);
}

static void host_memory_high(struct zero_backend *host, size_t kinds[ZERO_MEM_KINDS])
{
	zero_pool_at_peak(host->pool, kinds);
}

static void host_traffic(const struct zero_backend *host, zero_traffic *traffic)
{
	*traffic = (zero_traffic){.bytes_sent = host->comm->bytes_sent,
				  .collectives = host->comm->collectives};
}

static size_t host_memory_free(const struct zero_backend *host)
{
	return zero_memory_available() / (size_t)host->comm->place.local_world;
}

static zero_status host_submit(struct zero_backend *host, const struct zero_submission *submission,
			       struct zero_work **work)
{
	return zero_queue_submit(host->queue, submission, work);
}

static zero_status host_wait(struct zero_backend *host, struct zero_work *work)
{
	return zero_queue_wait(host->queue, work);
}

static bool host_recent(struct zero_backend *host, struct zero_recent_submission *recent)
{
	return zero_queue_recent(host->queue, recent);
}

static void host_end_deadlock(struct zero_backend *host, int rank, const char *text)
{
	zero_agree_end_deadlock(host->comm, rank, text);
}

static void host_abort(struct zero_backend *host, int status, const char *text)
{
#ifdef HAVE_MPI
	zero_mpi_abort(status, text);
#endif
	/* The launcher ends all ranks when one ends with an error. */
	(void)host;
	(void)text;
	_exit(status);
}

static void host_work_get(struct zero_backend *host, struct zero_work *work)
{
	(void)host;
	zero_work_get(work);
}

static void host_work_put(struct zero_backend *host, struct zero_work *work)
{
	(void)host;
	zero_work_put(work);
}

static bool host_available(void)
{
	return true;
}

/* Kernels are done when they return. */
static uint64_t host_event_record(struct zero_backend *host)
{
	(void)host;
	return 0;
}

static zero_status host_event_wait(struct zero_backend *host, uint64_t event)
{
	(void)host;
	(void)event;
	return ZERO_OK;
}

static void host_fill_constant(struct zero_backend *host, zero_dtype dtype, void *out, size_t count,
			       double value)
{
	(void)host;
	zero_fill_constant(dtype, out, count, value);
}

static void host_fill_uniform(struct zero_backend *host, zero_dtype dtype, void *out, size_t first,
			      size_t count, double low, double high, uint64_t seed, uint64_t stream)
{
	host->kernels->fill_uniform(dtype, out, first, count, low, high, seed, stream);
}

static void host_fill_normal(struct zero_backend *host, zero_dtype dtype, void *out, size_t first,
			     size_t count, double mean, double stddev, uint64_t seed,
			     uint64_t stream)
{
	host->kernels->fill_normal(dtype, out, first, count, mean, stddev, seed, stream);
}

static void host_copy(struct zero_backend *host, void *to, const void *from, size_t bytes)
{
	(void)host;
	memcpy(to, from, bytes);
}

static void host_copy_many(struct zero_backend *host, const struct zero_copy *copies, size_t count)
{
	for (size_t i = 0; i < count; i++)
		host_copy(host, copies[i].to, copies[i].from, copies[i].bytes);
}

static void host_cast(struct zero_backend *host, zero_dtype to, void *out, zero_dtype from,
		      const void *in, size_t count)
{
	host->kernels->cast(to, out, from, in, count);
}

static bool host_convertible(const struct zero_backend *host, zero_dtype to, zero_dtype from)
{
	(void)host;
	return zero_convertible(to, from);
}

static bool host_convert(struct zero_backend *host, zero_dtype to, void *out, zero_dtype from,
			 const void *in, size_t count, size_t *bad)
{
	return zero_convert(host->kernels, to, out, from, in, count, bad);
}

static void host_quantize(const struct zero_backend *host, bool is_signed, uint8_t *codes,
			  float *absmax, const float *x, size_t count)
{
	host->kernels->quantize(zero_dynamic_map(is_signed), codes, absmax, x, count);
}

static void host_dequantize(const struct zero_backend *host, bool is_signed, float *x,
			    const uint8_t *codes, const float *absmax, size_t count)
{
	host->kernels->dequantize(zero_dynamic_map(is_signed), x, codes, absmax, count);
}

static void host_transpose(struct zero_backend *host, void *out, size_t out_stride, const void *in,
			   size_t in_stride, size_t rows, size_t columns, size_t element_size)
{
	(void)host;
	zero_transpose(out, out_stride, in, in_stride, rows, columns, element_size);
}

static void host_norm2(struct zero_backend *host, const float *x, size_t count, double *sum)
{
	*sum += zero_cpu_norm2(host->workers, host->kernels, x, count);
}

static void host_step_rule(struct zero_backend *host, const struct zero_step_rule *rule)
{
	(void)host;
	zero_step_rule_apply(rule);
}

static void host_group_rule(struct zero_backend *host, const struct zero_group_rule *rule)
{
	(void)host;
	for (size_t i = 0; i < rule->count; i++)
		zero_group_rule_apply(rule, &rule->groups[i]);
}

static void host_adamw(struct zero_backend *host, const struct zero_adamw_args *args,
		       const struct zero_step_state *state, float *p,
		       const struct zero_moments *moments, const float *g, void *low,
		       zero_dtype low_dtype, size_t count)
{
	struct zero_adamw_args of_step = zero_adamw_args_of_step(args, state);

	if (!state->skipped)
		zero_cpu_adamw(host->workers, host->kernels, &of_step, p, moments, g, low,
			       low_dtype, count);
}

static void host_muon_momentum(struct zero_backend *host, const struct zero_muon_args *args,
			       const struct zero_step_state *state, float *m, const float *g,
			       float *out, size_t count)
{
	struct zero_muon_args of_step = *args;

	of_step.scale = state->scale;
	if (!state->skipped)
		zero_cpu_muon_momentum(host->workers, host->kernels, &of_step, m, g, out, count);
}

static void host_muon_update(struct zero_backend *host, const struct zero_muon_args *args,
			     const struct zero_step_state *state, float *p, const float *update,
			     void *low, zero_dtype low_dtype, size_t count)
{
	if (!state->skipped)
		zero_cpu_muon_update(host->workers, host->kernels, args, p, update, low, low_dtype,
				     count);
}

static zero_status host_open_products(struct zero_backend *host)
{
	host->products.kernels = host->kernels;
	return zero_products_open(&host->products);
}

static zero_status host_orthogonalise(struct zero_backend *host,
				      const struct zero_newton_schulz *rule, float *x, size_t rows,
				      size_t columns, float *scratch)
{
	zero_products_orthogonalise(&host->products, rule, x, rows, columns, scratch);
	return ZERO_OK;
}

static const struct zero_backend_ops host_ops = {
	.abi = ZERO_MODULE_ABI,
	.name = "host",
	.host_memory = true,
	.available = host_available,
	.open = host_open,
	.close = host_close,
#ifdef HAVE_MPI
	.finalise = zero_mpi_finalise,
#endif
	.place = host_place,
	.alloc = host_alloc,
	.free = host_free,
	.limit = host_limit,
	.caller_block = host_caller_block,
	.shared_free = host_shared_free,
	.reserve = host_reserve,
	.unreserve = host_unreserve,
	.memory = host_memory,
	.memory_at_peak = host_memory_high,
	.traffic = host_traffic,
	.memory_free = host_memory_free,
	.submit = host_submit,
	.wait = host_wait,
	.work_get = host_work_get,
	.work_put = host_work_put,
	.recent = host_recent,
	.end_deadlock = host_end_deadlock,
	.abort = host_abort,
	.event_record = host_event_record,
	.event_wait = host_event_wait,
	.fill_constant = host_fill_constant,
	.fill_uniform = host_fill_uniform,
	.fill_normal = host_fill_normal,
	.copy = host_copy,
	.copy_many = host_copy_many,
	.cast = host_cast,
	.convertible = host_convertible,
	.convert = host_convert,
	.quantize = host_quantize,
	.dequantize = host_dequantize,
	.transpose = host_transpose,
	.norm2 = host_norm2,
	.step_rule = host_step_rule,
	.group_rule = host_group_rule,
	.adamw = host_adamw,
	.muon_momentum = host_muon_momentum,
	.muon_update = host_muon_update,
	.open_products = host_open_products,
	.orthogonalise = host_orthogonalise,
};

const void *zero_module_host(const struct zero_core *core);

const void *zero_module_host(const struct zero_core *core)
{
	zero_core = core;
	return &host_ops;
}
