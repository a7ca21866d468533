/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options are one table: flags, environment variables, YAML keys, help texts and man pages are
 * made from it. To add an option, add a row to options_table.h and its place to the enum.
 */
#ifndef ZERO_OPTIONS_H
#define ZERO_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "text.h"
#include "zero.h"

/* In the order of help texts and pages: first what a user needs first. */
enum zero_option_id {
	ZERO_OPT_STAGE,
	ZERO_OPT_SHARD,
	ZERO_OPT_OFFLOAD,
	ZERO_OPT_STATES,
	ZERO_OPT_CONFIG,
	ZERO_OPT_REPORT,
	ZERO_OPT_PROTECT,
	ZERO_OPT_SLOW,
	ZERO_OPT_STREAM_CHUNK,
	ZERO_OPT_STREAM_THRESHOLD,
	ZERO_OPT_STREAM,
	ZERO_OPT_FLATTEN,
	ZERO_OPT_ALLGATHER,
	ZERO_OPT_BUCKET,
	ZERO_OPT_GATHER_LIMIT,
	ZERO_OPT_GATHER_DTYPE,
	ZERO_OPT_VRAM_RESERVE,
	ZERO_OPT_BACKEND,
	ZERO_OPT_PRELOAD,
	ZERO_OPT_PRELOAD_PATH, /* in YAML only */
	ZERO_OPT_PYTHON,
	ZERO_OPT_FSDP,
	ZERO_OPT_DEEPSPEED,
	ZERO_OPT_PROTECT_DIR,
	ZERO_OPT_PROTECT_MAX,
	ZERO_OPT_ISA, /* this and the following ones in the environment only */
	ZERO_OPT_SHARE,
	ZERO_OPT_THREADS,
	ZERO_OPT_REDUCE,
	ZERO_OPT_NCCL,
	ZERO_OPT_NCCL_CTA,
	ZERO_OPT_OPEN_SECONDS,
	ZERO_OPT_WATCH_SECONDS,
	ZERO_OPT_STALL_SECONDS,
	ZERO_OPT_END_SECONDS,
	ZERO_OPT_ON_FAULT,
	ZERO_OPT_CHECK,
	/* Facts that a launcher finds out and passes on in ZERO_RESOLVED. Users do not set them. */
	ZERO_OPT_TASKS,
	ZERO_OPT_BUDGET,
	ZERO_OPT_VRAM_FREE,
	ZERO_OPT_VRAM_TOTAL,
	ZERO_OPT_VRAM_SOURCE,
	ZERO_OPT_GPUS,
	ZERO_OPT_GPU,
	ZERO_OPT_MASTER,
	ZERO_OPT_PYTHON_PATH,
	ZERO_OPT_ORIGINS,
	ZERO_OPTIONS,
};

enum zero_option_type {
	ZERO_TYPE_INTEGER,
	ZERO_TYPE_SIZE, /* 40M: K, M, G, T = 1024^n, whole numbers */
	ZERO_TYPE_SIZE_OR_AUTO,
	ZERO_TYPE_SIZE_OR_PERCENT,
	ZERO_TYPE_CHOICE,
	ZERO_TYPE_CHOICE_OR_INTEGER,
	ZERO_TYPE_PATH,
	ZERO_TYPE_TEXT,
};

/* Where an option may be set; bits of zero_option.where. */
enum {
	ZERO_IN_FLAG = 1,
	ZERO_IN_ENVIRONMENT = 2,
	ZERO_IN_YAML = 4,
	ZERO_IN_RESOLVED = 8,
	ZERO_OF_SITE = 16, /* under Slurm only the site's zero.yaml sets it */
};

struct zero_option {
	const char *name;           /* "stream_chunk": YAML key, and name in ZERO_RESOLVED */
	const char *flag;           /* "--zero-stream-chunk"; NULL if there is none */
	const char *env;            /* "ZERO_STREAM_CHUNK"; NULL if there is none */
	const char *argument;       /* "SIZE", for help texts */
	const char *default_text;   /* compiled default, in the option's own syntax */
	const char *help;           /* one line, no full stop */
	const char *const *choices; /* NULL-terminated, for CHOICE and CHOICE_OR_INTEGER */
	uint64_t min,
		max; /* INTEGER, CHOICE_OR_INTEGER and SIZE: bounds; PATH and TEXT: bytes; percent
			is 0 to 100 */
	enum zero_option_type type;
	unsigned where;
	bool absolute; /* PATH: begins with a slash unless it is empty */
};

/* The meaning of zero_value.number for each CHOICE, in the order of its `choices`; those of a
   CHOICE_OR_INTEGER follow its `max`. */
