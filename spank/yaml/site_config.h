/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero.yaml, the admin's file, and the file of a user's --zero-config: reading them, and what comes
 * out once a user's own words are laid over them. The plugin and zerorun share it.
 *
 * Lowest first: compiled default, `defaults`, `gpus`, `partitions`, `nodes`, the user's file,
 * environment, flag. Limits and locks of every section that applies bind together: the narrowest
 * limit counts. What a user says beyond a limit is refused; a site's or compiled default beyond one
 * is held to it.
 */
#ifndef ZERO_CONFIG_H
#define ZERO_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/options.h"

/* A file that was read. */
struct zero_config;

enum zero_config_kind {
	ZERO_CONFIG_SITE, /* everything; root's or the reader's own, not writable by others */
	ZERO_CONFIG_USER, /* `version` and `defaults` alone */
};

enum zero_enabled { ZERO_ENABLED_OFF, ZERO_ENABLED_OPT_IN, ZERO_ENABLED_ON };

/*
 * Reads and checks the whole file, with the rights that the caller has at the moment. NULL on
 * error: *why is then one sentence that begins with "path:line:column: " or "path: ". Free it with
 * zero_config_free.
 */
struct zero_config *zero_config_read(const char *path, enum zero_config_kind kind, char *why,
				     size_t size);
void zero_config_free(struct zero_config *config);

/*
 * What the file says of `enabled` (opt-in if nothing or if there is no file); *origin, if `origin`
 * is not NULL, becomes "path:line" or "default" and lives as long as the file.
 */
enum zero_enabled zero_config_enabled(const struct zero_config *config, const char **origin);

/* Where an option is to hold. NULL or 0: not known yet, so that no section of that kind applies. */
struct zero_where {
	const char *node;
	const char *partition;
	const char *gpu;     /* model, such as "NVIDIA H100 80GB HBM3" */
	uint64_t vram_total; /* bytes, to compare a percentage with a size */
};

/*
 * Resolves all options. `site` and `user`, the user's own file, may be NULL here and below; `said`
 * holds what flags and environment say, its origin NULL where they say nothing. `resolved` is
 * filled without looking at what it held, each option with its origin ("/etc/slurm/zero.yaml:12",
 * "default", "default, at most 16777216 by /etc/slurm/zero.yaml:20"). False: *why is one sentence
 * that names what the user said and where, its value, the bound, and the line of the bound; nothing
 * is left to clear.
 */
bool zero_config_resolve(const struct zero_config *site, const struct zero_config *user,
			 const struct zero_settings *said, const struct zero_where *where,
			 struct zero_settings *resolved, char *why, size_t size);
/*
 * Holds a value that was computed after zero_config_resolve (a threshold that was `auto`) to the
 * limits: sets `resolved`'s value and, if it was held, its origin. False: no memory.
 */
bool zero_config_hold(const struct zero_config *site, const struct zero_where *where,
		      enum zero_option_id id, uint64_t number, struct zero_settings *resolved);

/*
 * The extra variables for tasks, each name once with the value of the most special section. What
 * the plugin or Slurm sets itself (LD_PRELOAD, RANK, ZERO_*, SLURM_* and so on) is not among them.
 */
typedef bool (*zero_config_variable)(void *context, const char *name, const char *value);
/* False as soon as `each` says false. */
bool zero_config_env(const struct zero_config *site, const struct zero_where *where,
		     zero_config_variable each, void *context);

#endif
