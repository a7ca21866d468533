/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the communicator of all ranks, and the caller's own communicator of NCCL. */
#include <stdlib.h>

#include "gpu_comm.h"

/* Opens this rank's device, and loads NCCL if there are other ranks. */
static zero_status open_device(struct zero_cuda_comm *comm,
			       const struct zero_backend_config *config)
{
	zero_status status = zero_driver_open();

	if (!status)
		status = zero_device_open(comm->comm.place.local_rank, config->stream,
					  &comm->device);
	if (!status)
		comm->device->check = config->check;
	if (!status)
		status = zero_memory_new(comm->device, config->allocator, &comm->memory);
	if (!status)
		status = zero_slots_new(NULL, comm->device, comm->memory, false, &comm->own_slots);
	if (!status && comm->comm.place.world > 1)
		status = zero_nccl_open(config->nccl);
	return status;
}

/* With this setting of NCCL's a stream waits for the last launch of any communicator. Copy engines
   launch nothing: a capture of such a gather fails, and it is in no order with others. */
static bool keeps_launch_order(void)
{
	const char *set = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");

	return set && strtol(set, NULL, 10) == 1;
}

static zero_status fill_comm(struct zero_cuda_comm *comm, const struct zero_backend_config *config)
{
	const struct zero_rank_info *place = &comm->comm.place;

	comm->comm.ops = place->world > 1 ? &zero_cuda_comm_ops : &zero_cuda_single_rank_ops;
	comm->comm.agree_status = config->agree_status;
	comm->comm.in_order = true;
	comm->first = comm;
	comm->net = config->net;
	comm->open_seconds = config->open_seconds;
	comm->copy_engines = config->nccl_cta == ZERO_NCCL_CTA_ZERO ||
			     (config->nccl_cta == ZERO_NCCL_CTA_AUTO && !keeps_launch_order());
	comm->ordered = config->reduce == ZERO_REDUCE_ORDERED;
	comm->comm.intents = calloc((size_t)place->world, sizeof(*comm->comm.intents));
	comm->not_member = calloc(1, sizeof(*comm->not_member));
	return comm->comm.intents && comm->not_member
		       ? ZERO_OK
		       : zero_core->fail(ZERO_E_MEMORY, "no memory for %d ranks", place->world);
}

zero_status zero_cuda_open(const struct zero_backend_config *config, struct zero_cuda_comm **made,
			   size_t *sharing)
{
	struct zero_cuda_comm *comm;
	zero_status status, mine;

	*made = NULL;
	*sharing = 1;
	comm = calloc(1, sizeof(*comm));
	if (!comm)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a communicator");
	status = zero_rendezvous_place(&comm->rendezvous, config, &comm->comm.place);
	if (!status)
		status = fill_comm(comm, config);
	if (!status) {
		mine = open_device(comm, config);
		status = comm->comm.place.world > 1 ? zero_cuda_rendezvous(comm, mine, sharing)
						    : mine;
	}
	if (status && !comm->joined)
		zero_cuda_close(comm);
	else
		*made = comm;
	return status;
}

void zero_cuda_close(struct zero_cuda_comm *comm)
{
	bool stopped;

	if (comm->device) {
		zero_device_enter(comm->device);
		zero_device_finish(comm->device);
		if (!comm->device->hung)
			zero_gather_buffers_delete(&comm->buffers);
	}
	zero_team_comms_close(&comm->comm);
	zero_nccl_watchdog_remove(comm->watchdog, &comm->near);
	zero_nccl_watchdog_remove(comm->watchdog, &comm->far);
	zero_nccl_watchdog_remove(comm->watchdog, &comm->nccl);
	zero_nccl_watchdog_remove(comm->watchdog, &comm->parent);
	comm->aborted = comm->parent.aborted;
	if (comm->device && comm->memory) {
		zero_cuda_free_pinned(comm);
		zero_cuda_close_reduces(comm, comm->comm.broken || !comm->agreed);
		zero_memory_free(comm->memory, (void *)comm->device->reached,
				 comm->device->comm_stream);
		comm->device->reached = NULL;
	}
	zero_slots_delete(comm->slots);
	zero_slots_delete(comm->own_slots);
	if (comm->nccl.device)
		zero_nccl_close(&comm->nccl, comm->comm.broken || !comm->agreed);
	if (comm->parent.device)
		zero_nccl_close(&comm->parent, comm->comm.broken || !comm->agreed);
	/* From here on only the device is waited for. */
	if (comm->device)
		comm->device->has_failed = NULL;
	stopped = zero_nccl_watchdog_stop(comm->watchdog);
	if (stopped)
		zero_nccl_watchdog_delete(comm->watchdog);
	zero_memory_delete(comm->memory);
	if (comm->device)
		zero_device_leave(comm->device);
	zero_device_close(comm->device);
	free(comm->comm.intents);
	free(comm->nodes);
	/* NCCL may still write to the result of a split that failed. */
	if (!comm->aborted)
		free(comm->not_member);
	free(comm);
}

zero_status zero_cuda_caller_comm(struct zero_cuda_comm *cuda, const char *path,
				  struct zero_nccl_comm *made)
{
	ncclUniqueId id;
	zero_status status;

	zero_device_enter(cuda->device);
	if (cuda->comm.place.world > 1) {
		status = zero_nccl_split(&cuda->parent, 0, cuda->comm.place.rank,
					 cuda->open_seconds, false, made);
	} else {
		status = zero_nccl_open(path);
		if (!status)
			status = zero_nccl_status(zero_nccl.get_unique_id(&id), "ncclGetUniqueId",
						  NULL);
		if (!status)
			status = zero_nccl_init(made, cuda->device, 0, 1, &id, 1,
						cuda->open_seconds);
	}
	zero_device_leave(cuda->device);
	made->for_caller = true;
	if (!status)
		zero_nccl_watchdog_add(cuda->watchdog, made);
	return status;
}
