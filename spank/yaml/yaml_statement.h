/* SPDX-License-Identifier: Apache-2.0 */
/* The single statements of a section: each with its value and the checks of it. */
#ifndef ZERO_STATEMENT_H
#define ZERO_STATEMENT_H

#include "site_config_private.h"
#include "yaml_reader.h"

/* A file that is being read. */
struct zero_draft {
	struct zero_config *config;
	size_t section;         /* what is read belongs to this one */
	enum section_kind kind; /* of the map of sections around it */
	size_t variables;
	bool has_version;
};

/* One key of `defaults`, `limits` and `env`, one word of `locked`; `context` is the draft. */
bool zero_statement_default(struct zero_reader *reader, const struct zero_key *key, void *context);
bool zero_statement_limit(struct zero_reader *reader, const struct zero_key *key, void *context);
bool zero_statement_variable(struct zero_reader *reader, const struct zero_key *key, void *context);
bool zero_statement_lock(struct zero_reader *reader, const struct zero_key *key, void *context);

/* Whether the statements of the whole file, once it is read, contradict each other. */
bool zero_statements_check(struct zero_reader *reader, const struct zero_config *config);

void zero_statement_clear(struct statement *statement);

#endif
