/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks with GPUs find each other. What the launcher's own servers carry (PMIx: put, one fence,
 * get) is where each rank listens and, from every 128th rank, an id of NCCL: NCCL's ranks then
 * begin with that many roots, so that no rank serves them all. A rank gets the ids and its
 * neighbours in the control tree, no more; all else is told by the tree. A rank that cannot take
 * part still comes so far, and says why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "backend/bootstrap.h"

enum {
	RANKS_A_ROOT = 128,
	SCALABLE = 22304,  /* the version of NCCL that takes several ids */
	SYMMETRIC = 22700, /* and that knows symmetric windows */
};

/* Communicators made so far, by every rank alike: keys are put once. */
static unsigned communicators;

struct opening {
	const struct zero_backend_config *config;
	const struct zero_bootstrap_ops *wire;
	struct zero_cuda_comm *comm;
};

/* What all ranks know of each. */
struct introduction {
	uint64_t node;
	uint8_t gpu[16];
	int32_t version; /* of NCCL */
	int32_t windows; /* outputs can be registered with it */
};

/* ---- by the launcher ------------------------------------------------------------------------- */

static void key_of(const struct zero_cuda_comm *comm, const char *what, char *key, size_t size)
{
	snprintf(key, size, "zero.%u.%s", comm->number, what);
}

static zero_status put(const struct zero_cuda_comm *comm, const char *what, const void *data,
		       size_t bytes)
{
	char key[64];

	key_of(comm, what, key, sizeof(key));
	return comm->wire->put(key, data, bytes);
}

static zero_status get(const struct zero_cuda_comm *comm, int rank, const char *what, void *data,
		       size_t bytes)
{
	zero_status status;
	char key[64];
	size_t got = 0;

	key_of(comm, what, key, sizeof(key));
	status = comm->wire->get(rank, key, data, bytes, &got);
	if (!status && got != bytes)
		status = zero_core->fail(ZERO_E_COMM,
					 "rank %d put %zu bytes as %s, not %zu: is it of another "
					 "build of the library?",
					 rank, got, key, bytes);
	return status;
}

static zero_status address_of(void *context, int rank, struct zero_address *address)
{
	return get(context, rank, "at", address, sizeof(*address));
}

/* Every 128th rank makes an id; NCCL then listens for ranks that come with it. Where none could be
   made nobody asks for it, since all hear of that. */
static zero_status put_id(const struct opening *opening, zero_status status)
{
	ncclUniqueId id = {{0}};

	if (opening->comm->comm.place.rank % RANKS_A_ROOT)
		return status;
	if (!status)
		status = zero_nccl_status(zero_nccl.get_unique_id(&id), "ncclGetUniqueId", NULL);
	put(opening->comm, "id", &id, sizeof(id));
	return status;
}

static zero_status get_ids(const struct opening *opening, ncclUniqueId *ids, int count)
{
	zero_status status = ZERO_OK;

	for (int i = 0; !status && i < count; i++)
		status = get(opening->comm, i * RANKS_A_ROOT, "id", &ids[i], sizeof(ids[i]));
	return status;
}

/* ---- among the ranks ------------------------------------------------------------------------- */

static bool is_broken(void *context, char *text, size_t size, int *rank)
{
	return zero_control_has_failed(context, text, size, rank);
}

/* COLLECTIVE. Which ranks are on one node, how many share this rank's GPU, and NCCL's oldest
   version. */
static zero_status introduce(struct zero_cuda_comm *comm, size_t *sharing, int *version)
{
	size_t world = (size_t)comm->comm.place.world;
	const char *node = comm->comm.place.node;
	struct introduction mine = {.node = zero_core->hash(node, strlen(node), 0),
				    .version = zero_nccl.version,
				    .windows = !zero_memory_is_callers(comm->memory)};
	struct introduction *all = calloc(world, sizeof(*all));
	zero_status status;

	comm->nodes = calloc(world, sizeof(*comm->nodes));
	if (!all || !comm->nodes) {
		free(all);
		return zero_core->fail(ZERO_E_COMM, "no memory for %zu ranks", world);
	}
	memcpy(mine.gpu, comm->device->uuid.bytes, sizeof(mine.gpu));
	status = zero_control_exchange(comm->talk, &mine, all, sizeof(mine));
	*sharing = 0;
	*version = zero_nccl.version;
	comm->uses_windows = true;
	for (size_t rank = 0; !status && rank < world; rank++) {
		comm->nodes[rank] = all[rank].node;
		comm->uses_windows = comm->uses_windows && all[rank].windows;
		*version = all[rank].version < *version ? all[rank].version : *version;
		*sharing += all[rank].node == mine.node &&
			    !memcmp(all[rank].gpu, mine.gpu, sizeof(mine.gpu));
	}
	free(all);
	return status;
}

