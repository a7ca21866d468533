/* SPDX-License-Identifier: Apache-2.0 */
/* How many ranks there are, and which are on this node, according to PMIx. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/launched_world.h"
#include "pmix.h"

bool zero_pmix_has_server(void)
{
	return getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK");
}

zero_status zero_pmix_check_alone(void)
{
	int launched = zero_launched_world();

	if (zero_pmix.place.world > 1 || launched <= 1)
		return ZERO_OK;
	return zero_pmix_core->fail(ZERO_E_COMM,
				    "the launcher started %d ranks, but this one sees no other "
				    "through PMIx: start them with zerorun or with srun --mpi=pmix",
				    launched);
}

static zero_status fail_missing(const char *what, const char *key, const char *why)
{
	return zero_pmix_core->fail(
		ZERO_E_COMM, "the launcher's PMIx does not report %s (%s of namespace %s): %s",
		what, key, zero_pmix.self.nspace, why);
}

static zero_status find_world(void)
{
	static const char what[] = "how many ranks there are";
	pmix_status_t status;
	pmix_value_t *value;
	unsigned world;

	status = zero_pmix_get_cached(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, &value);
	if (status != PMIX_SUCCESS)
		return fail_missing(what, PMIX_JOB_SIZE, PMIx_Error_string(status));
	PMIX_VALUE_GET_NUMBER(status, value, world, unsigned);
	PMIX_VALUE_RELEASE(value);
	if (status != PMIX_SUCCESS || world > INT32_MAX)
		return fail_missing(what, PMIX_JOB_SIZE, "not a number of ranks");
	if (zero_pmix.self.rank >= world)
		return zero_pmix_core->fail(ZERO_E_COMM,
					    "the launcher's PMIx calls this rank %u, of %u",
					    (unsigned)zero_pmix.self.rank, world);
	zero_pmix.place.rank = (int)zero_pmix.self.rank;
	zero_pmix.place.world = (int)world;
	return ZERO_OK;
}

static int compare_ranks(const void *a, const void *b)
{
	int left = *(const int *)a, right = *(const int *)b;

	return (left > right) - (left < right);
}

/* Parses the ranks of this node, "0,2,3". False if it is something else or lacks this rank. */
static bool parse_local_ranks(const char *list)
{
	size_t count = 1, i = 0;
	char *end;

	for (const char *c = list; *c; c++)
		count += *c == ',';
	free(zero_pmix.local_ranks);
	zero_pmix.local_ranks = calloc(count, sizeof(*zero_pmix.local_ranks));
	if (!zero_pmix.local_ranks)
		return false;
	for (;; list = end + 1) {
		long rank = strtol(list, &end, 10);

		if (end == list || (*end && *end != ',') || rank < 0 ||
		    rank >= zero_pmix.place.world)
			return false;
		zero_pmix.local_ranks[i++] = (int)rank;
		if (!*end)
			break;
	}
	qsort(zero_pmix.local_ranks, count, sizeof(*zero_pmix.local_ranks), compare_ranks);
	zero_pmix.place.local_world = (int)count;
	zero_pmix.place.local_rank = -1;
	for (i = 0; i < count; i++)
		if (zero_pmix.local_ranks[i] == zero_pmix.place.rank)
			zero_pmix.place.local_rank = (int)i;
	return zero_pmix.place.local_rank >= 0;
}

static zero_status find_local_ranks(void)
{
	static const char what[] = "which ranks share this node";
	zero_status result = ZERO_OK;
	pmix_status_t status;
	pmix_value_t *value;

	status = zero_pmix_get_cached(PMIX_RANK_WILDCARD, PMIX_LOCAL_PEERS, &value);
	if (status != PMIX_SUCCESS)
		return fail_missing(what, PMIX_LOCAL_PEERS, PMIx_Error_string(status));
	if (value->type != PMIX_STRING || !value->data.string)
		result = fail_missing(what, PMIX_LOCAL_PEERS, "not a text");
	else if (!parse_local_ranks(value->data.string))
		result = fail_missing(what, PMIX_LOCAL_PEERS, value->data.string);
	PMIX_VALUE_RELEASE(value);
	return result;
}

zero_status zero_pmix_read_place(void)
{
	zero_status status = find_world();

	if (!status)
		status = find_local_ranks();
	return status;
}

bool zero_pmix_is_local(int rank)
{
	return bsearch(&rank, zero_pmix.local_ranks, (size_t)zero_pmix.place.local_world,
		       sizeof(*zero_pmix.local_ranks), compare_ranks);
}
