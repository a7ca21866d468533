/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Module zero_pmix.so: struct zero_bootstrap_ops by PMIx. PMIx is initialised once in a process and
 * finalised when it exits, since servers do not expect a client that initialises it again.
 */
#include "pmix.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long to wait for a value of a rank that came to the fence. */
#define GET_SECONDS   10
#define ABORT_SECONDS 5

static pid_t initialiser; /* a forked child cannot use PMIx */

static void finalise(void)
{
	if (getpid() != initialiser)
		return;
	initialiser = 0;
	PMIx_Finalize(NULL, 0);
}

static zero_status initialise(void)
{
	pmix_status_t status;

	if (initialiser == getpid())
		return ZERO_OK;
	if (initialiser)
		return zero_pmix_core->fail(ZERO_E_STATE,
					    "this process was forked from one that has PMIx open; "
					    "start another program in it");
	/* PMIx counts initialisations: the program, or MPI, may have its own. */
	status = PMIx_Init(&zero_pmix.self, NULL, 0);
	if (status == PMIX_ERR_UNREACH)
		return zero_pmix_core->fail(ZERO_E_COMM,
					    "the PMIx server of PMIX_NAMESPACE=%s does not answer: "
					    "start the ranks with zerorun or with srun --mpi=pmix, "
					    "or one alone without PMIX_NAMESPACE",
					    getenv("PMIX_NAMESPACE"));
	if (status != PMIX_SUCCESS)
		return zero_pmix_status(status, "PMIx_Init");
	initialiser = getpid();
	/* A launcher treats a client that exits without PMIx_Finalize as failed. */
	if (atexit(finalise))
		return zero_pmix_core->fail(ZERO_E_MEMORY, "no memory for PMIx's exit handler");
	return ZERO_OK;
}

static void free_values(void)
{
	while (zero_pmix.values) {
		struct zero_pmix_value *own = zero_pmix.values;

		zero_pmix.values = own->next;
		free(own->data);
		free(own);
	}
}

static void pmix_close(void)
{
	free_values();
	free(zero_pmix.local_ranks);
	zero_pmix.local_ranks = NULL;
	zero_pmix.open = false;
}

static zero_status pmix_open(struct zero_bootstrap_place *place)
{
	zero_status status = ZERO_OK;

	if (zero_pmix.open)
		return zero_pmix_core->fail(ZERO_E_STATE, "PMIx is open already");
	zero_pmix.place = (struct zero_bootstrap_place){.world = 1, .local_world = 1};
	zero_pmix.has_server = zero_pmix_has_server();
	if (zero_pmix.has_server) {
		status = initialise();
		if (!status)
			status = zero_pmix_read_place();
	}
	if (!status)
		status = zero_pmix_check_alone();
	if (!status) {
		zero_pmix.opens++;
		zero_pmix.fences = 0;
		if (zero_pmix.has_server)
			status = zero_pmix_announce();
	}
	if (status) {
		pmix_close();
		return status;
	}
	zero_pmix.open = true;
	*place = zero_pmix.place;
	return ZERO_OK;
}

static zero_status fail_closed(const char *what)
{
	return zero_pmix_core->fail(ZERO_E_STATE, "%s before open or after close", what);
}

static struct zero_pmix_value *find_value(const char *key)
{
	struct zero_pmix_value *own = zero_pmix.values;

	while (own && strcmp(own->key, key) != 0)
		own = own->next;
	return own;
}

static struct zero_pmix_value *new_value(const char *key, const void *data, size_t bytes)
{
	struct zero_pmix_value *own = malloc(sizeof(*own) + strlen(key) + 1);
	void *copy = malloc(bytes ? bytes : 1);

	if (!own || !copy) {
		free(own);
		free(copy);
		return NULL;
	}
	if (bytes)
		memcpy(copy, data, bytes);
	*own = (struct zero_pmix_value){.data = copy, .bytes = bytes};
	strcpy(own->key, key);
	return own;
}

/* The key as PMIx knows it. False if it is too long. */
static bool full_key(char name[PMIX_MAX_KEYLEN + 1], const char *key)
{
	return snprintf(name, PMIX_MAX_KEYLEN + 1, "zero.%u/%s", zero_pmix.opens, key) <=
	       PMIX_MAX_KEYLEN;
}

/* PMIx sends all values in one message at the fence's PMIx_Commit. */
static zero_status put_to_server(const char *name, struct zero_pmix_value *own)
{
	pmix_value_t value = {.type = PMIX_BYTE_OBJECT};

	value.data.bo.bytes = own->data;
	value.data.bo.size = own->bytes;
	return zero_pmix_status(PMIx_Put(PMIX_GLOBAL, name, &value), "PMIx_Put");
}

static zero_status put(const char *key, const void *data, size_t bytes)
{
	char name[PMIX_MAX_KEYLEN + 1];
	zero_status status = ZERO_OK;
	struct zero_pmix_value *own;

	if (!zero_pmix.open)
		return fail_closed("put");
	if (!key || !*key || !full_key(name, key))
		return zero_pmix_core->fail(ZERO_E_INVALID,
					    "a key has 1 to about %d characters, this one %zu",
					    PMIX_MAX_KEYLEN - 20, key ? strlen(key) : 0);
	if (!data && bytes)
		return zero_pmix_core->fail(ZERO_E_INVALID, "key %s: no data", key);
	if (find_value(key))
		return zero_pmix_core->fail(ZERO_E_INVALID, "key %s was put before", key);
	own = new_value(key, data, bytes);
	if (!own)
		return zero_pmix_core->fail(ZERO_E_MEMORY, "no memory for the %zu bytes of key %s",
					    bytes, key);
	if (zero_pmix.has_server)
		status = put_to_server(name, own);
	if (status) {
		free(own->data);
		free(own);
		return status;
	}
	own->next = zero_pmix.values;
	zero_pmix.values = own;
	return ZERO_OK;
}