/* COLLECTIVE. */
static zero_status begin_nccl(const struct opening *opening, int version)
{
	struct zero_cuda_comm *comm = opening->comm;
	const struct zero_place *place = &comm->comm.place;
	int roots = version >= SCALABLE ? (place->world + RANKS_A_ROOT - 1) / RANKS_A_ROOT : 1;
	ncclUniqueId *ids = calloc((size_t)roots, sizeof(*ids));
	zero_status status;

	if (!ids)
		return zero_core->fail(ZERO_E_COMM, "no memory for %d ids of NCCL", roots);
	status = get_ids(opening, ids, roots);
	if (!status) {
		zero_device_enter(comm->device);
		status = zero_nccl_init(&comm->nccl, comm->device, place->rank, place->world, ids,
					roots, comm->open_seconds);
		zero_device_leave(comm->device);
	}
	free(ids);
	return status;
}

/* COLLECTIVE. `status` is this rank's so far. */
static zero_status join(struct opening *opening, zero_status status, size_t *sharing)
{
	struct zero_cuda_comm *comm = opening->comm;
	int version = 0;

	status = zero_agree_status(&comm->comm, status);
	if (status)
		return status;
	comm->device->is_broken = is_broken;
	comm->device->on_failure_context = comm->control;
	status = introduce(comm, sharing, &version);
	if (!status) {
		status = begin_nccl(opening, version);
		/* The others are in it too, and would wait for this rank. */
		if (status)
			zero_control_fail_all(comm->control, comm->comm.place.rank,
					   zero_core->last_error());
	}
	if (!status) {
		zero_device_enter(comm->device);
		status = zero_cuda_make_staging(comm);
		zero_device_leave(comm->device);
	}
	status = zero_agree_status(&comm->comm, status);
	if (status)
		return status;
	zero_watch_add(comm->watch, &comm->nccl);
	comm->symmetric = version >= SYMMETRIC;
	if (comm->uses_windows)
		status = zero_windows_new(&comm->nccl, comm->memory, comm->symmetric,
					  &comm->windows);
	status = zero_agree_status(&comm->comm, status);
	comm->agreed = !status;
	return status;
}

/* COLLECTIVE, whatever this rank's status: the others are not to wait for it. */
static zero_status meet(struct opening *opening, zero_status mine, size_t *sharing)
{
	struct zero_cuda_comm *comm = opening->comm;
	struct zero_address own;
	struct zero_control_config config = {
		.rank = comm->comm.place.rank,
		.world = comm->comm.place.world,
		.seconds = comm->open_seconds,
		.address = address_of,
		.on_failure = zero_watch_wake,
		.context = comm,
	};
	zero_status status = zero_control_listen(&comm->control, &own);

	if (status)
		return status;
	status = zero_watch_new(comm->control, comm->device, config.rank, &comm->watch);
	if (status)
		return status;
	config.on_failure_context = comm->watch;
	status = put(opening->comm, "at", &own, sizeof(own));
	mine = put_id(opening, mine);
	if (!status)
		status = opening->wire->fence(comm->open_seconds);
	if (!status)
		status = zero_control_join(comm->control, &config);
	if (status)
		return status;
	comm->talk = zero_control_world_team(comm->control);
	comm->joined = true;
	return join(opening, mine, sharing);
}

/* ---- this rank ------------------------------------------------------------------------------- */

/* Whether there is a launcher that only a module for PMIx would understand. */
static bool is_launched(const struct zero_backend_config *config)
{
	return config->expected_world > 1 || getenv("PMIX_RANK");
}

static zero_status find_place(struct opening *opening)
{
	struct zero_place *place = &opening->comm->comm.place;
	struct zero_bootstrap_place wired = {.world = 1, .local_world = 1};
	const void *table;
	zero_status status = zero_core->module_open("pmix", &table);

	gethostname(place->node, sizeof(place->node) - 1);
	if (!status) {
		opening->wire = table;
		status = opening->wire->open(&wired);
		if (status)
			opening->wire = NULL;
	} else if (!is_launched(opening->config)) {
		status = ZERO_OK;
	}
	place->rank = wired.rank;
	place->world = place->nodes = wired.world;
	place->local_rank = wired.local_rank;
	place->local_world = wired.local_world;
	place->share_world = place->share_least = 1;
	if (!status && opening->config->expected_world &&
	    opening->config->expected_world != wired.world)
		status = zero_core->fail(ZERO_E_COMM,
					 "the launcher said %d ranks, but there are %d: start them "
					 "with srun --mpi=pmix or zerorun",
					 opening->config->expected_world, wired.world);
	return status;
}

