/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How several ranks with GPUs find each other. They meet (backend/rendezvous.h), and what NCCL
 * needs goes over the network: every 128th rank makes a unique id of NCCL, which then starts with
 * that many roots, so that no root serves all ranks. A rank that cannot take part still meets the
 * others, and reports why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_comm.h"

enum {
	RANKS_PER_ROOT = 128,
	SCALABLE = 22304,  /* version of NCCL that takes several ids */
	SYMMETRIC = 22700, /* version of NCCL that has symmetric windows */
};

/* What all ranks know of each rank. */
struct rank_info {
	uint64_t node;
	uint8_t gpu[16];
	int32_t version; /* of NCCL */
};

static zero_status has_failed(void *context, char *text, size_t size, int *rank)
{
	return zero_net->has_failed(context, text, size, rank);
}

/* COLLECTIVE. Finds which ranks are on one node, how many share this rank's device, and the oldest
   version of NCCL. */
static zero_status exchange_info(struct zero_cuda_comm *comm, size_t *sharing, int *version)
{
	size_t world = (size_t)comm->comm.place.world;
	const char *node = comm->comm.place.node;
	struct rank_info mine = {.node = zero_core->hash(node, strlen(node), 0),
				 .version = zero_nccl.version};
	struct rank_info *all = calloc(world, sizeof(*all));
	zero_status status;

	comm->nodes = calloc(world, sizeof(*comm->nodes));
	if (!all || !comm->nodes) {
		free(all);
		return zero_core->fail(ZERO_E_COMM, "no memory for %zu ranks", world);
	}
	memcpy(mine.gpu, comm->device->uuid.bytes, sizeof(mine.gpu));
	status = zero_net->allgather(comm->comm.net_team, &mine, all, sizeof(mine));
	*sharing = 0;
	*version = zero_nccl.version;
	for (size_t rank = 0; !status && rank < world; rank++) {
		comm->nodes[rank] = all[rank].node;
		*version = all[rank].version < *version ? all[rank].version : *version;
		*sharing += all[rank].node == mine.node &&
			    !memcmp(all[rank].gpu, mine.gpu, sizeof(mine.gpu));
	}
	free(all);
	return status;
}

/* COLLECTIVE. `id` is what this rank has made, if it is a root. */
static zero_status open_nccl(struct zero_cuda_comm *comm, int version, const ncclUniqueId *id)
{
	const struct zero_rank_info *place = &comm->comm.place;
	int roots = version >= SCALABLE ? (place->world + RANKS_PER_ROOT - 1) / RANKS_PER_ROOT : 1;
	ncclUniqueId *ids = calloc((size_t)roots, sizeof(*ids));
	zero_status status = ZERO_OK;

	if (!ids)
		return zero_core->fail(ZERO_E_COMM, "no memory for %d ids of NCCL", roots);
	for (int i = 0; !status && i < roots; i++) {
		ids[i] = *id;
		status = zero_net->broadcast(comm->comm.net_team, &ids[i], sizeof(ids[i]),
					     i * RANKS_PER_ROOT);
	}
	if (!status) {
		zero_device_enter(comm->device);
		status = zero_nccl_init(&comm->parent, comm->device, place->rank, place->world, ids,
					roots, comm->open_seconds);
		if (!status)
			status = zero_nccl_split(&comm->parent, 0, place->rank, comm->open_seconds,
						 comm->copy_engines, &comm->nccl);
		if (!status)
			status = zero_reduce_grid_new(comm);
		if (!status)
			status = zero_cuda_split_reduces(comm, comm);
		zero_device_leave(comm->device);
	}
	free(ids);
	return status;
}

/* NCCL takes one rank for each GPU, unless it takes the ranks for different nodes. */
static zero_status explain_sharing(const struct zero_cuda_comm *comm, zero_status status,
				   size_t sharing)
{
	char why[1024];

	snprintf(why, sizeof(why), "%s", zero_core->last_error());
	return zero_core->fail(
		status,
		"%s; %zu ranks of %s have the same GPU, %s: start at most as many tasks "
		"a node as it has GPUs that they see",
		why, sharing, comm->comm.place.node, comm->device->name);
}

/* COLLECTIVE. `status` is this rank's so far. */
static zero_status open_all(struct zero_cuda_comm *comm, zero_status status, size_t *sharing)
{
	ncclUniqueId id = {{0}};
	int version = 0;

	/* NCCL listens on an id for other ranks. */
	if (!status && comm->comm.place.rank % RANKS_PER_ROOT == 0)
		status = zero_nccl_status(zero_nccl.get_unique_id(&id), "ncclGetUniqueId", NULL);
	status = comm->comm.agree_status(&comm->comm, status);
	if (status)
		return status;
	comm->device->has_failed = has_failed;
	comm->device->failure_context = comm->net;
	status = exchange_info(comm, sharing, &version);
	if (!status) {
		status = open_nccl(comm, version, &id);
		if (status && *sharing > 1)
			status = explain_sharing(comm, status, *sharing);
		/* The other ranks would wait in NCCL for this rank. */
		if (status)
			zero_net->fail_all(comm->net, ZERO_E_COMM, comm->comm.place.rank,
					   zero_core->last_error());
	}
	if (!status) {
		zero_device_enter(comm->device);
		status = zero_cuda_prepare_reduces(comm);
		zero_device_leave(comm->device);
	}
	status = comm->comm.agree_status(&comm->comm, status);
	if (status)
		return status;
	zero_nccl_watchdog_add(comm->watchdog, &comm->parent);
	zero_nccl_watchdog_add(comm->watchdog, &comm->nccl);
	zero_nccl_watchdog_add(comm->watchdog, &comm->near);
	zero_nccl_watchdog_add(comm->watchdog, &comm->far);
	comm->symmetric = version >= SYMMETRIC;
	zero_device_enter(comm->device);
	status = zero_cuda_register_reduces(comm);
	zero_device_leave(comm->device);
	if (status)
		zero_net->fail_all(comm->net, ZERO_E_COMM, comm->comm.place.rank,
				   zero_core->last_error());
	else
		status = zero_slots_new(&comm->nccl, comm->device, comm->memory, comm->symmetric,
					&comm->slots);
	status = comm->comm.agree_status(&comm->comm, status);
	comm->agreed = !status;
	return status;
}

zero_status zero_cuda_rendezvous(struct zero_cuda_comm *comm, zero_status mine, size_t *sharing)
{
	zero_status status = zero_nccl_watchdog_new(comm->net, comm->device, comm->comm.place.rank,
						    &comm->watchdog);

	if (status)
		return status;
	status = zero_rendezvous_join(&comm->rendezvous, &comm->comm);
	if (status)
		return status;
	comm->joined = true;
	return open_all(comm, mine, sharing);
}
