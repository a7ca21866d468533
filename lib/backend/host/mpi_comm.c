/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator on MPI: it runs operations, opens and closes, and splits off teams. */
#include <stdlib.h>
#include <string.h>

#include "mpi_comm.h"

/* ---- running operations ---------------------------------------------------------------------- */

static zero_status mpi_begin(struct zero_comm *comm, const struct zero_op *ops, size_t count)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);

	zero_node_next_table(mpi->node);
	if (mpi->node->world == 1)
		return zero_shared_buffer_begin(mpi, ops, count);
	if (count > ZERO_NODE_OPERATIONS)
		return zero_core->fail(ZERO_E_UNSUPPORTED,
				       "%zu operations at once are more than %d: submit fewer "
				       "groups together",
				       count, ZERO_NODE_OPERATIONS);
	for (size_t i = 0; i < count; i++) {
		struct zero_published *published = zero_node_publish(mpi->node, i);

		published->send = zero_node_address(mpi->node, ops[i].send);
		published->recv = zero_node_address(mpi->node, ops[i].recv);
		published->source = ops[i].send;
	}
	return zero_shared_buffer_begin(mpi, ops, count);
}

static zero_status run_team_comm(struct zero_mpi_comm *mpi, const struct zero_op *op);

/* Runs operation i; neighbouring scatters run together. *done becomes how many were run. */
static zero_status run_op(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count,
			  size_t i, size_t *done)
{
	const struct zero_op *op = &ops[i];

	*done = 1;
	switch (op->kind) {
	case ZERO_OP_ALL_GATHER:
		return zero_mpi_all_gather(mpi, op, i);
	case ZERO_OP_REDUCE_SCATTER:
		return zero_mpi_reduce_scatter(mpi, op, i);
	case ZERO_OP_SCATTER:
		while (i + *done < count && ops[i + *done].kind == ZERO_OP_SCATTER)
			++*done;
		return zero_mpi_scatter(mpi, op, *done, i);
	case ZERO_OP_ALL_TO_ALL:
		return zero_mpi_all_to_all(mpi, op);
	case ZERO_OP_BROADCAST:
		return zero_mpi_broadcast(mpi, op, i);
	case ZERO_OP_ALLGATHER_BYTES:
		return zero_mpi_allgather_bytes(mpi, op->send, op->recv, op->count);
	case ZERO_OP_CAST:
		mpi->kernels->cast(op->to,
				   op->shared ? zero_shared_base(op->shared) + op->at : op->recv,
				   op->from, op->send, op->count);
		break;
	case ZERO_OP_TEAM_COMM:
		return run_team_comm(mpi, op);
	case ZERO_OP_ALLOC:
	case ZERO_OP_FREE:
		break;
	}
	return ZERO_OK;
}

/* A read of a peer's memory may fail on one rank alone, so the ranks agree on the outcome. */
static zero_status agree_on_reads(struct zero_mpi_comm *mpi, zero_status status)
{
	int failed = status != ZERO_OK, error;

	error = MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, mpi->mpi_comm);
	if (status || (!error && !failed))
		return status;
	return error ? zero_mpi_status(error, "MPI_Allreduce")
		     : zero_core->fail(ZERO_E_COMM,
				       "another rank could not read the root's memory");
}

/* Ranks read and write each other's memory, so a barrier of the node follows. A rank with an error
   takes part in every barrier, since its peers wait for it there. */
static zero_status run_all(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count,
			   zero_status status)
{
	enum zero_op_kind last = ZERO_OP_ALLOC;
	bool touched = false, from_root = false;
	size_t done;

	for (size_t i = 0; i < count; i += done) {
		done = 1;
		if (!zero_op_is_payload(&ops[i])) {
			if (!status)
				status = run_op(mpi, ops, count, i, &done);
			continue;
		}
		/* For example, sums must be complete on all ranks before they are gathered. */
		if (touched && ops[i].kind != last)
			zero_node_barrier(mpi->node);
		last = ops[i].kind;
		touched = true;
		from_root |= last == ZERO_OP_SCATTER || last == ZERO_OP_BROADCAST;
		if (!status)
			status = run_op(mpi, ops, count, i, &done);
		else if (zero_mpi_all_gather_has_barrier(mpi, &ops[i], i))
			zero_node_barrier(mpi->node);
		mpi->comm.collectives += done;
	}
	if (touched)
		zero_node_barrier(mpi->node);
	return from_root ? agree_on_reads(mpi, status) : status;
}

