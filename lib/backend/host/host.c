/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: open, and the table, whose functions call the pool, the queue and kernels. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "host.h"

const struct zero_core *zero_core;

struct zero_backend {
	const struct zero_kernels *kernels;
	struct zero_pool *pool;
	struct zero_comm *comm;
	struct zero_cblas cblas;
};

static void host_close(struct zero_backend *host)
{
	if (host->comm)
		host->comm->ops->close(host->comm);
	zero_pool_delete(host->pool);
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
			     struct zero_backend **backend, struct zero_comm **comm)
{
	struct zero_backend *host = calloc(1, sizeof(*host));
	zero_status status;

	if (!host)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the host backend");
	host->kernels = config->kernels;
	host->pool = zero_pool_new();
	status = host->pool ? open_comm(host, config)
			    : zero_core->fail(ZERO_E_MEMORY, "no memory for the host backend");
	if (!host->comm) {
		host_close(host);
		return status;
	}
	*backend = host;
	*comm = host->comm;
	return config->agree_status(host->comm, status);
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

static void host_trim(struct zero_backend *host)
{
	zero_pool_trim(host->pool);
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
	return zero_gather_buffers_reserve(zero_pool_gather_buffers(host->pool), bytes, address);
}

static void host_unreserve(struct zero_backend *host, void *address, size_t bytes)
{
	(void)bytes;
	zero_gather_buffers_unreserve(zero_pool_gather_buffers(host->pool), address);
}

static void host_memory(struct zero_backend *host, zero_memory *memory,
			size_t at_peak[ZERO_MEM_KINDS])
{
	zero_pool_memory(host->pool, memory, at_peak);
}

static size_t host_memory_free(const struct zero_backend *host)
{
	return zero_memory_available() / (size_t)host->comm->place.local_world;
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

static zero_status host_open_gemm(struct zero_backend *host)
{
	host->cblas.kernels = host->kernels;
	return zero_cblas_open(&host->cblas);
}

static zero_status host_orthogonalise(struct zero_backend *host,
				      const struct zero_newton_schulz *rule, float *x, size_t rows,
				      size_t columns, float *scratch)
{
	zero_cblas_orthogonalise(&host->cblas, rule, x, rows, columns, scratch);
	return ZERO_OK;
}

static const struct zero_backend_ops host_ops = {
	.abi = ZERO_MODULE_ABI,
	.name = "host",
	.host_memory = true,
	.kernels = zero_kernels_choose,
	.open = host_open,
	.close = host_close,
#ifdef HAVE_MPI
	.finalise = zero_mpi_finalise,
#endif
	.alloc = host_alloc,
	.free = host_free,
	.trim = host_trim,
	.limit = host_limit,
	.caller_block = host_caller_block,
	.shared_free = host_shared_free,
	.reserve = host_reserve,
	.unreserve = host_unreserve,
	.memory = host_memory,
	.memory_free = host_memory_free,
	.abort = host_abort,
	.copy = host_copy,
	.copy_many = host_copy_many,
	.open_gemm = host_open_gemm,
	.orthogonalise = host_orthogonalise,
};

const void *zero_module_host(const struct zero_core *core);

const void *zero_module_host(const struct zero_core *core)
{
	zero_core = core;
	return &host_ops;
}
