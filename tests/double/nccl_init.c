/* SPDX-License-Identifier: Apache-2.0 */
/* Creates communicators from ids and by a split. */
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

static ncclResult_t apply_config(struct ncclComm *comm, const ncclConfig_t *config)
{
	if (config && config->magic != 0xcafebeef)
		return refuse(ncclInvalidArgument,
			      "a config that does not begin as NCCL_CONFIG_INITIALIZER");
	if (config) {
		comm->blocking = config->blocking != 0;
		comm->copy_engines =
			config->CTAPolicy > 0 && (config->CTAPolicy & NCCL_CTA_POLICY_ZERO);
	}
	return ncclSuccess;
}

static uint64_t hash_ids(const ncclUniqueId *ids, int count)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < (size_t)count * sizeof *ids; i++)
		hash = (hash ^ ((const unsigned char *)ids)[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* Waits for all ranks, and checks that they have the same ids. */
static ncclResult_t meet(struct ncclComm *comm, uint64_t ids)
{
	struct record record = {.kind = INIT, .root = -1};
	struct segment *shared = comm->shared;

	if (!agree(comm, LANE_CALLS, &record))
		return ncclInternalError;
	for (int rank = 0; rank < comm->world; rank++)
		if (shared->member[rank].ids != ids)
			mismatch(comm, "ranks %d and %d of %d have different ids", comm->rank, rank,
				 comm->world);
	return ncclSuccess;
}

/* Returns the rank's root as NCCL chooses it: each id serves a range of ranks. */
static int root_of(int rank, int world, int ids)
{
	int small = world / ids, larger = world % ids;

	return rank < larger * (small + 1) ? rank / (small + 1)
					   : (rank - larger) / (small ? small : 1);
}

static ncclResult_t run_init(struct job *job)
{
	struct ncclComm *comm = job->comm;
	const ncclUniqueId *root = &job->ids[root_of(comm->rank, comm->world, job->id_count)];
	uint64_t hash = hash_ids(job->ids, job->id_count);
	ncclResult_t result;

	if (!segment_is_there(root) || !segment_attach(comm, &job->ids[0], hash))
		return refuse(ncclRemoteError,
			      "the process that made the id of rank %d is gone, or has used it",
			      comm->rank);
	if (job->hang)
		wait_for_abort(comm);
	result = meet(comm, hash);
	/* every root closes its own */
	for (int i = 0; i < job->id_count; i++)
		segment_close(&job->ids[i]);
	return result;
}

static ncclResult_t init(ncclComm_t *made, int world, int rank, int id_count, ncclUniqueId *ids,
			 ncclConfig_t *config, const char *function)
{
	struct job *job;
	struct ncclComm *comm;
	ncclResult_t result;
	enum trouble trouble = trouble_in(function, false, &result);

	if (trouble == FAIL)
		return result;
	if (!made || !ids || world < 1 || rank < 0 || rank >= world || id_count < 1 ||
	    id_count > world)
		return refuse(ncclInvalidArgument, "%s: rank %d of %d with %d ids", function, rank,
			      world, id_count);
	driver_find();
	know_rank(rank);
	comm = comm_new(rank, world);
	result = apply_config(comm, config);
	if (!result && !driver_context(&comm->context))
		result = refuse(ncclUnhandledCudaError,
				"%s: no context is current, so that NCCL would take device 0",
				function);
	if (result) {
		comm_discard(comm);
		return result;
	}
	job = calloc(1, sizeof *job);
	*job = (struct job){.comm = comm, .run = run_init, .hang = trouble == HANG};
	job->id_count = id_count;
	job->ids = malloc((size_t)id_count * sizeof *ids);
	memcpy(job->ids, ids, (size_t)id_count * sizeof *ids);
	*made = comm;
	result = submit_job(job);
	if (result && result != ncclInProgress) {
		*made = NULL;
		comm_discard(comm);
	}
	return result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
				    ncclConfig_t *config)
{
	return init(comm, world, rank, 1, &id, config, "ncclCommInitRankConfig");
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int world, ncclUniqueId id, int rank)
{
	return init(comm, world, rank, 1, &id, NULL, "ncclCommInitRank");
}

#ifndef OLD_NCCL
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int world, int rank, int id_count,
				      ncclUniqueId *ids, ncclConfig_t *config)
{
	return init(comm, world, rank, id_count, ids, config, "ncclCommInitRankScalable");
}
#endif

/* Orders the ranks of this color by (key, rank). Returns this rank's place; sets *count and
   *first. */
static int place_in_color(const struct ncclComm *comm, int *count, int *first)
{
	const struct member *member = atomic_load(&comm->shared)->member;
	const struct member *me = &member[comm->rank];
	int place = 0;

	*count = 0;
	*first = comm->rank;
	for (int rank = 0; rank < comm->world; rank++) {
		const struct member *other = &member[rank];

		if (other->color != me->color)
			continue;
		++*count;
		if (other->key < me->key || (other->key == me->key && rank < comm->rank))
			place++;
		if (other->key < member[*first].key ||
		    (other->key == member[*first].key && rank < *first))
			*first = rank;
	}
	return place;
}

static ncclResult_t join_child(struct ncclComm *child, const struct segment_id *made)
{
	ncclUniqueId id;
	ncclResult_t result;
	uint64_t hash;

	memset(&id, 0, sizeof id);
	memcpy(&id, made, sizeof *made);
	hash = hash_ids(&id, 1);
	if (!segment_attach(child, &id, hash))
		return refuse(ncclRemoteError, "the first rank of a split is gone");
	result = meet(child, hash);
	segment_close(&id);
	return result;
}

static ncclResult_t run_split(struct job *job)
{
	struct ncclComm *comm = job->comm, *child = job->child;
	struct record record = {.kind = SPLIT, .root = -1};
	struct member *member;
	ncclUniqueId id;
	int count, first;

	if (job->hang)
		wait_for_abort(comm);
	if (comm->aborted)
		return ncclInternalError;
	member = comm->shared->member;
	member[comm->rank].color = job->color;
	member[comm->rank].key = job->key;
	if (!agree(comm, LANE_CALLS, &record))
		return ncclInternalError;
	child->rank = place_in_color(comm, &count, &first);
	child->world = count;
	if (job->color >= 0 && first == comm->rank) {
		if (!segment_new(&id))
			return refuse(ncclSystemError, "no shared memory");
		memcpy(&member[first].made, &id, sizeof member[first].made);
	}
	/* every first rank has written the id of its segment */
	if (!barrier(comm, LANE_CALLS))
		return ncclInternalError;
	if (job->color < 0)
		return ncclSuccess;
	return join_child(child, &member[first].made);
}

/* The child exists once its parent reports success. */
static ncclResult_t run_whole_split(struct job *job)
{
	ncclResult_t result;

	comm_set_pending(job->comm, job->child);
	result = run_split(job);
	comm_set_pending(job->comm, NULL);
	if (result || job->color < 0)
		comm_discard(job->child);
	else
		atomic_store_explicit((_Atomic(struct ncclComm *) *)job->made, job->child,
				      memory_order_release);
	return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
			   ncclConfig_t *config)
{
	struct job *job;
	struct ncclComm *child;
	ncclResult_t result;
	enum trouble trouble = trouble_in("ncclCommSplit", false, &result);

	if (trouble == FAIL)
		return result;
	result = comm_ready(comm, "ncclCommSplit");
	if (result)
		return result;
	if (!made || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
		return refuse(ncclInvalidArgument, "ncclCommSplit: color %d", color);
	child = comm_new(0, comm->world);
	child->blocking = comm->blocking;
	child->context = comm->context;
	result = apply_config(child, config);
	if (result) {
		comm_discard(child);
		return result;
	}
	*made = NULL;
	job = calloc(1, sizeof *job);
	*job = (struct job){.comm = comm, .run = run_whole_split, .hang = trouble == HANG};
	job->color = color;
	job->key = key;
	job->child = child;
	job->made = made;
	return submit_job(job);
}