/* Its GPU, and NCCL where there are others. */
static zero_status take_part(struct zero_cuda_comm *comm, const struct zero_backend_config *config)
{
	zero_status status = zero_driver_open();

	if (!status)
		status = zero_device_open(comm->comm.place.local_rank, config->stream,
					  &comm->device);
	if (!status)
		status = zero_memory_new(comm->device, config->allocator, &comm->memory);
	if (!status && comm->comm.place.world > 1)
		status = zero_nccl_open(config->nccl);
	return status;
}

static zero_status fill(struct zero_cuda_comm *comm, const struct zero_backend_config *config)
{
	const struct zero_place *place = &comm->comm.place;

	comm->comm.ops = place->world > 1 ? &zero_cuda_team_ops : &zero_cuda_alone_ops;
	comm->comm.threaded = true;
	comm->first = comm;
	comm->open_seconds = config->open_seconds;
	comm->reduce = config->reduce;
	comm->ordered = config->reduce == ZERO_REDUCE_ORDERED ||
			(config->reduce == ZERO_REDUCE_AUTO && place->local_world == place->world);
	comm->comm.shown = calloc((size_t)place->world, sizeof(*comm->comm.shown));
	comm->none = calloc(1, sizeof(*comm->none));
	return comm->comm.shown && comm->none
		       ? ZERO_OK
		       : zero_core->fail(ZERO_E_MEMORY, "no memory for %d ranks", place->world);
}

zero_status zero_cuda_open(const struct zero_backend_config *config, struct zero_cuda_comm **made,
			   size_t *sharing)
{
	struct opening opening = {.config = config};
	zero_status status, mine;

	*made = NULL;
	*sharing = 1;
	opening.comm = calloc(1, sizeof(*opening.comm));
	if (!opening.comm)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a communicator");
	opening.comm->number = communicators++;
	status = find_place(&opening);
	opening.comm->wire = opening.wire;
	if (!status)
		status = fill(opening.comm, config);
	if (!status) {
		mine = take_part(opening.comm, config);
		status = opening.comm->comm.place.world > 1 ? meet(&opening, mine, sharing) : mine;
	}
	if (status && !opening.comm->joined)
		zero_cuda_close(opening.comm);
	else
		*made = opening.comm;
	return status;
}

void zero_cuda_close(struct zero_cuda_comm *comm)
{
	bool stopped;

	if (comm->device)
		zero_device_enter(comm->device);
	zero_team_comms_close(&comm->comm);
	zero_cuda_part(comm, &comm->nccl);
	comm->aborted = comm->nccl.aborted;
	if (comm->device && comm->memory)
		zero_cuda_drop_buffers(comm);
	zero_windows_delete(comm->windows);
	if (comm->nccl.device)
		zero_nccl_close(&comm->nccl, comm->comm.broken || !comm->agreed);
	/* What is left waits for the device alone. */
	if (comm->device)
		comm->device->is_broken = NULL;
	stopped = zero_watch_stop(comm->watch);
	zero_control_close(comm->control);
	if (stopped)
		zero_watch_delete(comm->watch);
	zero_memory_delete(comm->memory);
	if (comm->device)
		zero_device_leave(comm->device);
	zero_device_close(comm->device);
	if (comm->wire)
		comm->wire->close();
	free(comm->comm.shown);
	free(comm->nodes);
	/* NCCL may still write to what a split that failed left. */
	if (!comm->aborted)
		free(comm->none);
	free(comm);
}

/* COLLECTIVE. */
zero_status zero_cuda_caller_comm(struct zero_cuda_comm *cuda, const char *path,
				  struct zero_nccl_comm *made)
{
	ncclUniqueId id;
	zero_status status;

	made->callers = true;
	zero_device_enter(cuda->device);
	if (cuda->comm.place.world > 1) {
		status = zero_nccl_split(&cuda->nccl, 0, cuda->comm.place.rank, cuda->open_seconds,
					 made);
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
	if (!status)
		zero_watch_add(cuda->watch, made);
	return status;
}
