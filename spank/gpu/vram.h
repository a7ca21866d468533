/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory a task may use. NVML is asked once for each step and node, for all its GPUs;
 * which of them a task has is known only when it starts, and it then picks from what was read.
 */
#ifndef ZERO_VRAM_H
#define ZERO_VRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A GPU, or a MIG instance of one. */
struct zero_gpu {
	char uuid[96];        /* "GPU-..." or "MIG-..." */
	char model[96];       /* "NVIDIA H100 80GB HBM3" */
	uint64_t free, total; /* bytes */
	int index;            /* the GPU's, in PCI order */
	int instance;         /* -1: a whole GPU; else the MIG instance's number on it */
	bool partitioned;     /* a whole GPU in MIG mode: only its instances can be used */
};

struct zero_vram {
	struct zero_gpu *gpu; /* owned; a GPU's instances follow it */
	size_t count;
	char why[256]; /* a sentence if NVML could not be asked or not in full; "" if all went
	well */
};

/*
 * Asks NVML for every GPU of the machine, without a CUDA context, in a forked process that has the
 * caller's effective ids alone. `library` is an absolute path, or a name without a slash for the
 * loader to find; NULL: NVIDIA's own. An absent library or driver gives a count of 0 and a
 * sentence. A GPU that does not answer with success is left out, and *why names it. After `seconds`
 * without an answer it gives up with the GPUs it has and says so; the process then ends as soon as
 * the driver lets it, and is no child of the caller's. *vram is filled without looking at what it
 * held.
 */
void zero_vram_ask(const char *library, double seconds, struct zero_vram *vram);
void zero_vram_clear(struct zero_vram *vram);

/*
 * What a task says about its GPUs and memory. `step_visible` and `step_gpus` are the step's, as
 * user_init sees them; in task_init Slurm may have cut both down to the task's own.
 */
struct zero_vram_task {
	const char *visible;      /* its CUDA_VISIBLE_DEVICES; NULL: not set */
	const char *step_visible; /* the step's; NULL: not set */
	/* SLURM_STEP_GPUS or SLURM_JOB_GPUS: numbers on the node, also where control groups make
	   the visible ones begin at 0; NULL: not set */
	const char *step_gpus;
	bool all;                         /* not set means all GPUs of the node, not none */
	unsigned tasks;                   /* of the step on this node, at least 1 */
	uint64_t step_memory, job_memory; /* limits on this node in bytes; 0: none */
	uint64_t reserve; /* bytes, or percent of a GPU's total, to leave free of VRAM */
	bool reserve_is_percent;
};

struct zero_budget {
	uint64_t budget;            /* bytes that the task may use */
	uint64_t free, total;       /* of its fullest GPU; without GPUs of the node's memory */
	const struct zero_gpu *gpu; /* that GPU, or NULL */
	unsigned gpus;              /* that the task sees */
	int source;                 /* ZERO_VRAM_NVML ... of options.h */
	/* A sentence if it sees fewer GPUs than are named, or not all are in the table; "" else. */
	char why[256];
};

/*
 * The budget of a task: the least over its GPUs of free bytes less the reserve, divided by the
 * tasks that share a GPU; without GPUs the tightest of the memory limits and MemAvailable, divided
 * by the node's tasks.
 *
 * GPUs are named as CUDA names them: by number, or by UUID or as much of its beginning as is
 * unique; up to the first that does not exist or is of another kind than the first; none at all if
 * one is named twice. A GPU in MIG mode stands for its first instance. Numbers are in PCI order, as
 * CUDA's are on nodes with one model of GPU.
 *
 * GPUs that the task sees but the table lacks, because NVML is absent or gave up, do not count,
 * and *why says so. If all are of that sort (or `all` is set and the table is empty for such a
 * reason), the budget is 0 and its source ZERO_VRAM_UNKNOWN: the library then asks the hardware
 * itself. Host memory would be a number for something else.
 */
void zero_budget_of(const struct zero_vram *vram, const struct zero_vram_task *task,
		    struct zero_budget *budget);

#endif
