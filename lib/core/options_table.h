/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the table of options. Only options.c includes this file. */
#ifndef ZERO_OPTIONS_TABLE_H
#define ZERO_OPTIONS_TABLE_H

#include <limits.h>

#include "options.h"

/* Where a user may set most options. */
enum {
	USER = ZERO_IN_FLAG | ZERO_IN_ENVIRONMENT | ZERO_IN_YAML | ZERO_IN_RESOLVED,
};

#define ONE_K (UINT64_C(1) << 10)
#define ONE_T (UINT64_C(1) << 40)

static const char *const shard_choices[] = {"all", "node", "auto", NULL};
static const char *const flatten_choices[] = {"auto", "device", "distributed", "host", NULL};
static const char *const allgather_choices[] = {"auto", "single", "grouped", NULL};
static const char *const gather_dtype_choices[] = {"param", "bf16", "f16", "f32", NULL};
static const char *const offload_choices[] = {"none", "optimizer", NULL};
static const char *const states_choices[] = {"f32", "8bit", NULL}; /* of enum zero_states */
static const char *const backend_choices[] = {"auto", "none", "host", "cuda", NULL};
static const char *const on_fault_choices[] = {"abort", "return", NULL};
static const char *const yes_no_choices[] = {"yes", "no", NULL};
static const char *const replace_choices[] = {"auto", "replace", "keep", NULL};
static const char *const vram_source_choices[] = {"unknown",    "nvml",          "step_memory",
						  "job_memory", "mem_available", NULL};
static const char *const reduce_choices[] = {"nccl", "ordered", NULL};
static const char *const protect_choices[] = {"program", "auto", "no", NULL};
static const char *const stream_choices[] = {"no", "auto", NULL};
static const char *const nccl_cta_choices[] = {"auto", "zero", "default", NULL};
static const char *const slow_choices[] = {"no", NULL};
static const char *const isa_choices[] = {"auto", "avx512", "avx2", "neon", "scalar", NULL};

