/* SPDX-License-Identifier: Apache-2.0 */
/* The all-reduce of an agreement, non-blocking: a rank that leaves waits for several of them. */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "mpi_comm.h"

zero_status zero_mpi_begin_max(struct zero_comm *comm)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);
	int error = MPI_Iallreduce(comm->agreement.mine, comm->agreement.all, ZERO_AGREE_VALUES,
				   MPI_UINT64_T, MPI_MAX, mpi->mpi_comm, &mpi->agreement);

	return zero_mpi_status(error, "MPI_Iallreduce");
}

/*
 * Waits until one of the requests is done. Peers may be late by seconds, and MPI_Wait would keep a
 * core busy that the program computes on, so after a short while this sleeps between tests. *index
 * becomes -1 if a deadlock was found.
 */
static int wait_idly(struct zero_comm *const *comms, int count, int *index)
{
	const struct zero_deadlock *deadlock = &zero_comm_of_job(comms[0])->deadlock;
	struct timespec pause = {0, 2000};
	int done = 0, error = MPI_SUCCESS;

	for (int test = 0; !error && !done; test++) {
		for (int i = 0; !error && !done && i < count; i++) {
			error = MPI_Test(&zero_mpi_of(comms[i])->agreement, &done,
					 MPI_STATUS_IGNORE);
			*index = i;
		}
		if (done || test < 200)
			continue;
		if (atomic_load(&deadlock->found) && !deadlock->ending) {
			*index = -1;
			break;
		}
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 100000)
			pause.tv_nsec += pause.tv_nsec / 4;
	}
	return error;
}

zero_status zero_mpi_finish_max(struct zero_comm *const *comms, int count, int *index)
{
	*index = -1;
	return count ? zero_mpi_status(wait_idly(comms, count, index), "MPI_Iallreduce") : ZERO_OK;
}
