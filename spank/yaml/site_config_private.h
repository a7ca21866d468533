/* SPDX-License-Identifier: Apache-2.0 */
/* A file as it was read: what config.c and statement.c make and resolve.c looks at. */
#ifndef ZERO_CONFIG_PRIVATE_H
#define ZERO_CONFIG_PRIVATE_H

#include "site_config.h"

enum { ZERO_CONFIG_VARIABLES = 1024 }; /* at most, in all sections together */

enum statement_kind {
	STATEMENT_DEFAULT,
	STATEMENT_MIN,
	STATEMENT_MAX,
	STATEMENT_LOCK,
	STATEMENT_VARIABLE,
};

/* One thing that a file says; line and column are those of the value, from 1. */
struct statement {
	enum statement_kind kind;
	enum zero_option_id id;  /* but for VARIABLE */
	char *name;              /* VARIABLE: owned */
	struct zero_value value; /* but for LOCK; of a VARIABLE its text */
	size_t line, column;
};

/* In the order of their rank. */
enum section_kind { SECTION_TOP, SECTION_GPUS, SECTION_PARTITIONS, SECTION_NODES, SECTION_KINDS };

/* What holds everywhere, or where a pattern matches; statements in the file's order. */
struct section {
	enum section_kind kind;
	char *pattern; /* owned; NULL for TOP */
	struct statement *statements;
	size_t count, room;
};

struct zero_config {
	char *path; /* fit for messages */
	enum zero_config_kind kind;
	enum zero_enabled enabled;
	char *enabled_origin;     /* NULL: nothing was said */
	struct section *sections; /* in the file's order */
	size_t count, room;
};

struct shown {
	char text[72];
};
/* A value for a message: sizes as people write them, texts in quotes. */
struct shown zero_value_show(const struct zero_option *option, const struct zero_value *value);

/*
 * -1, 0 or 1 as `a` is less than, equal to or more than `b`. False if that cannot be said: auto, or
 * a percentage and a size while `vram_total` is 0.
 */
bool zero_value_compare(const struct zero_value *a, const struct zero_value *b, uint64_t vram_total,
			int *order);

/* Whether the statement is a MIN or MAX of that option which the value is beyond. */
bool zero_statement_forbids(const struct statement *bound, enum zero_option_id id,
			    const struct zero_value *value, uint64_t vram_total);

#endif
