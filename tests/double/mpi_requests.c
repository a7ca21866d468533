/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches MPI's requests; preloaded. A request that is begun where another one is still open, and
 * one that is open at the end, end the process with status 1: nobody waited for it.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const MPI_Request *open_requests[MOST];
static int count;

__attribute__((noreturn)) static void give_up(const char *what, int requests)
{
	fprintf(stderr, "mpi_requests: %s: %d requests are open\n", what, requests);
	_exit(1);
}

static int find(const MPI_Request *request)
{
	int at = 0;

	while (at < count && open_requests[at] != request)
		at++;
	return at;
}

static int begun(int error, const MPI_Request *request, const char *call)
{
	pthread_mutex_lock(&lock);
	if (find(request) < count)
		give_up(call, count);
	if (count == MOST)
		give_up("too many", count);
	open_requests[count++] = request;
	pthread_mutex_unlock(&lock);
	return error;
}

static void done(const MPI_Request *request)
{
	int at;

	pthread_mutex_lock(&lock);
	at = find(request);
	if (at < count)
		open_requests[at] = open_requests[--count];
	pthread_mutex_unlock(&lock);
}

int MPI_Isend(const void *data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm,
	      MPI_Request *request)
{
	return begun(PMPI_Isend(data, elements, type, to, tag, comm, request), request,
		     "MPI_Isend over another one");
}

int MPI_Irecv(void *data, int elements, MPI_Datatype type, int from, int tag, MPI_Comm comm,
	      MPI_Request *request)
{
	return begun(PMPI_Irecv(data, elements, type, from, tag, comm, request), request,
		     "MPI_Irecv over another one");
}

int MPI_Iallreduce(const void *send, void *recv, int elements, MPI_Datatype type, MPI_Op op,
		   MPI_Comm comm, MPI_Request *request)
{
	return begun(PMPI_Iallreduce(send, recv, elements, type, op, comm, request), request,
		     "MPI_Iallreduce over another one");
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
	int error = PMPI_Wait(request, status);

	done(request);
	return error;
}

int MPI_Waitall(int requests, MPI_Request *all, MPI_Status *statuses)
{
	int error = PMPI_Waitall(requests, all, statuses);

	for (int i = 0; i < requests; i++)
		done(&all[i]);
	return error;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
	int error = PMPI_Test(request, flag, status);

	if (*flag)
		done(request);
	return error;
}

int MPI_Finalize(void)
{
	if (count)
		give_up("at the end", count);
	return PMPI_Finalize();
}