static zero_status mpi_run(struct zero_comm *comm, const struct zero_op *ops, size_t count,
			   zero_status status, struct zero_device_order *order)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);

	(void)order;
	if (status)
		zero_shared_buffer_undo(mpi, ops, count);
	else
		status = run_all(mpi, ops, count, zero_shared_buffer_end(mpi, ops, count));
	if (mpi->counter) {
		mpi->counter->comm.bytes_sent += atomic_exchange(&comm->bytes_sent, 0);
		mpi->counter->comm.collectives += atomic_exchange(&comm->collectives, 0);
	}
	return status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void mpi_close(struct zero_comm *comm)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);
	bool is_first = mpi->is_first;

	zero_team_comms_close(comm);
	zero_mpi_reduce_close(mpi);
	zero_shared_buffer_close(mpi);
	zero_node_close(mpi->node, is_first);
	if (is_first)
		zero_mpi_users -= mpi->mpi_comm != MPI_COMM_NULL;
	else if (mpi->mpi_comm != MPI_COMM_NULL)
		MPI_Comm_free(&mpi->mpi_comm);
	pthread_mutex_destroy(&mpi->deferred_lock);
	free(comm->members);
	free(mpi->node_of);
	free(mpi->node_index);
	free(comm->intents);
	free(mpi);
}

static void mpi_free(struct zero_comm *comm, void *data, const struct zero_device_order *order)
{
	(void)order;
	zero_pool_free(zero_mpi_of(comm)->pool, data);
}

static zero_status mpi_allgather_bytes(struct zero_comm *comm, const void *send, void *recv,
				       size_t bytes)
{
	return zero_mpi_allgather_bytes(zero_mpi_of(comm), send, recv, bytes);
}

static zero_status mpi_broadcast(struct zero_comm *comm, void *data, size_t bytes, int root)
{
	int error = MPI_Bcast(data, (int)bytes, MPI_BYTE, root, zero_mpi_of(comm)->mpi_comm);

	return zero_mpi_status(error, "MPI_Bcast");
}

static const struct zero_comm_ops mpi_ops = {
	.close = mpi_close,
	.begin = mpi_begin,
	.run = mpi_run,
	.free = mpi_free,
	.shared_free = zero_shared_buffer_free,
	.begin_max = zero_mpi_begin_max,
	.finish_max = zero_mpi_finish_max,
	.allgather = mpi_allgather_bytes,
	.broadcast = mpi_broadcast,
};

static struct zero_mpi_comm *new_comm(const struct zero_kernels *kernels, struct zero_pool *pool)
{
	struct zero_mpi_comm *mpi = calloc(1, sizeof(*mpi));

	if (!mpi)
		return NULL;
	mpi->comm.ops = &mpi_ops;
	mpi->kernels = kernels;
	mpi->pool = pool;
	mpi->mpi_comm = MPI_COMM_NULL;
	pthread_mutex_init(&mpi->deferred_lock, NULL);
	return mpi;
}

/* The number of ranks on the smallest node. */
static int smallest_node(const struct zero_mpi_comm *mpi)
{
	int world = mpi->comm.place.world, least = world;

	for (int first = 0; first < world; first++) {
		int ranks = 0;

		for (int rank = first; rank < world && mpi->node_of[first] == first; rank++)
			ranks += mpi->node_of[rank] == first;
		if (ranks && ranks < least)
			least = ranks;
	}
	return least;
}

/* COLLECTIVE. Finds out which ranks share memory, and allocates the tables of their nodes. */
static zero_status find_nodes(struct zero_mpi_comm *mpi)
{
	struct zero_rank_info *place = &mpi->comm.place;
	int mine[2] = {place->rank, mpi->node->rank}, *all, error;

	mpi->node_of = calloc((size_t)place->world, sizeof(int));
	mpi->node_index = calloc((size_t)place->world, sizeof(int));
	mpi->comm.intents = calloc((size_t)place->world, sizeof(*mpi->comm.intents));
	all = calloc((size_t)place->world, sizeof(mine));
	if (!mpi->node_of || !mpi->node_index || !mpi->comm.intents || !all) {
		free(all);
		return zero_core->fail(ZERO_E_MEMORY, "no memory for %d ranks", place->world);
	}
	/* A node is known by the first of its ranks. */
	mine[0] = mpi->first_of_node;
	error = MPI_Allgather(mine, 2, MPI_INT, all, 2, MPI_INT, mpi->mpi_comm);
	place->shm_groups = 0;
	for (int rank = 0; !error && rank < place->world; rank++) {
		mpi->node_of[rank] = all[2 * rank];
		mpi->node_index[rank] = all[2 * rank + 1];
		place->shm_groups += mpi->node_of[rank] == rank;
	}
	place->shm_world_min = error ? 1 : smallest_node(mpi);
	place->shm_rank = mpi->node->rank;
	place->shm_world = mpi->node->world;
	free(all);
	return zero_mpi_status(error, "MPI_Allgather");
}

