/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes rank 1 late at the end of MPI_Init; preloaded. Until it is there, the file MPI_LATE_FILE is
 * missing, and a rank that communicates ends with status 1.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Others would need less than a tenth of it to come to their first message. */
#define LATE_SECONDS 2

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	int error = PMPI_Init_thread(argc, argv, required, provided), rank;
	const char *path = getenv("MPI_LATE_FILE");
	FILE *file;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (rank != 1)
		return error;
	sleep(LATE_SECONDS);
	file = path ? fopen(path, "w") : NULL;
	if (!file || fclose(file))
		_exit(2);
	return error;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
	const char *path = getenv("MPI_LATE_FILE");

	if (path && access(path, F_OK) != 0) {
		fprintf(stderr, "mpi_late: a rank communicates before rank 1 is ready\n");
		_exit(1);
	}
	return PMPI_Comm_dup(comm, copy);
}
