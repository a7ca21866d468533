/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries NVML, in the process that vram.c forks for it, and the shared memory through which that
 * process publishes its results one by one.
 */
#ifndef ZERO_NVML_QUERY_H
#define ZERO_NVML_QUERY_H

#include <stdatomic.h>

#include "vram.h"

enum { NVML_GPUS = 128, NVML_INSTANCES = 16, NVML_ENTRIES = NVML_GPUS * (1 + NVML_INSTANCES) };

/* What the process is calling: a function of NVML, or one of the last three. */
enum nvml_call {
	NVML_INIT,
	NVML_SHUTDOWN,
	NVML_ERROR_STRING,
	NVML_COUNT,
	NVML_HANDLE,
	NVML_UUID,
	NVML_NAME,
	NVML_MEMORY,
	NVML_PCI,
	NVML_MINOR,
	NVML_MIG_MODE,
	NVML_MIG_COUNT,
	NVML_MIG_HANDLE,
	NVML_SYMBOLS,
	NVML_START = NVML_SYMBOLS,
	NVML_LOAD,
	NVML_DONE,
};

/* The progress of the process: one word, which is read and written atomically. */
struct nvml_progress {
	uint16_t call;       /* enum nvml_call */
	uint16_t gpu;        /* the GPU that the call is about; NVML_GPUS for none */
	uint16_t count, why; /* the entries, and characters, that are complete */
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(struct nvml_progress) == sizeof(long long),
	       "a lock would not work between processes");

/* The shared memory. Only the process writes it, and the kernel when the process ends. */
struct nvml_results {
	_Atomic uint32_t owner; /* the process, as a robust futex: FUTEX_OWNER_DIED once it ended */
	_Atomic struct nvml_progress progress;
	double left; /* seconds until the deadline, once it is done */
	char why[sizeof(((struct zero_vram *)NULL)->why)];
	struct zero_gpu gpu[NVML_ENTRIES];
};

/* Loads the library and queries it; it stays loaded. A call into it may never return. */
void nvml_query(struct nvml_results *results, const char *library);

/* Publishes the call that comes next, and all clauses that were appended before. */
void nvml_set_call(struct nvml_results *results, enum nvml_call call, unsigned gpu);

/* Appends a clause to a sentence, after "; ", unless there is too little space left for it. */
void nvml_append_clause(char *why, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Returns the name of a call for a message. */
const char *nvml_call_name(unsigned call);

#endif
