/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that share the work of one call on the CPU: AdamW and the norm are bounded by memory,
 * which one core alone does not saturate. What they compute does not depend on how many there are.
 */
#ifndef ZERO_WORKERS_H
#define ZERO_WORKERS_H

#include <sched.h>

#include "comm.h"
#include "kernels.h"

struct zero_workers;

/* What works on host memory. */
struct zero_cpu {
	const struct zero_kernels *kernels;
	struct zero_workers *workers;
};

/* Where a rank may run. */
struct zero_seat {
	uint64_t node; /* a hash of its name */
	cpu_set_t cores;
};

/* COLLECTIVE, exchanges seats. How many threads this rank should have: as many as its cores, of
   which those that several ranks of the node may run on count in part, and no more than
   SLURM_CPUS_PER_TASK. `asked`, if not 0, is the answer. */
int zero_workers_budget(struct zero_comm *comm, int asked);
/* The threads, the caller's own included, start when they are first needed. NULL without memory;
   NULL is valid everywhere, and stands for the caller's thread. */
struct zero_workers *zero_workers_new(int threads);
void zero_workers_delete(struct zero_workers *workers);
/* Calls work(context, i) for each i < count, in any order and thread, and returns when all are
   done. If the threads are busy for another caller, or in a forked child, the caller does it
   all. */
void zero_workers_run(struct zero_workers *workers, void (*work)(void *context, size_t i),
		      void *context, size_t count);

/* ---- cpu_step.c ------------------------------------------------------------------------------ */

/* Runs a kernel on host memory before it returns, with the bits that kernels.h states. */
void zero_cpu_run(const struct zero_cpu *cpu, enum zero_kernel kernel, const void *arguments);
/* The sum of the squares: of parts whose length depends on count alone, in their order. */
double zero_cpu_norm2(const struct zero_cpu *cpu, const float *x, size_t count);

#endif
