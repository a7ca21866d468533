/* SPDX-License-Identifier: Apache-2.0 */
/* A file in memory: site_config.c fills it, resolve.c evaluates it. */
#ifndef ZERO_SITE_CONFIG_PRIVATE_H
#define ZERO_SITE_CONFIG_PRIVATE_H

#include "site_config.h"

enum { ZERO_CONFIG_VARIABLES = 1024 }; /* the most environment variables of all sections */

enum statement_kind {
	STATEMENT_DEFAULT,
	STATEMENT_MIN,
	STATEMENT_MAX,
	STATEMENT_LOCK,
	STATEMENT_VARIABLE,
};

/* One value, bound, lock or variable. */
struct statement {
	enum statement_kind kind;
	enum zero_option_id id;  /* unset for VARIABLE */
	char *name;              /* VARIABLE only; owned */
	struct zero_value value; /* unset for LOCK */
	size_t line;             /* of its value, from 1 */
};

/* In ascending precedence. */
enum section_kind {
	SECTION_TOP,
	SECTION_GPUS,
	SECTION_PARTITIONS,
	SECTION_ACCOUNTS,
	SECTION_QOS,
	SECTION_NODES,
	SECTION_KINDS,
};

/* The top level, or a section that applies where its pattern matches. Statements are in the order
   of the file. */
struct section {
	enum section_kind kind;
	char *pattern; /* owned; NULL for TOP */
	enum zero_enabled enabled;
	char *enabled_origin; /* "path:line"; NULL: the section has no key `enabled` */
	struct statement *statements;
	size_t count, capacity;
};

struct zero_config {
	char *path; /* without control characters */
	enum zero_config_kind kind;
	char *telemetry;          /* "syslog" or a path; NULL: off */
	struct section *sections; /* in the order of the file; the first one is TOP */
	size_t count, capacity;
};

/* ---- trusted_file.c -------------------------------------------------------------------------- */

/*
 * Returns the content of the file `path`, malloc'ed; messages call the file `name`. A trusted file
 * must be owned by root or by the caller, writable by its owner alone, and readable by all. On
 * error, returns NULL and sets *why to one sentence.
 */
char *zero_config_file_text(const char *path, const char *name, bool trusted, size_t *length,
			    char *why, size_t size);

/* ---- resolve.c ------------------------------------------------------------------------------- */

/* Checks a whole file for statements that contradict each other. On error, returns false with a
   sentence in *why. */
bool zero_config_check(const struct zero_config *config, char *why, size_t size);

/* Returns whether `bound` is a MIN or MAX of that option and the value is beyond it. A percentage
   and a size cannot be compared if vram_total is 0. */
bool zero_statement_forbids(const struct statement *bound, enum zero_option_id id,
			    const struct zero_value *value, uint64_t vram_total);

#endif
