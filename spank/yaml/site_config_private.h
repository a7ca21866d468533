/* SPDX-License-Identifier: Apache-2.0 */
/* A file in memory: site_config.c and yaml_statement.c fill it, resolve.c evaluates it. */
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

/* One value, bound, lock or variable. Line and column are those of its value, from 1. */
struct statement {
	enum statement_kind kind;
	enum zero_option_id id;  /* unset for VARIABLE */
	char *name;              /* VARIABLE only; owned */
	struct zero_value value; /* unset for LOCK */
	size_t line, column;
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
	size_t count, room;
};

struct zero_config {
	char *path; /* without control characters */
	enum zero_config_kind kind;
	char *telemetry;          /* "syslog" or a path; NULL: off */
	struct section *sections; /* in the order of the file; the first one is TOP */
	size_t count, room;
};

/* ---- limits.c -------------------------------------------------------------------------------- */

struct value_text {
	char text[72];
};
/* Formats a value for a message: sizes with K, M, G or T, texts in quotes. */
struct value_text zero_value_for_message(const struct zero_option *option,
					 const struct zero_value *value);

/*
 * Sets *order to -1, 0 or 1 as `a` is less than, equal to or greater than `b`. Returns false if the
 * two cannot be compared: one is auto, or they are a percentage and a size and vram_total is 0.
 */
bool zero_value_compare(const struct zero_value *a, const struct zero_value *b, uint64_t vram_total,
			int *order);

/* Returns whether `bound` is a MIN or MAX of that option and the value is beyond it. */
bool zero_statement_forbids(const struct statement *bound, enum zero_option_id id,
			    const struct zero_value *value, uint64_t vram_total);

#endif
