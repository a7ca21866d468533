/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks meet by their launcher's PMIx, and agree over the network. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous.h"

const struct zero_net_ops *zero_net;
static const struct zero_pmix_ops *launcher; /* NULL: none was there */

/* ---- through the launcher -------------------------------------------------------------------- */

/* Whether a launcher started this rank, so that the pmix module is needed. */
static bool is_launched(const struct zero_backend_config *config)
{
	return config->expected_world > 1 || getenv("PMIX_RANK");
}

zero_status zero_rendezvous_place(struct zero_rendezvous *rendezvous,
				  const struct zero_backend_config *config,
				  struct zero_rank_info *place)
{
	struct zero_pmix_place launched = {.world = 1, .local_world = 1};
	const void *table;
	zero_status status = zero_core->module_open("pmix", &table);

	zero_net = config->net_ops;
	*rendezvous = (struct zero_rendezvous){.net = config->net, .seconds = config->open_seconds};
	gethostname(place->node, sizeof(place->node) - 1);
	if (!status) {
		rendezvous->pmix = launcher = table;
		status = rendezvous->pmix->open(&launched);
		if (status)
			rendezvous->pmix = NULL;
	} else if (!is_launched(config)) {
		status = ZERO_OK;
	}
	place->rank = launched.rank;
	place->world = place->shm_groups = launched.world;
	place->local_rank = launched.local_rank;
	place->local_world = launched.local_world;
	place->shm_world = place->shm_world_min = 1;
	if (!status && config->expected_world && config->expected_world != launched.world)
		status = zero_core->fail(
			ZERO_E_COMM,
			"the launcher announced %d ranks, but there are %d: start them "
			"with srun --mpi=pmix or zerorun",
			config->expected_world, launched.world);
	return status;
}

static zero_status address_of(void *context, int rank, struct zero_address *address)
{
	const struct zero_rendezvous *rendezvous = context;

	return rendezvous->pmix->get(rank, address, sizeof(*address), rendezvous->seconds);
}

static void node_of(void *context, int rank, char *text, size_t size)
{
	((const struct zero_rendezvous *)context)->pmix->node(rank, text, size);
}

zero_status zero_rendezvous_join(struct zero_rendezvous *rendezvous, struct zero_comm *comm)
{
	struct zero_net_config config = {
		.rank = comm->place.rank,
		.world = comm->place.world,
		.seconds = rendezvous->seconds,
		.address = address_of,
		.node = node_of,
		.context = rendezvous,
	};
	struct zero_address own;
	zero_status status = zero_net->listen(rendezvous->net, &own);

	if (!status)
		status = rendezvous->pmix->publish(&own, sizeof(own));
	if (!status)
		status = zero_net->join(rendezvous->net, &config);
	if (!status)
		status = zero_net->team_new(rendezvous->net, NULL, 0, &comm->net_team);
	return status;
}

void zero_rendezvous_abort(const struct zero_rendezvous *rendezvous, int status, const char *text)
{
	if (rendezvous->pmix)
		rendezvous->pmix->abort(status, text);
	_exit(status);
}

void zero_rendezvous_finalise(void)
{
	if (launcher)
		launcher->finalise();
}

/* ---- over the network ------------------------------------------------------------------------ */

zero_status zero_net_comm_begin_max(struct zero_comm *comm)
{
	return zero_net->begin_max(comm->net_team, comm->agreement.mine, ZERO_AGREE_VALUES);
}

zero_status zero_net_comm_finish_max(struct zero_comm *const *comms, int count, int *index)
{
	uint64_t all[ZERO_AGREE_VALUES];
	struct zero_net_team *only, **teams = &only;
	zero_status status = ZERO_OK;
	size_t which = 0;

	*index = -1;
	if (!count)
		return ZERO_OK;
	if (count > 1)
		teams = zero_comm_of_job(comms[0])->net_leaving;
	for (int i = 0; i < count; i++)
		teams[i] = comms[i]->net_team;
	status = zero_net->finish_max(teams, (size_t)count, &which, all);
	if (!status) {
		*index = (int)which;
		memcpy(comms[which]->agreement.all, all, sizeof(all));
	}
	return status;
}

zero_status zero_net_comm_allgather(struct zero_comm *comm, const void *send, void *recv,
				    size_t bytes)
{
	return zero_net->allgather(comm->net_team, send, recv, bytes);
}

zero_status zero_net_comm_broadcast(struct zero_comm *comm, void *data, size_t bytes, int root)
{
	return zero_net->broadcast(comm->net_team, data, bytes, root);
}
