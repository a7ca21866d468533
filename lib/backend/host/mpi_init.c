/* SPDX-License-Identifier: Apache-2.0 */
/* MPI in this process: initialisation, the thread level that it allows, and finalisation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/launcher_world_size.h"
#include "backend/rendezvous.h"
#include "mpi_comm.h"

/* A process can initialise MPI once. The library's copy of MPI_COMM_WORLD serves all its jobs. */
static MPI_Comm library_comm = MPI_COMM_NULL;
static bool library_threaded, library_main_thread_only;
int zero_mpi_users;
static pid_t initialiser;                /* a forked child cannot use MPI */
static const struct zero_pmix_ops *pmix; /* NULL: no PMIx */

zero_status zero_mpi_status(int error, const char *call)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int length = 0;

	if (error == MPI_SUCCESS)
		return ZERO_OK;
	MPI_Error_string(error, text, &length);
	return zero_core->fail(ZERO_E_COMM, "%s failed: %s", call, text);
}

/* Whether a launcher's process manager can tell MPI where the other ranks are. */
static bool has_process_manager(void)
{
	static const char *const names[] = {"PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_SIZE"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (getenv(names[i]))
			return true;
	return false;
}

/* How many ranks the launcher started; 0 if none did. */
static int launched_world(void)
{
	int world = zero_launcher_world_size();

	return world ? world : has_process_manager();
}

/*
 * Runs at exit. If the program exits with an error, MPI is not finalised: MPI_Finalize would wait
 * for peers that may wait for this rank. The launcher sees the exit and ends them.
 */
static void finalise(int status, void *unused)
{
	int finalised = 0;

	(void)unused;
	/* While a job is open its thread may be in a call of MPI. */
	if (status || zero_mpi_users || getpid() != initialiser)
		return;
	MPI_Finalized(&finalised);
	if (!finalised)
		MPI_Finalize();
}

void zero_mpi_finalise(void)
{
	finalise(0, NULL);
}

static zero_status initialise(void)
{
	int provided;
	zero_status status;

	status = zero_mpi_status(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided),
				 "MPI_Init_thread");
	initialiser = getpid();
	if (!status && on_exit(finalise, NULL))
		status = zero_core->fail(ZERO_E_MEMORY, "no memory for MPI's exit handler");
	return status;
}

/*
 * COLLECTIVE. Opens PMIx beside MPI, if the launcher has it. MPI_Init should return when all ranks
 * can receive, but Slurm's PMIx ends a fence without data, which is Open MPI's last one, on each
 * node by itself (in all releases up to 26.05). A message to a rank that is not ready would crash
 * it. The fence of module pmix has data. Where it fails, ranks go on as they would have. In a
 * heterogeneous step Slurm may lose a message of a second fence with data, and hang (23.11 and
 * 26.05, unless SLURM_PMIX_DIRECT_CONN=false).
 */
static void wait_for_ready_ranks(void)
{
	struct zero_pmix_place place;
	const void *table;

	if (!getenv("PMIX_NAMESPACE") || zero_core->module_open("pmix", &table))
		return;
	pmix = table;
	if (pmix->open(&place))
		pmix = NULL;
	else if (!getenv("SLURM_HET_SIZE"))
		pmix->fence();
}

/* MPI_Abort prints in this thread what another one may be printing, and Open MPI then crashes. */
void zero_mpi_abort(int status, const char *text)
{
	int finalised = 0;

	if (pmix)
		pmix->abort(status, text);
	MPI_Finalized(&finalised);
	if (!finalised && library_threaded)
		MPI_Abort(MPI_COMM_WORLD, status);
}

static zero_status fail_alone(int launched)
{
	return zero_core->fail(ZERO_E_COMM,
			       "the launcher started %d ranks, but MPI sees this one alone: start "
			       "them with zerorun, with srun --mpi=pmix, or with the mpirun of the "
			       "MPI that libzero was built with",
			       launched);
}

static zero_status duplicate_world(void)
{
	int error = MPI_Comm_dup(MPI_COMM_WORLD, &library_comm);

	if (!error)
		error = MPI_Comm_set_errhandler(library_comm, MPI_ERRORS_RETURN);
	return zero_mpi_status(error, "MPI_Comm_dup");
}

static zero_status find_place(struct zero_rank_info *place, MPI_Comm *node)
{
	int error;

	error = MPI_Comm_rank(library_comm, &place->rank);
	if (!error)
		error = MPI_Comm_size(library_comm, &place->world);
	if (!error)
		error = MPI_Comm_split_type(library_comm, MPI_COMM_TYPE_SHARED, place->rank,
					    MPI_INFO_NULL, node);
	if (!error)
		error = MPI_Comm_rank(*node, &place->local_rank);
	if (!error)
		error = MPI_Comm_size(*node, &place->local_world);
	gethostname(place->node, sizeof(place->node) - 1);
	return zero_mpi_status(error, "finding the node's ranks");
}

/* What the program's own MPI_Init allows: see struct zero_comm. */
static zero_status check_threads(bool *threaded, bool *main_thread_only)
{
	int level = MPI_THREAD_SINGLE, is_main = 0;

	MPI_Query_thread(&level);
	*threaded = level == MPI_THREAD_MULTIPLE;
	*main_thread_only = level < MPI_THREAD_SERIALIZED;
	MPI_Is_thread_main(&is_main);
	if (*main_thread_only && !is_main)
		return zero_core->fail(ZERO_E_COMM,
				       "the program asked MPI for %s, so that zero_open must be "
				       "called in the thread that called MPI_Init",
				       level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE"
								  : "MPI_THREAD_FUNNELED");
	return ZERO_OK;
}

zero_status zero_mpi_init(MPI_Comm *world, MPI_Comm *node, struct zero_comm *comm)
{
	int initialised = 0, finalised = 0, launched = launched_world();
	zero_status status = ZERO_OK;

	*world = MPI_COMM_NULL;
	MPI_Initialized(&initialised);
	MPI_Finalized(&finalised);
	if (finalised)
		return zero_core->fail(ZERO_E_STATE,
				       "MPI_Finalize was called: zero_open must come before it");
	/* Without a process manager Open MPI would end the process rather than fail. */
	if (!initialised && launched > 1 && !has_process_manager())
		return fail_alone(launched);
	if (!initialised && !has_process_manager())
		return ZERO_OK;
	if (!initialised)
		status = initialise();
	if (!status && library_comm == MPI_COMM_NULL) {
		wait_for_ready_ranks();
		status = check_threads(&library_threaded, &library_main_thread_only);
		if (!status)
			status = duplicate_world();
	}
	if (!status)
		status = find_place(&comm->place, node);
	if (!status && comm->place.world == 1 && launched > 1)
		status = fail_alone(launched);
	comm->threaded = library_threaded;
	comm->main_thread_only = library_main_thread_only;
	if (!status)
		*world = library_comm;
	return status;
}