/* COLLECTIVE over `ranks`, which share memory. Sets first_of_node. */
static int find_first(struct zero_mpi_comm *mpi, MPI_Comm ranks)
{
	mpi->first_of_node = mpi->comm.place.rank;
	if (mpi->node->world == 1)
		return MPI_SUCCESS;
	return MPI_Bcast(&mpi->first_of_node, 1, MPI_INT, 0, ranks);
}

/* COLLECTIVE. Lets the ranks of this node share memory, in sets of `most` (0: all). */
static zero_status share_memory(struct zero_mpi_comm *mpi, MPI_Comm node, int most)
{
	int color = most > 0 ? mpi->comm.place.local_rank / most : 0, error;
	MPI_Comm ranks = MPI_COMM_NULL;
	zero_status status;

	error = MPI_Comm_split(node, color, mpi->comm.place.rank, &ranks);
	if (error)
		return zero_mpi_status(error, "MPI_Comm_split");
	status = zero_node_open(ranks, &mpi->arena, &mpi->node);
	if (mpi->arena)
		zero_pool_share(mpi->pool, mpi->arena);
	if (!status)
		status = zero_mpi_status(find_first(mpi, ranks), "MPI_Bcast");
	MPI_Comm_free(&ranks);
	return status;
}

zero_status zero_comm_mpi(const struct zero_kernels *kernels, struct zero_pool *pool, int share,
			  struct zero_comm **comm)
{
	struct zero_mpi_comm *mpi = new_comm(kernels, pool);
	MPI_Comm node = MPI_COMM_NULL;
	zero_status status;

	*comm = NULL;
	if (!mpi)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a communicator");
	mpi->is_first = true;
	status = zero_mpi_init(&mpi->mpi_comm, &node, &mpi->comm);
	if (status || mpi->mpi_comm == MPI_COMM_NULL) {
		mpi_close(&mpi->comm);
		return status;
	}
	zero_mpi_users++;
	*comm = &mpi->comm;
	status = share_memory(mpi, node, share);
	MPI_Comm_free(&node);
	if (!status)
		status = find_nodes(mpi);
	return status ? status : zero_mpi_reduce_open(mpi);
}

/* ---- teams ----------------------------------------------------------------------------------- */

/* COLLECTIVE over the team. */
static zero_status open_team(struct zero_mpi_comm *parent, struct zero_mpi_comm *team)
{
	struct zero_rank_info *place = &team->comm.place;
	MPI_Comm node = MPI_COMM_NULL;
	zero_status status;
	int error;

	*place = parent->comm.place;
	team->comm.threaded = parent->comm.threaded;
	team->comm.main_thread_only = parent->comm.main_thread_only;
	team->arena = parent->arena;
	team->counter = parent;
	MPI_Comm_rank(team->mpi_comm, &place->rank);
	MPI_Comm_size(team->mpi_comm, &place->world);
	error = MPI_Comm_split(team->mpi_comm, parent->first_of_node, place->rank, &node);
	if (error)
		return zero_mpi_status(error, "MPI_Comm_split");
	status = zero_node_split(parent->node, parent->arena, node, &team->node);
	if (!status)
		status = zero_mpi_status(find_first(team, node), "MPI_Bcast");
	MPI_Comm_free(&node);
	if (!status)
		status = find_nodes(team);
	return status ? status : zero_mpi_reduce_open(team);
}

static zero_status split(struct zero_mpi_comm *mpi, int color, MPI_Comm *ranks)
{
	int error = MPI_Comm_split(mpi->mpi_comm, color, mpi->comm.place.rank, ranks);

	return zero_mpi_status(error, "MPI_Comm_split");
}

/* COLLECTIVE over all ranks. */
static zero_status make_team(struct zero_comm *comm, const struct zero_op *op, bool member,
			     struct zero_comm **made)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);
	struct zero_mpi_comm *team = member ? new_comm(mpi->kernels, mpi->pool) : NULL;
	int *members = member ? calloc(op->count, sizeof(int)) : NULL;
	MPI_Comm ranks = MPI_COMM_NULL;
	zero_status status = split(mpi,
				   !member       ? MPI_UNDEFINED
				   : op->divides ? op->root
						 : 0,
				   &ranks);

	if (!status && member && (!team || !members))
		status = zero_core->fail(ZERO_E_COMM, "no memory for a team");
	if (members)
		memcpy(members, op->members, op->count * sizeof(int));
	if (!team) {
		free(members);
		return status;
	}
	team->comm.members = members;
	*made = &team->comm;
	if (status)
		return status;
	team->mpi_comm = ranks;
	MPI_Comm_set_errhandler(ranks, MPI_ERRORS_RETURN);
	return open_team(mpi, team);
}

static zero_status run_team_comm(struct zero_mpi_comm *mpi, const struct zero_op *op)
{
	return zero_team_comm_new(&mpi->comm, op, make_team);
}
