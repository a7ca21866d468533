/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The questions to NVML, asked in a process of their own, and the shared memory in which it hands
 * over what it has read so far.
 */
#ifndef ZERO_NVML_H
#define ZERO_NVML_H

#include <stdatomic.h>

#include "vram.h"

enum { NVML_GPUS = 128, NVML_INSTANCES = 16, NVML_ENTRIES = NVML_GPUS * (1 + NVML_INSTANCES) };

/* What the process is at: a function of NVML, or one of the last three. */
enum nvml_call {
	NVML_INIT,
	NVML_SHUTDOWN,
	NVML_ERROR_STRING,
	NVML_COUNT,
	NVML_HANDLE,
	NVML_UUID,
	NVML_NAME,
	NVML_MEMORY,
	NVML_MIG_MODE,
	NVML_MIG_COUNT,
	NVML_MIG_HANDLE,
	NVML_SYMBOLS,
	NVML_START = NVML_SYMBOLS,
	NVML_LOAD,
	NVML_DONE,
};

/* How far the process is: one word, so that what is read of it at any moment fits together. */
struct nvml_progress {
	uint16_t call;       /* enum nvml_call */
	uint16_t of;         /* the GPU that it is about; NVML_GPUS: about none */
	uint16_t count, why; /* entries, and characters, that are there and will not change */
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(struct nvml_progress) == sizeof(long long),
	       "processes share no locks");

/* Written by the process alone. */
struct nvml_answers {
	_Atomic struct nvml_progress progress;
	char why[sizeof(((struct zero_vram *)NULL)->why)];
	struct zero_gpu gpu[NVML_ENTRIES];
};

/* Loads the library and asks. It stays loaded, and the process may hang in it. */
void nvml_ask(struct nvml_answers *answers, const char *library);

/* Says what the process is at. */
void nvml_calling(struct nvml_answers *answers, enum nvml_call call, unsigned of);

/* Adds a clause to the sentence. */
void nvml_tell(struct nvml_answers *answers, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* What a call is named in a sentence. */
const char *nvml_call_name(unsigned call);

#endif