enum { ZERO_MAX_SHARD = 1 << 20, ZERO_SHARD_ALL, ZERO_SHARD_NODE, ZERO_SHARD_AUTO };
enum { ZERO_MAX_PROTECT = 1 << 20, ZERO_PROTECT_PROGRAM, ZERO_PROTECT_AUTO, ZERO_PROTECT_NO };
enum { ZERO_MAX_SLOW = 99, ZERO_SLOW_NO };
enum { ZERO_FLATTEN_AUTO, ZERO_FLATTEN_DEVICE, ZERO_FLATTEN_DISTRIBUTED, ZERO_FLATTEN_HOST };
enum { ZERO_ALLGATHER_AUTO, ZERO_ALLGATHER_SINGLE, ZERO_ALLGATHER_GROUPED };
enum { ZERO_GATHER_PARAM, ZERO_GATHER_BF16, ZERO_GATHER_F16, ZERO_GATHER_F32 };
enum { ZERO_OFFLOAD_NONE, ZERO_OFFLOAD_OPTIMIZER };
enum { ZERO_BACKEND_AUTO, ZERO_BACKEND_NONE, ZERO_BACKEND_HOST, ZERO_BACKEND_CUDA };
enum { ZERO_REDUCE_NCCL, ZERO_REDUCE_ORDERED };
enum { ZERO_NCCL_CTA_AUTO, ZERO_NCCL_CTA_ZERO, ZERO_NCCL_CTA_DEFAULT };
enum { ZERO_ON_FAULT_ABORT, ZERO_ON_FAULT_RETURN };
enum { ZERO_PRELOAD_YES, ZERO_PRELOAD_NO };
enum { ZERO_PYTHON_YES, ZERO_PYTHON_NO };
enum {
	ZERO_VRAM_UNKNOWN,
	ZERO_VRAM_NVML,          /* free memory of GPUs */
	ZERO_VRAM_STEP_MEMORY,   /* the Slurm step's memory limit on the node */
	ZERO_VRAM_JOB_MEMORY,    /* the Slurm job's memory limit on the node */
	ZERO_VRAM_MEM_AVAILABLE, /* of /proc/meminfo */
};
enum { ZERO_ISA_AUTO, ZERO_ISA_AVX512, ZERO_ISA_AVX2, ZERO_ISA_NEON, ZERO_ISA_SCALAR };

enum zero_value_kind { ZERO_VALUE_NUMBER, ZERO_VALUE_AUTO, ZERO_VALUE_PERCENT, ZERO_VALUE_TEXT };

/* A parsed value. CHOICE: `number` is the index of the choice; CHOICE_OR_INTEGER: the integer, or
   `max` + 1 + the index. */
struct zero_value {
	enum zero_value_kind kind;
	uint64_t number;
	char *text; /* PATH and TEXT: owned; else NULL */
};

struct zero_settings {
	struct zero_value value[ZERO_OPTIONS];
	/* Where the value came from: "default", "ZERO_STAGE", "--zero-stage", "ZERO_RESOLVED",
	   "zero_open", "zero.yaml:12". Owned. */
	char *origin[ZERO_OPTIONS];
	/* The site limits or locks it, so that a configuration of DeepSpeed does not set it. */
	bool ruled[ZERO_OPTIONS];
};

extern const struct zero_option zero_option_table[ZERO_OPTIONS];

/* The option of that name, or NULL. `length` is the name's, so that "a=b" need not be cut. */
const struct zero_option *zero_option_find(const char *name, size_t length);
/*
 * Writes what to suggest for an unknown name: "did you mean stage?", or all names that may be set
 * in one of the places of `where` (bits ZERO_IN_...); these are flags if `where` is ZERO_IN_FLAG.
 */
void zero_option_near(const char *name, size_t length, unsigned where, char *text, size_t size);

/*
 * Parses a value. On error returns false and leaves *value as it was; *why, of `size` bytes, is
 * then a clause that names the value and what is allowed: "'40MB' is not a size: a whole number
 * with K, M, G or T, such as 40M". Else overwrites *value without freeing what it held.
 */
bool zero_option_parse(const struct zero_option *option, const char *text, struct zero_value *value,
		       char *why, size_t size);
/*
 * Formats a value as text that parses back to it, sizes in bytes. Returns the length as snprintf
 * does.
 */
int zero_value_format(const struct zero_option *option, const struct zero_value *value, char *text,
		      size_t size);
/* The same, malloc'ed; NULL: no memory. */
char *zero_value_text(const struct zero_option *option, const struct zero_value *value);
void zero_value_clear(struct zero_value *value);

/* Sets all options to their compiled defaults. False: no memory, and nothing to clear. */
bool zero_settings_init(struct zero_settings *settings);
void zero_settings_clear(struct zero_settings *settings);
/*
 * Sets one option from text. On error returns false and changes nothing; *why is then a whole
 * sentence that begins with the origin.
 */
bool zero_settings_set(struct zero_settings *settings, enum zero_option_id id, const char *text,
		       const char *origin, char *why, size_t size);
/*
 * Sets options from "name=value name=value", the format of ZERO_RESOLVED: options with
 * ZERO_IN_RESOLVED, each at most once. In values, '%' and two hex digits are a byte (%20 a space,
 * %25 a percent sign); a '%' that ends a value stands for itself. On error returns false and
 * changes nothing.
 */
bool zero_settings_parse(struct zero_settings *settings, const char *text, const char *origin,
			 char *why, size_t size);
/* Sets options that are unset or at their defaults from ZERO_* in the environment. Of others the
   variables are not read, and unknown ZERO_ names are ignored. */
bool zero_settings_environment(struct zero_settings *settings, char *why, size_t size);
/* Where the value came from before it was passed on in ZERO_RESOLVED: "--zero-stage". malloc'ed;
   NULL: no memory. */
char *zero_settings_origin(const struct zero_settings *settings, enum zero_option_id id);
/*
 * Formats the text that zero_settings_parse reads: all options with ZERO_IN_RESOLVED that are set,
 * with 0 for unknown facts, and their origins. malloc'ed; NULL: no memory.
 */
char *zero_settings_format(const struct zero_settings *settings);
/* Whether a launcher measured the memory: `budget` and vram_source are then valid, even if 0. */
bool zero_settings_budget_known(const struct zero_settings *settings);
/* Bytes above which a parameter is streamed, for stream_threshold=auto. */
uint64_t zero_auto_stream_threshold(uint64_t chunk, uint64_t budget);
/* Sets the sizes that are `auto` to what they stand for at the budget. */
void zero_settings_set_sizes(struct zero_settings *settings);
/* Prints help for the options with a flag, in the style of Slurm's --help. */
void zero_options_help(FILE *out);

#endif