static zero_status fence(double seconds)
{
	zero_status status = ZERO_OK;

	if (!zero_pmix.open)
		return fail_closed("fence");
	if (!(seconds > 0))
		return zero_pmix_core->fail(ZERO_E_INVALID,
					    "a fence waits for more than 0 seconds, not for %g",
					    seconds);
	if (zero_pmix.has_server)
		status = zero_pmix_fence(seconds);
	for (struct zero_pmix_value *own = zero_pmix.values; !status && own; own = own->next)
		own->fenced = true;
	return status;
}

static zero_status copy_value(int rank, const char *key, const void *from, size_t from_bytes,
			      void *data, size_t size, size_t *bytes)
{
	*bytes = from_bytes;
	if (from_bytes > size)
		return zero_pmix_core->fail(ZERO_E_INVALID,
					    "key %s of rank %d has %zu bytes, and there is room "
					    "for %zu",
					    key, rank, from_bytes, size);
	if (from_bytes)
		memcpy(data, from, from_bytes);
	return ZERO_OK;
}

/*
 * Asks the server for a value that the fence did not bring. A rank commits all that it has put
 * before it comes to the fence, so a value that is not found was not put.
 */
static pmix_status_t fetch(int rank, const char *name)
{
	struct zero_pmix_calls *calls = zero_pmix_calls_new(1, name);
	pmix_status_t status;

	if (!calls)
		return PMIX_ERR_NOMEM;
	zero_pmix_begin_get(calls, 0, rank, zero_pmix_is_local(rank));
	zero_pmix_wait(calls, zero_seconds() + GET_SECONDS);
	status = zero_pmix_call_status(calls, 0);
	zero_pmix_calls_release(calls);
	return status;
}

static zero_status fail_get(int rank, const char *key, pmix_status_t status)
{
	if (status == PMIX_ERR_NOT_FOUND || status == PMIX_ERR_TIMEOUT)
		return zero_pmix_core->fail(
			ZERO_E_COMM, "rank %d has put no key %s before the last fence", rank, key);
	if (status == PMIX_ERR_WOULD_BLOCK)
		return zero_pmix_core->fail(ZERO_E_COMM,
					    "key %s of rank %d did not come within %d s", key, rank,
					    GET_SECONDS);
	return zero_pmix_core->fail(ZERO_E_COMM, "key %s of rank %d: PMIx_Get failed: %s", key,
				    rank, PMIx_Error_string(status));
}

static zero_status get_remote(int rank, const char *key, const char *name, void *data, size_t size,
			      size_t *bytes)
{
	pmix_status_t pmix;
	pmix_value_t *value;
	zero_status status;

	pmix = zero_pmix_get_cached((pmix_rank_t)rank, name, &value);
	if (pmix != PMIX_SUCCESS) {
		pmix = fetch(rank, name);
		if (pmix == PMIX_SUCCESS)
			pmix = zero_pmix_get_cached((pmix_rank_t)rank, name, &value);
	}
	if (pmix != PMIX_SUCCESS)
		return fail_get(rank, key, pmix);
	if (value->type == PMIX_BYTE_OBJECT)
		status = copy_value(rank, key, value->data.bo.bytes, value->data.bo.size, data,
				    size, bytes);
	else
		status = fail_get(rank, key, PMIX_ERR_TYPE_MISMATCH);
	PMIX_VALUE_RELEASE(value);
	return status;
}

static zero_status get(int rank, const char *key, void *data, size_t size, size_t *bytes)
{
	char name[PMIX_MAX_KEYLEN + 1];
	const struct zero_pmix_value *own;

	*bytes = 0;
	if (!zero_pmix.open)
		return fail_closed("get");
	if (rank < 0 || rank >= zero_pmix.place.world)
		return zero_pmix_core->fail(ZERO_E_INVALID, "there is no rank %d among %d", rank,
					    zero_pmix.place.world);
	if (!key || !full_key(name, key))
		return fail_get(rank, key ? key : "NULL", PMIX_ERR_NOT_FOUND);
	if (rank != zero_pmix.place.rank)
		return get_remote(rank, key, name, data, size, bytes);
	own = find_value(key);
	if (!own || !own->fenced)
		return fail_get(rank, key, PMIX_ERR_NOT_FOUND);
	return copy_value(rank, key, own->data, own->bytes, data, size, bytes);
}

struct end {
	int status;
	const char *text;
};

static void *end_job(void *argument)
{
	const struct end *end = argument;

	PMIx_Abort(end->status, end->text, NULL, 0);
	return NULL;
}

/* PMIx_Abort may wait for a server that is gone. After some seconds this process exits instead. */
static void abort_job(int status, const char *text)
{
	const struct timespec limit = {.tv_sec = ABORT_SECONDS};
	/* Static, since the thread may outlive this function, though not the process. */
	static struct end end;
	pthread_t thread;

	end = (struct end){.status = status ? status : 1, .text = text};
	if (initialiser == getpid() && pthread_create(&thread, NULL, end_job, &end) == 0) {
		pthread_detach(thread);
		nanosleep(&limit, NULL);
	}
	_exit(end.status);
}

static const struct zero_bootstrap_ops ops = {
	.abi = ZERO_MODULE_ABI,
	.name = "pmix",
	.open = pmix_open,
	.close = pmix_close,
	.put = put,
	.fence = fence,
	.get = get,
	.abort = abort_job,
	.finalise = finalise,
};

/* The one symbol that is exported. */
const void *zero_module_pmix(const struct zero_core *core);

const void *zero_module_pmix(const struct zero_core *core)
{
	zero_pmix_core = core;
	return &ops;
}
