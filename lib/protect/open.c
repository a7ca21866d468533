/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks need before anything is protected or found: a folder, a server, and each one's
   partner. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/available_memory.h"
#include "protect/protect_internal.h"

/* What a rank says of itself. */
struct introduction {
	struct zero_address address;
	uint64_t on_switch;
};

/* A hash of the names, types and shapes of the parameters: two models of a run do not meet. */
static uint64_t model_hash(const zero_job *job)
{
	uint64_t hash = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t p = 0; p < job->model->groups[g]->param_count; p++) {
			const zero_param *param = job->model->groups[g]->params[p];

			hash = zero_hash(param->name, strlen(param->name) + 1, hash);
			hash = zero_hash(&param->dtype, sizeof(param->dtype), hash);
			hash = zero_hash(param->shape, sizeof(param->shape), hash);
		}
	return hash;
}

/* Slurm's topology plugins give "switch.switch.node". */
static uint64_t switch_hash(void)
{
	const char *address = getenv("SLURM_TOPOLOGY_ADDR");
	const char *end = address ? strrchr(address, '.') : NULL;

	return end ? zero_hash(address, (size_t)(end - address), 0) : 0;
}

/* Local. */
static zero_status introduce(struct zero_protect *protect, struct introduction *mine)
{
	const zero_job *job = protect->job;
	const char *run = getenv("ZERO_RUN"), *restart = getenv("ZERO_RESTART");
	char why[192];
	zero_status status;

	if (!run || !*run)
		return zero_fail(ZERO_E_UNSUPPORTED,
				 "the run has no name by which another attempt would find it: "
				 "start it with zerorun");
	protect->attempt = restart ? (uint32_t)strtoul(restart, NULL, 10) : 0;
	status = zero_files_open(&protect->files);
	if (!status)
		status = zero_protect_folder_open(&protect->folder,
						  job->settings.value[ZERO_OPT_PROTECT_DIR].text,
						  model_hash(job));
	if (status)
		return status;
	protect->memory = zero_memory_available() + zero_protect_folder_bytes(&protect->folder);
	mine->on_switch = switch_hash();
	snprintf(mine->address.node, sizeof(mine->address.node), "%s", job->place.node);
	if (getrandom(mine->address.cookie, sizeof(mine->address.cookie), 0) !=
	    (ssize_t)sizeof(mine->address.cookie))
		return zero_fail(ZERO_E_COMM, "no random numbers: %s", strerror(errno));
	if (!zero_address_listen(&protect->server.listening, &mine->address,
				 getenv("NCCL_SOCKET_IFNAME"), why, sizeof(why)))
		return zero_fail(ZERO_E_COMM, "%s", why);
	return ZERO_OK;
}

/* COLLECTIVE. *local is what this rank alone then fails with: it is still to be agreed on. */
static zero_status meet(struct zero_protect *protect, struct introduction *mine, zero_status *local)
{
	zero_job *job = protect->job;
	size_t world = (size_t)job->place.world;
	struct introduction *all = calloc(world, sizeof(*all));
	uint64_t *switches = calloc(world, sizeof(*switches));
	zero_status status = ZERO_OK;
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = mine, .recv = all, .count = sizeof(*mine)};

	protect->addresses = calloc(world, sizeof(*protect->addresses));
	protect->partners = calloc(world, sizeof(*protect->partners));
	protect->ask.peers = calloc(world, sizeof(*protect->ask.peers));
	for (size_t rank = 0; protect->ask.peers && rank < world; rank++)
		protect->ask.peers[rank] = -1;
	if (!all || !switches || !protect->addresses || !protect->partners || !protect->ask.peers)
		status =
			zero_fail(ZERO_E_MEMORY, "no memory for the addresses of %zu ranks", world);
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_CHECKPOINT,
				  "addresses for protection");
	for (size_t rank = 0; !status && rank < world; rank++) {
		protect->addresses[rank] = all[rank].address;
		switches[rank] = all[rank].on_switch;
	}
	if (!status)
		*local = zero_protect_partners(&protect->nodes, switches, world, protect->partners);
	free(switches);
	free(all);
	return status;
}

/* Local. */
static zero_status start(struct zero_protect *protect)
{
	const struct zero_rank_info *place = &protect->job->place;

	protect->ask.rank = protect->server.rank = place->rank;
	protect->ask.world = protect->server.world = place->world;
	protect->ask.addresses = protect->addresses;
	protect->ask.node = place->node;
	memcpy(protect->ask.cookie, protect->addresses[0].cookie, sizeof(protect->ask.cookie));
	memcpy(protect->server.cookie, protect->ask.cookie, sizeof(protect->server.cookie));
	protect->server.folder = &protect->folder;
	return zero_protect_serve(&protect->server);
}

zero_status zero_protect_open(zero_job *job)
{
	struct zero_protect *protect = calloc(1, sizeof(*protect));
	struct introduction mine = {0};
	zero_status status, met = ZERO_OK;

	if (protect) {
		protect->job = job;
		protect->folder.fd = protect->server.listening = -1;
	}
	status = zero_submit_wait(&job->all,
				  protect ? ZERO_OK : zero_fail(ZERO_E_MEMORY, "no memory"), NULL,
				  0, ZERO_WORK_CHECKPOINT, "protection");
	if (status) {
		free(protect);
		return status;
	}
	job->protect = protect;
	status = zero_nodes_find(job, &protect->nodes);
	if (!status)
		status = zero_agree_token(job, introduce(protect, &mine), "protection",
					  &protect->token);
	if (!status)
		status = meet(protect, &mine, &met);
	if (!status)
		status = zero_submit_wait(&job->all, met ? met : start(protect), NULL, 0,
					  ZERO_WORK_CHECKPOINT, "start of the protection");
	if (!status)
		return ZERO_OK;
	protect->off = true;
	if (job->place.rank == 0)
		fprintf(stderr, "zero: nothing is protected: %s\n", zero_last_error());
	return ZERO_OK;
}

void zero_protect_close(zero_job *job, bool together)
{
	struct zero_protect *protect = job->protect;

	zero_protect_forget(protect);
	zero_protect_serve_end(&protect->server);
	zero_protect_ask_end(&protect->ask);
	if (together && protect->folder.path)
		zero_protect_folder_remove(&protect->folder,
					   job->settings.value[ZERO_OPT_PROTECT_DIR].text);
	zero_protect_folder_close(&protect->folder);
	zero_nodes_free(&protect->nodes);
	free(protect->addresses);
	free(protect->partners);
	free(protect);
	job->protect = NULL;
}
