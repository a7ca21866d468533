/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that are ranks of the stand-in for NCCL, on the stand-in for the driver. */
#ifndef DOUBLE_NCCL_TEST_H
#define DOUBLE_NCCL_TEST_H

#include "unit.h"

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RANKS = 8 };

/* The outcome of a run: exit statuses or 1000 + signal number, and the output on stderr. */
struct outcome {
	int status[RANKS];
	char output[1 << 16];
};
extern struct outcome outcome;

/* Runs `body` in `world` processes; the environment is "NAME=VALUE" up to NULL. If `well`, a rank
   that ends otherwise soon ends the others. */
void run_ranks(int world, const char *const *environment, bool well,
	       void (*body)(int rank, int world));
/* ... all of which end well. */
void run_well(int world, void (*body)(int rank, int world));
/* How many ranks ended with this status. */
int count_status(int status);

/* In a rank. */

/* Ends the process unless the condition holds. */
#define WANT(condition) want(condition, #condition, __FILE__, __LINE__)
void want(bool condition, const char *text, const char *file, int line);
/* Waits until the communicator has no call in progress. */
ncclResult_t settle(ncclComm_t comm, ncclResult_t result);
#define WELL(comm, call) WANT(settle(comm, call) == ncclSuccess)
ncclComm_t join(int rank, int world, bool blocking);
void leave(ncclComm_t comm);
/* Device memory, and the host's view of it. */
void *device_alloc(size_t bytes);
void device_free(void *data);
char *seen(void *data, size_t bytes);
cudaStream_t stream_new(void);
void stream_finish(cudaStream_t stream);
bool stream_is_done(cudaStream_t stream);

#endif
