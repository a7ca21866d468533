/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend of programs that move their tensors by themselves: ranks meet, exchange small things,
 * agree, and are watched. There is no memory and there are no kernels, so that a job has no groups.
 */
#include <stdlib.h>
#include <string.h>

#include "backend/comm.h"
#include "backend/rendezvous.h"

const struct zero_core *zero_core;

struct zero_backend {
	struct zero_comm comm;
	struct zero_rendezvous rendezvous;
};

/* ---- submissions ----------------------------------------------------------------------------- */

static zero_status none_begin(struct zero_comm *comm, const struct zero_op *ops, size_t count)
{
	(void)comm;
	for (size_t i = 0; i < count; i++)
		if (ops[i].kind != ZERO_OP_ALLGATHER_BYTES)
			return zero_core->fail(ZERO_E_UNSUPPORTED, "backend=none moves no tensors");
	return ZERO_OK;
}

static zero_status none_run(struct zero_comm *comm, const struct zero_op *ops, size_t count,
			    zero_status status, struct zero_device_order *order)
{
	(void)order;
	for (size_t i = 0; !status && i < count; i++) {
		if (comm->ops->allgather)
			status = comm->ops->allgather(comm, ops[i].send, ops[i].recv, ops[i].count);
		else if (ops[i].count)
			memcpy(ops[i].recv, ops[i].send, ops[i].count);
	}
	return status;
}

static const struct zero_comm_ops several_ops = {
	.begin = none_begin,
	.run = none_run,
	.begin_max = zero_net_comm_begin_max,
	.finish_max = zero_net_comm_finish_max,
	.allgather = zero_net_comm_allgather,
	.broadcast = zero_net_comm_broadcast,
};

/* One rank has no network. */
static const struct zero_comm_ops single_ops = {.begin = none_begin, .run = none_run};

/* ---- opening and closing --------------------------------------------------------------------- */

static void none_close(struct zero_backend *none)
{
	free(none->comm.intents);
	free(none);
}

/* COLLECTIVE, where there are several ranks. `status` is this rank's so far. */
static zero_status join(struct zero_backend *none, zero_status status)
{
	zero_status joined;

	if (none->comm.place.world == 1)
		return status;
	joined = zero_rendezvous_join(&none->rendezvous, &none->comm);
	return joined ? joined : none->comm.agree_status(&none->comm, status);
}

static zero_status none_open(const struct zero_backend_config *config,
			     struct zero_backend **backend, struct zero_comm **comm)
{
	struct zero_backend *none = calloc(1, sizeof(*none));
	zero_status status;

	if (!none)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a job");
	*backend = none;
	*comm = &none->comm;
	none->comm.agree_status = config->agree_status;
	status = zero_rendezvous_place(&none->rendezvous, config, &none->comm.place);
	if (status)
		return status;
	none->comm.ops = none->comm.place.world > 1 ? &several_ops : &single_ops;
	none->comm.intents = calloc((size_t)none->comm.place.world, sizeof(*none->comm.intents));
	if (!none->comm.intents)
		status = zero_core->fail(ZERO_E_MEMORY, "no memory for %d ranks",
					 none->comm.place.world);
	return join(none, status);
}

static void none_abort(struct zero_backend *none, int status, const char *text)
{
	zero_rendezvous_abort(&none->rendezvous, status, text);
}

static const struct zero_backend_ops none_ops = {
	.abi = ZERO_MODULE_ABI,
	.name = "none",
	.watch_only = true,
	.open = none_open,
	.close = none_close,
	.finalise = zero_rendezvous_finalise,
	.abort = none_abort,
};

const void *zero_module_none(const struct zero_core *core);

const void *zero_module_none(const struct zero_core *core)
{
	zero_core = core;
	return &none_ops;
}
