/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory a task may use. NVML is queried once for each step and node, for all GPUs that it
 * shows there; a task, whose GPUs are known only when it starts, then selects its own from the
 * results.
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
	char bus[32];         /* PCI address, "00000000:3B:00.0"; "" if NVML does not tell it */
	uint64_t free, total; /* bytes */
	int index;            /* NVML's number of the GPU; in a task's table CUDA's */
	int minor;            /* N of its /dev/nvidiaN; -1 if NVML does not tell it */
	int instance;         /* number of the MIG instance on its GPU; -1 for the GPU itself */
	bool partitioned;     /* a GPU in MIG mode: only its instances can be used */
};

/* The GPUs that NVML shows in slurmstepd, or those of them that a task may use. */
struct zero_vram {
	struct zero_gpu *gpu; /* owned; the instances of a GPU follow it */
	size_t count;
	char why[256]; /* a sentence if NVML could not be queried in full; else "" */
};

/* ---- vram.c ---------------------------------------------------------------------------------- */

/* A query of NVML; its answer is in shared memory, so that every task can wait for it. */
struct zero_vram_query {
	struct nvml_results *results; /* NULL: no query was started */
	double seconds, deadline;
	char why[256]; /* a sentence if the query could not be started; else "" */
};

/*
 * Starts a query of every GPU, and returns without waiting for its answer. It creates no CUDA
 * context, and runs in a forked process that has the caller's effective ids only. `library` is an
 * absolute path, a name without a slash for the dynamic loader, or NULL for NVIDIA's own. All of
 * *query is overwritten.
 */
void zero_vram_ask(const char *library, double seconds, struct zero_vram_query *query);

/*
 * Waits for the answer, in the process that asked or in a fork of it. All of *vram is overwritten.
 *
 * If there is no library or no driver, the count is 0 and *why says so. A GPU whose query fails is
 * left out, and *why names it. `seconds` after the query was started the function returns the GPUs
 * that there are by then and says so; the process then ends as soon as the driver lets it, and is
 * not a child of the caller.
 */
void zero_vram_answer(const struct zero_vram_query *query, struct zero_vram *vram);
/* Returns how many seconds the query took; 0 if there was none, or if it is not done. */
double zero_vram_seconds(const struct zero_vram_query *query);
void zero_vram_forget(struct zero_vram_query *query);
void zero_vram_clear(struct zero_vram *vram);

/* ---- task_gpus.c ----------------------------------------------------------------------------- */

/*
 * Leaves those GPUs that the calling process, a task, may open, with the numbers that CUDA has for
 * them there.
 */
void zero_vram_keep_own(struct zero_vram *vram);

/* ---- memory_budget.c ------------------------------------------------------------------------- */

/*
 * What the environment and Slurm define for a task. `step_visible` and `step_gpus` are those of the
 * step, as the callback user_init sees them; in task_init Slurm may have reduced both to the GPUs
 * of the task. They tell how many GPUs the tasks share, and no more.
 */
struct zero_budget_input {
	const char *visible;              /* CUDA_VISIBLE_DEVICES of the task; NULL if unset */
	const char *step_visible;         /* CUDA_VISIBLE_DEVICES of the step; NULL if unset */
	const char *step_gpus;            /* SLURM_STEP_GPUS or SLURM_JOB_GPUS; NULL if unset */
	bool all_by_default;              /* if `visible` is NULL: all GPUs of `vram`, not none */
	unsigned tasks;                   /* of the step on this node */
	uint64_t step_memory, job_memory; /* limits on this node in bytes; 0 for no limit */
	uint64_t reserve;                 /* GPU memory to leave free: bytes, or percent of total */
	bool reserve_is_percent;
};

struct zero_budget {
	uint64_t budget;            /* bytes that the task may use */
	uint64_t free, total;       /* of the GPU with the least left, or of the node's memory */
	const struct zero_gpu *gpu; /* that GPU; NULL without GPUs */
	unsigned gpus;              /* that the task sees */
	int source;                 /* ZERO_VRAM_NVML ... of options.h */
	char why[256];              /* a sentence if GPUs are missing or unknown; else "" */
};

/*
 * Computes the budget of a task. With GPUs, it is the least of (free - reserve) over the task's
 * GPUs, divided by the number of tasks that share a GPU. Without GPUs, it is the least of the
 * memory limits and MemAvailable, divided by the tasks on the node.
 *
 * CUDA_VISIBLE_DEVICES is read as CUDA does: an entry is a number, a UUID or a unique prefix of
 * one; the list ends at the first entry that does not exist or is of another kind than the first;
 * a list with a duplicate selects nothing. A GPU in MIG mode stands for its first instance.
 * `vram` is the task's table: its numbers are CUDA's.
 *
 * GPUs that the task sees but `vram` lacks, because NVML failed or did not answer, do not count,
 * and *why says so. If none is left (or all_by_default is set and NVML found none for such a
 * reason), the budget is 0 and its source ZERO_VRAM_UNKNOWN: the library then queries the hardware
 * itself, since the memory of the host would be the wrong number.
 */
void zero_budget_compute(const struct zero_vram *vram, const struct zero_budget_input *input,
			 struct zero_budget *budget);

#endif
