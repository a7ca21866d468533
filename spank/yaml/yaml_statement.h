/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the single statements of a section: a default, a limit, a lock, a variable. */
#ifndef ZERO_YAML_STATEMENT_H
#define ZERO_YAML_STATEMENT_H

#include "site_config_private.h"
#include "yaml_reader.h"

/* The state of reading one file. */
struct zero_config_parser {
	struct zero_config *config;
	size_t section;         /* the section that statements are added to */
	enum section_kind kind; /* of the enclosing map of sections; TOP outside of them */
	size_t variables;       /* how many there are in all sections */
	bool has_version;
};

/* Handlers for the keys of `defaults`, `limits` and `env`, and the entries of `locked`; `context`
   is the parser. */
bool zero_statement_default(struct zero_reader *reader, const struct zero_key *key, void *context);
bool zero_statement_limit(struct zero_reader *reader, const struct zero_key *key, void *context);
bool zero_statement_variable(struct zero_reader *reader, const struct zero_key *key, void *context);
bool zero_statement_lock(struct zero_reader *reader, const struct zero_key *key, void *context);

void zero_statement_clear(struct statement *statement);

#endif
