/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Module zero_pmix.so: struct zero_pmix_ops. PMIx is initialised once in a process and finalised
 * when it exits, since servers do not expect a client that initialises it again.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* PMIx 4 has functions in its header, with conversions that ours would not make. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <pmix.h>
#pragma GCC diagnostic pop

#include "backend/launcher_world_size.h"
#include "backend/rendezvous.h"
#include "core/clock.h"

#define ABORT_SECONDS 5

static const struct zero_core *core;
static pid_t initialiser; /* a forked child cannot use PMIx */
static pmix_proc_t self;
static int world;
static unsigned opens; /* part of every key, since PMIx never forgets one */

static zero_status status_of(pmix_status_t status, const char *call)
{
	if (status == PMIX_SUCCESS)
		return ZERO_OK;
	return core->fail(ZERO_E_COMM, "%s failed: %s", call, PMIx_Error_string(status));
}

/* ---- the beginning and the end of PMIx ------------------------------------------------------- */

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
		return core->fail(ZERO_E_STATE,
				  "this process was forked from one that has PMIx open; start "
				  "another program in it");
	/* PMIx counts initialisations: the program, or MPI, may have its own. */
	status = PMIx_Init(&self, NULL, 0);
	if (status == PMIX_ERR_UNREACH)
		return core->fail(
			ZERO_E_COMM,
			"the PMIx server of PMIX_NAMESPACE=%s does not answer: start the "
			"ranks with zerorun or with srun --mpi=pmix, or one alone without "
			"PMIX_NAMESPACE",
			getenv("PMIX_NAMESPACE"));
	if (status != PMIX_SUCCESS)
		return status_of(status, "PMIx_Init");
	initialiser = getpid();
	/* A launcher treats a client that exits without PMIx_Finalize as failed. */
	if (atexit(finalise))
		return core->fail(ZERO_E_MEMORY, "no memory for PMIx's exit handler");
	return ZERO_OK;
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

/* ---- which ranks there are, according to the launcher ---------------------------------------- */

/* The launcher has told it to this process already. The caller releases *value. */
static pmix_status_t find(pmix_rank_t rank, const char *key, pmix_value_t **value)
{
	bool yes = true;
	pmix_info_t optional;
	pmix_status_t status;
	pmix_proc_t proc;

	*value = NULL;
	PMIX_LOAD_PROCID(&proc, self.nspace, rank);
	PMIX_INFO_LOAD(&optional, PMIX_OPTIONAL, &yes, PMIX_BOOL);
	status = PMIx_Get(&proc, key, &optional, 1, value);
	return status == PMIX_SUCCESS && !*value ? PMIX_ERR_NOT_FOUND : status;
}

static zero_status fail_missing(const char *what, const char *key, const char *why)
{
	return core->fail(ZERO_E_COMM,
			  "the launcher's PMIx does not report %s (%s of namespace %s): %s", what,
			  key, self.nspace, why);
}

static zero_status find_world(struct zero_pmix_place *place)
{
	static const char what[] = "how many ranks there are";
	pmix_status_t status;
	pmix_value_t *value;
	unsigned ranks;

	status = find(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, &value);
	if (status != PMIX_SUCCESS)
		return fail_missing(what, PMIX_JOB_SIZE, PMIx_Error_string(status));
	PMIX_VALUE_GET_NUMBER(status, value, ranks, unsigned);
	PMIX_VALUE_RELEASE(value);
	if (status != PMIX_SUCCESS || ranks > INT32_MAX)
		return fail_missing(what, PMIX_JOB_SIZE, "not a number of ranks");
	if (self.rank >= ranks)
		return core->fail(ZERO_E_COMM, "the launcher's PMIx calls this rank %u, of %u",
				  (unsigned)self.rank, ranks);
	place->rank = (int)self.rank;
	place->world = (int)ranks;
	return ZERO_OK;
}

