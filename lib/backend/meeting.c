/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks meet by their launcher's PMIx, and agree over the network. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "meeting.h"

const struct zero_net_ops *zero_net;
static const struct zero_bootstrap_ops *launcher; /* NULL: none was there */

/* ---- through the launcher -------------------------------------------------------------------- */

/* Whether a launcher started this rank, so that the pmix module is needed. */
static bool is_launched(const struct zero_backend_config *config)
{
	return config->expected_world > 1 || getenv("PMIX_RANK");
}

zero_status zero_meeting_place(struct zero_meeting *meeting,
			       const struct zero_backend_config *config, struct zero_place *place)
{
	struct zero_bootstrap_place launched = {.world = 1, .local_world = 1};
	const void *table;
	zero_status status = zero_core->module_open("pmix", &table);

	zero_net = config->net_ops;
	*meeting = (struct zero_meeting){.net = config->net, .seconds = config->open_seconds};
	gethostname(place->node, sizeof(place->node) - 1);
	if (!status) {
		meeting->bootstrap = launcher = table;
		status = meeting->bootstrap->open(&launched);
		if (status)
			meeting->bootstrap = NULL;
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

zero_status zero_meeting_get(const struct zero_meeting *meeting, int rank, const char *key,
			     void *data, size_t bytes)
{
	zero_status status;
	size_t got = 0;

	status = meeting->bootstrap->get(rank, key, data, bytes, &got);
	if (!status && got != bytes)
		status = zero_core->fail(ZERO_E_COMM,
					 "rank %d put %zu bytes as %s, not %zu: is it of another "
					 "build of the library?",
					 rank, got, key, bytes);
	return status;
}

static zero_status address_of(void *context, int rank, struct zero_address *address)
{
	return zero_meeting_get(context, rank, "at", address, sizeof(*address));
}

zero_status zero_meeting_listen(struct zero_meeting *meeting)
{
	struct zero_address own;
	zero_status status = zero_net->listen(meeting->net, &own);

	return status ? status : meeting->bootstrap->put("at", &own, sizeof(own));
}

zero_status zero_meeting_join(struct zero_meeting *meeting, struct zero_comm *comm)
{
	struct zero_net_config config = {
		.rank = comm->place.rank,
		.world = comm->place.world,
		.seconds = meeting->seconds,
		.address = address_of,
		.context = meeting,
	};
	zero_status status = meeting->bootstrap->fence(meeting->seconds);

	if (!status)
		status = zero_net->join(meeting->net, &config);
	if (!status)
		status = zero_net->team_new(meeting->net, NULL, 0, &comm->net_team);
	return status;
}

void zero_meeting_abort(const struct zero_meeting *meeting, int status, const char *text)
{
	if (meeting->bootstrap)
		meeting->bootstrap->abort(status, text);
	_exit(status);
}

void zero_meeting_leave(struct zero_meeting *meeting)
{
	if (meeting->bootstrap)
		meeting->bootstrap->close();
}

void zero_meeting_finalise(void)
{
	if (launcher)
		launcher->finalise();
}

/* ---- over the network ------------------------------------------------------------------------ */

zero_status zero_meeting_begin_max(struct zero_comm *comm)
{
	return zero_net->begin_max(comm->net_team, comm->agreement.mine, ZERO_AGREE_VALUES);
}

zero_status zero_meeting_finish_max(struct zero_comm *const *comms, int count, int *index)
{
	uint64_t all[ZERO_AGREE_VALUES];
	struct zero_net_team **teams;
	zero_status status = ZERO_OK;
	size_t which = 0;

	*index = -1;
	if (!count)
		return ZERO_OK;
	teams = calloc((size_t)count, sizeof(struct zero_net_team *));
	if (!teams)
		return zero_core->fail(ZERO_E_COMM, "no memory to agree in %d teams", count);
	for (int i = 0; i < count; i++)
		teams[i] = comms[i]->net_team;
	status = zero_net->finish_max(teams, (size_t)count, &which, all);
	if (!status) {
		*index = (int)which;
		memcpy(comms[which]->agreement.all, all, sizeof(all));
	}
	free(teams);
	return status;
}

zero_status zero_meeting_exchange(struct zero_comm *comm, const void *send, void *recv,
				  size_t bytes)
{
	return zero_net->exchange(comm->net_team, send, recv, bytes);
}

zero_status zero_meeting_broadcast(struct zero_comm *comm, void *data, size_t bytes, int root)
{
	return zero_net->broadcast(comm->net_team, data, bytes, root);
}
