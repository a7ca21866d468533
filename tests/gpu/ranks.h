/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the ranks program share. Nothing reads or writes device memory but by the
 * functions of device.h, so that it runs on a device, with a stand-in for the driver, and on the
 * host backend (ZERO_TEST_BACKEND=host).
 */
#ifndef TESTS_GPU_RANKS_H
#define TESTS_GPU_RANKS_H

#include "../ranks/ranks.h"
#include "../ranks/reference.h"
#include "device.h"

extern int world, rank, last;
extern uint64_t seed;

/* Opens a job on the backend under test. */
__attribute__((format(printf, 1, 2))) zero_job *open_tested(const char *format, ...);
/* Copies device memory to host memory, and waits for the copy. */
void fetch(void *out, const void *from, size_t bytes);
/* Random elements of any type: finite ones of floats, with all their bits in use. */
void random_elements(zero_dtype dtype, void *out, size_t count, uint64_t from);
/* Checks the gathered values of a parameter; `what` names the check in messages. */
void expect_gathered(zero_param *param, zero_dtype dtype, const void *want, const char *what);
/* Checks the part of the values that this rank stores. */
void expect_stored(zero_param *param, zero_dtype dtype, const void *want, const char *what);
/* A file in the folder of the test, written by rank 0, that all ranks may read when it returns. */
const char *shared_file(zero_job *job, const char *name, const void *data, size_t bytes);
void *host_memory(size_t bytes); /* ends the program if there is none */

/* The checks, COLLECTIVE; each opens jobs of its own. */
void check_loads(const char *settings);
void check_file_forms(const char *settings);
void check_gathers(const char *settings);
void check_order(const char *settings);
void check_updates(const char *settings);
void check_steps(const char *settings);
void check_skips(const char *settings);
void check_low_gradients(const char *settings);
void check_refused(const char *settings);
void check_reduce_order(const char *settings);
void check_flatten(void);
void check_models(const char *settings);
void check_leaving(void);
void check_accounts(void);
void check_addresses(const char *settings);
void check_captured(const char *settings);

#endif