/* clang-format off */
const struct zero_option zero_option_table[ZERO_OPTIONS] = {
	[ZERO_OPT_STAGE] = {
		.name = "stage", .flag = "--zero-stage", .env = "ZERO_STAGE",
		.argument = "0|1|2|3", .default_text = "3",
		.help = "what is sharded: 1 optimizer, 2 also gradients, 3 everything",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = 3, .where = USER,
	},
	[ZERO_OPT_SHARD] = {
		.name = "shard", .flag = "--zero-shard", .env = "ZERO_SHARD",
		.argument = "all|node|auto|N", .default_text = "all",
		.help = "stage 3: ranks that store a copy; auto: as few as fit",
		.type = ZERO_TYPE_CHOICE_OR_INTEGER, .choices = shard_choices,
		.min = 1, .max = ZERO_MAX_SHARD, .where = USER,
	},
	[ZERO_OPT_OFFLOAD] = {
		.name = "offload", .flag = "--zero-offload", .env = "ZERO_OFFLOAD",
		.argument = "none|optimizer", .default_text = "none",
		.help = "states to store in host memory instead of GPU memory",
		.type = ZERO_TYPE_CHOICE, .choices = offload_choices, .where = USER,
	},
	[ZERO_OPT_STATES] = {
		.name = "states", .flag = "--zero-states", .env = "ZERO_STATES",
		.argument = "f32|8bit", .default_text = "f32",
		.help = "moments of AdamW: 8bit takes 2 bytes an element, not 8",
		.type = ZERO_TYPE_CHOICE, .choices = states_choices, .where = USER,
	},
	[ZERO_OPT_CONFIG] = {
		.name = "config", .flag = "--zero-config", .env = "ZERO_CONFIG",
		.argument = "FILE", .default_text = "",
		.help = "YAML file with options, read after the site's file",
		.type = ZERO_TYPE_PATH, .max = PATH_MAX - 1,
		.where = ZERO_IN_FLAG | ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_REPORT] = {
		.name = "report", .flag = "--zero-report", .env = "ZERO_REPORT",
		.argument = "DIR", .default_text = "",
		.help = "folder to write a report of the job to",
		.type = ZERO_TYPE_PATH, .max = PATH_MAX - 1, .where = USER,
	},
	[ZERO_OPT_PROTECT] = {
		.name = "protect", .flag = "--zero-protect", .env = "ZERO_PROTECT",
		.argument = "program|auto|no|N", .default_text = "program",
		.help = "steps from one copy in node memory to the next",
		.type = ZERO_TYPE_CHOICE_OR_INTEGER, .choices = protect_choices,
		.min = 1, .max = ZERO_MAX_PROTECT, .where = USER,
	},
	[ZERO_OPT_SLOW] = {
		.name = "slow", .flag = "--zero-slow", .env = "ZERO_SLOW",
		.argument = "no|PERCENT", .default_text = "10",
		.help = "name ranks that others wait for longer than this",
		.type = ZERO_TYPE_CHOICE_OR_INTEGER, .choices = slow_choices,
		.min = 1, .max = ZERO_MAX_SLOW, .where = USER,
	},
	[ZERO_OPT_STREAM_CHUNK] = {
		.name = "stream_chunk", .flag = "--zero-stream-chunk", .env = "ZERO_STREAM_CHUNK",
		.argument = "SIZE", .default_text = "40M",
		.help = "size of the pieces in which a large parameter is loaded",
		.type = ZERO_TYPE_SIZE, .min = 1, .max = ONE_T, .where = USER,
	},
	[ZERO_OPT_STREAM_THRESHOLD] = {
		.name = "stream_threshold", .flag = "--zero-stream-threshold",
		.env = "ZERO_STREAM_THRESHOLD",
		.argument = "SIZE|auto", .default_text = "auto",
		.help = "load parameters above this size in pieces; auto: budget/64",
		.type = ZERO_TYPE_SIZE_OR_AUTO, .min = 0, .max = ONE_T, .where = USER,
	},
	[ZERO_OPT_STREAM] = {
		.name = "stream", .flag = "--zero-stream", .env = "ZERO_STREAM",
		.argument = "no|auto", .default_text = "no",
		.help = "PyTorch, gpt: compute with parameters above that in pieces",
		.type = ZERO_TYPE_CHOICE, .choices = stream_choices, .where = USER,
	},
	[ZERO_OPT_FLATTEN] = {
		.name = "flatten", .flag = "--zero-flatten", .env = "ZERO_FLATTEN",
		.argument = "auto|device|distributed|host", .default_text = "auto",
		.help = "where flat buffers are built from existing tensors",
		.type = ZERO_TYPE_CHOICE, .choices = flatten_choices, .where = USER,
	},
	[ZERO_OPT_ALLGATHER] = {
		.name = "allgather", .flag = "--zero-allgather", .env = "ZERO_ALLGATHER",
		.argument = "auto|single|grouped", .default_text = "auto",
		.help = "gather single parameters or whole groups",
		.type = ZERO_TYPE_CHOICE, .choices = allgather_choices, .where = USER,
	},
	[ZERO_OPT_BUCKET] = {
		.name = "bucket", .flag = "--zero-bucket", .env = "ZERO_BUCKET",
		.argument = "SIZE", .default_text = "1G",
		.help = "size above which --zero-allgather=auto cuts a group",
		.type = ZERO_TYPE_SIZE, .min = 64 * ONE_K, .max = ONE_T, .where = USER,
	},
	[ZERO_OPT_GATHER_LIMIT] = {
		.name = "gather_limit", .flag = "--zero-gather-limit", .env = "ZERO_GATHER_LIMIT",
		.argument = "SIZE|auto", .default_text = "auto",
		.help = "limit on gathered bytes when prefetching; auto: budget/4",
		.type = ZERO_TYPE_SIZE_OR_AUTO, .min = 0, .max = ONE_T, .where = USER,
	},
	[ZERO_OPT_GATHER_DTYPE] = {
		.name = "gather_dtype", .flag = "--zero-gather-dtype", .env = "ZERO_GATHER_DTYPE",
		.argument = "param|bf16|f16|f32", .default_text = "param",
		.help = "type of gathers that do not name one; param: as stored",
		.type = ZERO_TYPE_CHOICE, .choices = gather_dtype_choices, .where = USER,
	},
	[ZERO_OPT_VRAM_RESERVE] = {
		.name = "vram_reserve", .flag = "--zero-vram-reserve", .env = "ZERO_VRAM_RESERVE",
		.argument = "SIZE|PERCENT%", .default_text = "5%",
		.help = "GPU memory that the library leaves free",
		.type = ZERO_TYPE_SIZE_OR_PERCENT, .min = 0, .max = ONE_T, .where = USER,
	},
	[ZERO_OPT_BACKEND] = {
		.name = "backend", .flag = "--zero-backend", .env = "ZERO_BACKEND",
		.argument = "auto|none|host|cuda", .default_text = "auto",
		.help = "hardware; auto: cuda if there is one; none: only the watch",
		.type = ZERO_TYPE_CHOICE, .choices = backend_choices, .where = USER,
	},
	[ZERO_OPT_PRELOAD] = {
		.name = "preload", .flag = "--zero-preload", .env = "ZERO_PRELOAD",
		.argument = "yes|no", .default_text = "yes",
		.help = "preload libzero.so into each task",
		.type = ZERO_TYPE_CHOICE, .choices = yes_no_choices, .where = USER,
	},
	[ZERO_OPT_PRELOAD_PATH] = {
		.name = "preload_path",
		.argument = "FILE", .default_text = "",
		.help = "path of libzero.so in tasks; empty: the installed file",
		.type = ZERO_TYPE_PATH, .max = PATH_MAX - 1,
		.absolute = true, .where = ZERO_IN_YAML | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_PYTHON] = {
		.name = "python", .flag = "--zero-python", .env = "ZERO_PYTHON",
		.argument = "yes|no", .default_text = "yes",
		.help = "put the package slurm_zero on PYTHONPATH of each task",
		.type = ZERO_TYPE_CHOICE, .choices = yes_no_choices, .where = USER,
	},
	[ZERO_OPT_FSDP] = {
		.name = "fsdp", .flag = "--zero-fsdp", .env = "ZERO_FSDP",
		.argument = "auto|replace|keep", .default_text = "auto",
		.help = "PyTorch's fully_shard: ours, or its own; auto: ours on CPUs",
		.type = ZERO_TYPE_CHOICE, .choices = replace_choices, .where = USER,
	},
	[ZERO_OPT_DEEPSPEED] = {
		.name = "deepspeed", .flag = "--zero-deepspeed", .env = "ZERO_DEEPSPEED",
		.argument = "auto|replace|keep", .default_text = "auto",
		.help = "DeepSpeed's engine: ours, or its own; auto: ours on CPUs",
		.type = ZERO_TYPE_CHOICE, .choices = replace_choices, .where = USER,
	},
	[ZERO_OPT_PROTECT_DIR] = {
		.name = "protect_dir", .env = "ZERO_PROTECT_DIR",
		.argument = "DIR", .default_text = "/dev/shm",
		.help = "folder in each node's memory for what is protected",
		.type = ZERO_TYPE_PATH, .max = PATH_MAX - 256, .absolute = true,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_YAML | ZERO_IN_RESOLVED | ZERO_OF_SITE,
	},
	[ZERO_OPT_PROTECT_MAX] = {
		.name = "protect_max", .flag = "--zero-protect-max", .env = "ZERO_PROTECT_MAX",
		.argument = "SIZE|auto", .default_text = "auto",
		.help = "the most of it on a node; auto: half of what is free",
		.type = ZERO_TYPE_SIZE_OR_AUTO, .min = 0, .max = ONE_T, .where = USER,
	},
	[ZERO_OPT_ISA] = {
		.name = "isa", .env = "ZERO_ISA",
		.argument = "auto|avx512|avx2|neon|scalar", .default_text = "auto",
		.help = "instruction set of the CPU kernels",
		.type = ZERO_TYPE_CHOICE, .choices = isa_choices,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_SHARE] = {
		.name = "share", .env = "ZERO_SHARE",
		.argument = "COUNT", .default_text = "0",
		.help = "maximum number of ranks that share memory on a node; 0: all, 1: none",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = INT_MAX,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_THREADS] = {
		.name = "threads", .env = "ZERO_THREADS",
		.argument = "COUNT", .default_text = "0",
		.help = "threads of a rank that step on the CPU; 0: one for each of its cores",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = 1024,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_REDUCE] = {
		.name = "reduce", .env = "ZERO_REDUCE",
		.argument = "nccl|ordered", .default_text = "nccl",
		.help = "who sums the gradients of GPUs; ordered: in rank order, which costs time",
		.type = ZERO_TYPE_CHOICE, .choices = reduce_choices,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_NCCL] = {
		.name = "nccl", .env = "ZERO_NCCL",
		.argument = "FILE", .default_text = "",
		.help = "path of libnccl.so; empty: the program's or the system's",
		.type = ZERO_TYPE_PATH, .max = PATH_MAX - 1,
		.absolute = true, .where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_NCCL_CTA] = {
		.name = "nccl_cta", .env = "ZERO_NCCL_CTA",
		.argument = "auto|zero|default", .default_text = "auto",
		.help = "gathers by copy engines (zero), or by kernels of NCCL",
		.type = ZERO_TYPE_CHOICE, .choices = nccl_cta_choices,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_OPEN_SECONDS] = {
		.name = "open_seconds", .env = "ZERO_OPEN_SECONDS",
		.argument = "COUNT", .default_text = "120",
		.help = "seconds that ranks wait for each other while a job opens",
		.type = ZERO_TYPE_INTEGER, .min = 1, .max = 86400,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_WATCH_SECONDS] = {
		.name = "watch_seconds", .env = "ZERO_WATCH_SECONDS",
		.argument = "COUNT", .default_text = "5",
		.help = "seconds without a heartbeat after which a rank is lost; 0: no watch",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = 86400,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_STALL_SECONDS] = {
		.name = "stall_seconds", .env = "ZERO_STALL_SECONDS",
		.argument = "COUNT", .default_text = "1800",
		.help = "seconds that an operation may wait for other ranks; 0: no limit",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = INT_MAX,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_END_SECONDS] = {
		.name = "end_seconds", .env = "ZERO_END_SECONDS",
		.argument = "COUNT", .default_text = "60",
		.help = "seconds that a rank may take to end, with backend=none; 0: no limit",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = 86400,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_ON_FAULT] = {
		.name = "on_fault", .env = "ZERO_ON_FAULT",
		.argument = "abort|return", .default_text = "abort",
		.help = "whether a lost rank aborts the job, or calls return errors",
		.type = ZERO_TYPE_CHOICE, .choices = on_fault_choices,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_CHECK] = {
		.name = "check", .env = "ZERO_CHECK",
		.argument = "0|1", .default_text = "0",
		.help = "1: check each operation, change, release and adopted value",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = 1,
		.where = ZERO_IN_ENVIRONMENT | ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_TASKS] = {
		.name = "tasks",
		.argument = "COUNT", .default_text = "0",
		.help = "number of ranks that were launched; 0: unknown",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = INT_MAX, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_BUDGET] = {
		.name = "budget",
		.argument = "SIZE", .default_text = "0",
		.help = "bytes of memory that a rank may use; 0: unknown",
		.type = ZERO_TYPE_SIZE, .min = 0, .max = UINT64_MAX, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_VRAM_FREE] = {
		.name = "vram_free",
		.argument = "SIZE", .default_text = "0",
		.help = "free bytes of the task's GPU that has the fewest",
		.type = ZERO_TYPE_SIZE, .min = 0, .max = UINT64_MAX, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_VRAM_TOTAL] = {
		.name = "vram_total",
		.argument = "SIZE", .default_text = "0",
		.help = "total bytes of that GPU",
		.type = ZERO_TYPE_SIZE, .min = 0, .max = UINT64_MAX, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_VRAM_SOURCE] = {
		.name = "vram_source",
		.argument = "SOURCE", .default_text = "unknown",
		.help = "how vram_free was measured; without a GPU it is host memory",
		.type = ZERO_TYPE_CHOICE, .choices = vram_source_choices, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_GPUS] = {
		.name = "gpus",
		.argument = "COUNT", .default_text = "0",
		.help = "number of GPUs that the task sees",
		.type = ZERO_TYPE_INTEGER, .min = 0, .max = INT_MAX, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_GPU] = {
		.name = "gpu",
		.argument = "MODEL", .default_text = "",
		.help = "model of the task's GPUs",
		.type = ZERO_TYPE_TEXT, .max = 255, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_MASTER] = {
		.name = "master",
		.argument = "HOST:PORT", .default_text = "",
		.help = "the task's MASTER_ADDR and MASTER_PORT",
		.type = ZERO_TYPE_TEXT, .max = 511, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_PYTHON_PATH] = {
		.name = "python_path",
		.argument = "FOLDER", .default_text = "",
		.help = "what was put on the task's PYTHONPATH",
		.type = ZERO_TYPE_PATH, .max = PATH_MAX - 1, .where = ZERO_IN_RESOLVED,
	},
	[ZERO_OPT_ORIGINS] = {
		.name = "origins",
		.argument = "NAME:ORIGIN;...", .default_text = "",
		.help = "origin of each option that is not at its default",
		.type = ZERO_TYPE_TEXT, .max = 8191, .where = ZERO_IN_RESOLVED,
	},
};
/* clang-format on */

#endif
