/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the files of the transfers program. */
#ifndef TESTS_GPU_TRANSFERS_H
#define TESTS_GPU_TRANSFERS_H

#include "../ranks/ranks.h"
#include "device.h"
#include "record.h"

extern int world, rank;
extern double scale; /* of all sizes; 1 in a run that counts */

enum { MOST_TIMES = 32 };

zero_job *open_cuda(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Milliseconds until the device has done all of it, from when all ranks are here: the slowest
   rank's. COLLECTIVE. */
double timed(zero_job *job, void (*work)(void *context), void *context);
/* The median of `times`, without the first two. */
double timed_often(zero_job *job, size_t times, void (*work)(void *context), void *context);
/* The largest value of all ranks. */
double agreed(zero_job *job, double mine);
void random_on_device(zero_dtype dtype, void *data, size_t count);
size_t scaled(size_t bytes); /* by `scale`, in whole MiB */

/* ---- libraries.c: opened when they are needed; NULL, or why they cannot be ------------------- */

const char *blas_open(void);
/* out[n][m] (+)= a . b, column by column as in Fortran: m x k times k x n of bf16; out is bf16, or
   f32 if `wide`. */
void blas_product(void *stream, bool turn_a, bool turn_b, size_t m, size_t n, size_t k,
		  const void *a, const void *b, void *out, bool wide, bool accumulate);

enum { NCCL_ID_BYTES = 128 };

const char *nccl_open(void);
int nccl_version(void);
void nccl_new_id(void *id);
void *nccl_join(int ranks, int own, const void *id); /* a communicator */
void nccl_gather(void *comm, const void *send, void *recv, size_t bytes, void *stream);
void nccl_leave(void *comm);

/* ---- the rows -------------------------------------------------------------------------------- */

void measure_stream(void);   /* from pinned memory and from a file into shards */
void measure_downcast(void); /* as bf16 against f32 and a cast */
void measure_step(void);     /* stage 3 against stage 0 */
void measure_calls(void);    /* stage 3 as a graph, and with an agreement on each call */
void measure_engines(void);  /* a product beside gathers */
void measure_connect(void);  /* until the first collective */

#endif
