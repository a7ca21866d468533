/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks there are, as launcher and PMIx say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pmix.h"

bool zero_bootstrap_has_server(void)
{
	return getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK");
}

/* How many ranks the launcher started; 0: none that is known did. */
static int launched_world(void)
{
	/* In this order: an mpirun within a Slurm step inherits that step's. */
	static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
					    "SLURM_STEP_NUM_TASKS"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = getenv(names[i]);
		int world = value ? atoi(value) : 0;

		if (world > 0)
			return world;
	}
	return 0;
}

zero_status zero_bootstrap_check_alone(void)
{
	int launched = launched_world();

	if (zero_bootstrap.place.world > 1 || launched <= 1)
		return ZERO_OK;
	return zero_bootstrap_core->fail(
		ZERO_E_COMM,
		"the launcher started %d ranks, but this one sees no other "
		"through PMIx: start them with zerorun or with srun --mpi=pmix",
		launched);
}

pmix_status_t zero_bootstrap_look(pmix_rank_t rank, const char *key, pmix_value_t **value)
{
	bool yes = true;
	pmix_info_t optional;
	pmix_status_t status;
	pmix_proc_t proc;

	*value = NULL;
	PMIX_LOAD_PROCID(&proc, zero_bootstrap.self.nspace, rank);
	PMIX_INFO_LOAD(&optional, PMIX_OPTIONAL, &yes, PMIX_BOOL);
	status = PMIx_Get(&proc, key, &optional, 1, value);
	return status == PMIX_SUCCESS && !*value ? PMIX_ERR_NOT_FOUND : status;
}

static zero_status fail_missing(const char *what, const char *key, const char *why)
{
	return zero_bootstrap_core->fail(
		ZERO_E_COMM, "the launcher's PMIx does not say %s (%s of namespace %s): %s", what,
		key, zero_bootstrap.self.nspace, why);
}

static zero_status find_world(void)
{
	static const char what[] = "how many ranks there are";
	pmix_status_t status;
	pmix_value_t *value;
	unsigned world;

	status = zero_bootstrap_look(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, &value);
	if (status != PMIX_SUCCESS)
		return fail_missing(what, PMIX_JOB_SIZE, PMIx_Error_string(status));
	PMIX_VALUE_GET_NUMBER(status, value, world, unsigned);
	PMIX_VALUE_RELEASE(value);
	if (status != PMIX_SUCCESS || world > INT32_MAX)
		return fail_missing(what, PMIX_JOB_SIZE, "it is no number of ranks");
	if (zero_bootstrap.self.rank >= world)
		return zero_bootstrap_core->fail(ZERO_E_COMM,
						 "the launcher's PMIx calls this rank %u, of %u",
						 (unsigned)zero_bootstrap.self.rank, world);
	zero_bootstrap.place.rank = (int)zero_bootstrap.self.rank;
	zero_bootstrap.place.world = (int)world;
	return ZERO_OK;
}

static int compare_ranks(const void *a, const void *b)
{
	int left = *(const int *)a, right = *(const int *)b;

	return (left > right) - (left < right);
}

/* "0,2,3" of this node; false: it is not that, or lacks this rank. */
static bool read_peers(const char *list)
{
	size_t count = 1, i = 0;
	char *end;

	for (const char *c = list; *c; c++)
		count += *c == ',';
	free(zero_bootstrap.peers);
	zero_bootstrap.peers = calloc(count, sizeof(*zero_bootstrap.peers));
	if (!zero_bootstrap.peers)
		return false;
	for (;; list = end + 1) {
		long rank = strtol(list, &end, 10);

		if (end == list || (*end && *end != ',') || rank < 0 ||
		    rank >= zero_bootstrap.place.world)
			return false;
		zero_bootstrap.peers[i++] = (int)rank;
		if (!*end)
			break;
	}
	qsort(zero_bootstrap.peers, count, sizeof(*zero_bootstrap.peers), compare_ranks);
	zero_bootstrap.place.local_world = (int)count;
	zero_bootstrap.place.local_rank = -1;
	for (i = 0; i < count; i++)
		if (zero_bootstrap.peers[i] == zero_bootstrap.place.rank)
			zero_bootstrap.place.local_rank = (int)i;
	return zero_bootstrap.place.local_rank >= 0;
}

static zero_status find_peers(void)
{
	static const char what[] = "which ranks share this node";
	zero_status result = ZERO_OK;
	pmix_status_t status;
	pmix_value_t *value;

	status = zero_bootstrap_look(PMIX_RANK_WILDCARD, PMIX_LOCAL_PEERS, &value);
	if (status != PMIX_SUCCESS)
		return fail_missing(what, PMIX_LOCAL_PEERS, PMIx_Error_string(status));
	if (value->type != PMIX_STRING || !value->data.string)
		result = fail_missing(what, PMIX_LOCAL_PEERS, "it is no text");
	else if (!read_peers(value->data.string))
		result = fail_missing(what, PMIX_LOCAL_PEERS, value->data.string);
	PMIX_VALUE_RELEASE(value);
	return result;
}

zero_status zero_bootstrap_find_place(void)
{
	zero_status status = find_world();

	if (!status)
		status = find_peers();
	return status;
}

bool zero_bootstrap_is_local(int rank)
{
	return bsearch(&rank, zero_bootstrap.peers, (size_t)zero_bootstrap.place.local_world,
		       sizeof(*zero_bootstrap.peers), compare_ranks);
}
