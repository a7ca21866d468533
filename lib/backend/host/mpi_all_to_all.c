/* SPDX-License-Identifier: Apache-2.0 */
/* Any rank sends to any: all messages of an operation are under way at once. */
#include <stdlib.h>

#include "mpi_comm.h"

static size_t messages(const struct zero_transfer *transfers, size_t count, size_t size, int self)
{
	size_t most = ZERO_MESSAGE_MAX / size, all = 0;

	for (size_t i = 0; i < count; i++)
		if (transfers[i].rank != self)
			all += (transfers[i].count + most - 1) / most;
	return all;
}

/* Begins the messages of a transfer, which MPI delivers in this order. */
static int begin_transfer(struct zero_mpi_comm *mpi, const struct zero_transfer *transfer,
			  size_t size, bool sends, MPI_Request **requests)
{
	size_t bytes = transfer->count * size, most = ZERO_MESSAGE_MAX / size * size;
	int error = MPI_SUCCESS;

	for (size_t at = 0; !error && at < bytes; at += most) {
		int now = (int)(bytes - at < most ? bytes - at : most);
		char *data = (char *)transfer->data + at;

		error = sends ? MPI_Isend(data, now, MPI_BYTE, transfer->rank, 0, mpi->mpi_comm,
					  (*requests)++)
			      : MPI_Irecv(data, now, MPI_BYTE, transfer->rank, 0, mpi->mpi_comm,
					  (*requests)++);
	}
	mpi->comm.bytes_sent += sends ? bytes : 0;
	return error;
}

zero_status zero_mpi_all_to_all(struct zero_mpi_comm *mpi, const struct zero_op *op)
{
	int self = mpi->comm.place.rank, error = MPI_SUCCESS;
	size_t size = zero_core->dtype_size(op->from);
	size_t count = messages(op->sends, op->send_count, size, self) +
		       messages(op->receives, op->receive_count, size, self);
	MPI_Request *requests = calloc(count + 1, sizeof(*requests)), *next = requests;

	if (!requests)
		return zero_core->fail(ZERO_E_COMM, "no memory for %zu messages", count);
	for (size_t i = 0; !error && i < op->receive_count; i++)
		if (op->receives[i].rank != self)
			error = begin_transfer(mpi, &op->receives[i], size, false, &next);
	for (size_t i = 0; !error && i < op->send_count; i++)
		if (op->sends[i].rank != self)
			error = begin_transfer(mpi, &op->sends[i], size, true, &next);
	zero_copy_to_self(op, self);
	if (!error)
		error = MPI_Waitall((int)(next - requests), requests, MPI_STATUSES_IGNORE);
	free(requests);
	return zero_mpi_status(error, "a transfer between ranks");
}