/* Parses the ranks of this node, "0,2,3". False if it is something else or lacks this rank. */
static bool parse_local_ranks(const char *list, struct zero_pmix_place *place)
{
	bool has_own = false;
	char *end;

	place->local_rank = place->local_world = 0;
	for (;; list = end + 1) {
		long rank = strtol(list, &end, 10);

		if (end == list || (*end && *end != ',') || rank < 0 || rank >= place->world)
			return false;
		place->local_world++;
		place->local_rank += rank < place->rank;
		has_own |= rank == place->rank;
		if (!*end)
			return has_own;
	}
}

static zero_status find_local_ranks(struct zero_pmix_place *place)
{
	static const char what[] = "which ranks share this node";
	zero_status result = ZERO_OK;
	pmix_status_t status;
	pmix_value_t *value;

	status = find(PMIX_RANK_WILDCARD, PMIX_LOCAL_PEERS, &value);
	if (status != PMIX_SUCCESS)
		return fail_missing(what, PMIX_LOCAL_PEERS, PMIx_Error_string(status));
	if (value->type != PMIX_STRING || !value->data.string)
		result = fail_missing(what, PMIX_LOCAL_PEERS, "not a text");
	else if (!parse_local_ranks(value->data.string, place))
		result = fail_missing(what, PMIX_LOCAL_PEERS, value->data.string);
	PMIX_VALUE_RELEASE(value);
	return result;
}

static zero_status pmix_open(struct zero_pmix_place *place)
{
	struct zero_pmix_place found = {.world = 1, .local_world = 1};
	int launched = zero_launcher_world_size();
	zero_status status = ZERO_OK;

	opens++;
	if (getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK")) {
		status = initialise();
		if (!status)
			status = find_world(&found);
		if (!status)
			status = find_local_ranks(&found);
	}
	if (!status && found.world == 1 && launched > 1)
		status = core->fail(ZERO_E_COMM,
				    "the launcher started %d ranks, but this one sees no other "
				    "through PMIx: start them with zerorun or with srun --mpi=pmix",
				    launched);
	if (!status)
		*place = found;
	world = found.world;
	return status;
}

static void find_node(int rank, char *text, size_t size)
{
	pmix_value_t *value;

	text[0] = '\0';
	if (find((pmix_rank_t)rank, PMIX_HOSTNAME, &value) != PMIX_SUCCESS)
		return;
	if (value->type == PMIX_STRING && value->data.string)
		snprintf(text, size, "%s", value->data.string);
	PMIX_VALUE_RELEASE(value);
}

/* ---- what ranks publish ---------------------------------------------------------------------- */

static void name_key(char *key, size_t size)
{
	snprintf(key, size, "zero.%u", opens);
}

static zero_status publish(const void *data, size_t bytes)
{
	pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
	char key[PMIX_MAX_KEYLEN + 1];
	zero_status status;

	name_key(key, sizeof(key));
	/* PMIx copies it. */
	value.data.bo.bytes = (char *)(uintptr_t)data;
	value.data.bo.size = bytes;
	status = status_of(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
	return status ? status : status_of(PMIx_Commit(), "PMIx_Commit");
}

/* A question to the server. PMIx replies in a thread of its own, maybe long after the caller gave
   up: whoever of the two is the last frees it. */
struct question {
	bool replied, given_up;
	pmix_status_t status;
	char key[PMIX_MAX_KEYLEN + 1]; /* PMIx reads it until it has replied */
	size_t bytes, capacity;
	char data[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t replied;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_condition(void)
{
	zero_cond_init(&replied);
}

/* PMIx versions differ in who frees the value, so it is left alone. */
static void on_reply(pmix_status_t status, pmix_value_t *value, void *context)
{
	struct question *question = context;
	bool given_up;

	pthread_mutex_lock(&lock);
	question->status = status;
	if (status == PMIX_SUCCESS && value && value->type == PMIX_BYTE_OBJECT) {
		question->bytes = value->data.bo.size;
		if (question->bytes <= question->capacity)
			memcpy(question->data, value->data.bo.bytes, question->bytes);
	}
	question->replied = true;
	given_up = question->given_up;
	pthread_cond_broadcast(&replied);
	pthread_mutex_unlock(&lock);
	if (given_up)
		free(question);
}

/* Asks once. PMIX_ERR_WOULD_BLOCK: there was no reply until the deadline. */
static pmix_status_t ask(int rank, void *data, size_t bytes, size_t *got, double deadline)
{
	struct timespec until = zero_deadline(deadline - zero_seconds());
	struct question *question = calloc(1, sizeof(*question) + bytes);
	pmix_status_t status;
	pmix_proc_t proc;

	if (!question)
		return PMIX_ERR_NOMEM;
	pthread_once(&once, make_condition);
	question->capacity = bytes;
	name_key(question->key, sizeof(question->key));
	PMIX_LOAD_PROCID(&proc, self.nspace, (pmix_rank_t)rank);
	status = PMIx_Get_nb(&proc, question->key, NULL, 0, on_reply, question);
	if (status != PMIX_SUCCESS) {
		free(question);
		return status;
	}
	pthread_mutex_lock(&lock);
	while (!question->replied && !pthread_cond_timedwait(&replied, &lock, &until))
		;
	status = question->replied ? question->status : PMIX_ERR_WOULD_BLOCK;
	question->given_up = !question->replied;
	*got = question->bytes;
	if (status == PMIX_SUCCESS && *got == bytes)
		memcpy(data, question->data, bytes);
	pthread_mutex_unlock(&lock);
	if (status != PMIX_ERR_WOULD_BLOCK)
		free(question);
	return status;
}

/* Servers have timeouts of their own, and may reply before the rank has come. */
static zero_status get(int rank, void *data, size_t bytes, double seconds)
{
	double deadline = zero_seconds() + seconds;
	pmix_status_t status = PMIX_ERR_WOULD_BLOCK;
	useconds_t pause = 1000;
	char node[128];
	size_t got = 0;

	while (zero_seconds() < deadline) {
		status = ask(rank, data, bytes, &got, deadline);
		if (status == PMIX_SUCCESS || status == PMIX_ERR_WOULD_BLOCK)
			break;
		usleep(pause);
		pause = pause < 200000 ? 2 * pause : pause;
	}
	if (status == PMIX_SUCCESS && got == bytes)
		return ZERO_OK;
	if (status == PMIX_SUCCESS)
		return core->fail(ZERO_E_COMM,
				  "rank %d has published %zu bytes, not %zu: is it of another "
				  "build of the library?",
				  rank, got, bytes);
	find_node(rank, node, sizeof(node));
	return core->fail(ZERO_E_COMM,
			  "rank %d of %d (node %s) did not come within %g s: it has not "
			  "started, has ended, or its node is down",
			  rank, world, node, seconds);
}

/* Slurm's PMIx ends a fence that carries nothing on each node by itself. */
static void fence(void)
{
	pmix_value_t value = {.type = PMIX_BOOL};
	bool yes = true;
	pmix_info_t collect;

	PMIx_Put(PMIX_GLOBAL, "zero.fence", &value);
	PMIx_Commit();
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	PMIx_Fence(NULL, 0, &collect, 1);
}

static const struct zero_pmix_ops ops = {
	.abi = ZERO_MODULE_ABI,
	.name = "pmix",
	.open = pmix_open,
	.publish = publish,
	.get = get,
	.node = find_node,
	.fence = fence,
	.abort = abort_job,
	.finalise = finalise,
};

/* The one symbol that is exported. */
const void *zero_module_pmix(const struct zero_core *of_library);

const void *zero_module_pmix(const struct zero_core *of_library)
{
	core = of_library;
	return &ops;
}
