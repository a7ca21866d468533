/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads zero.yaml, the site's file, and the file of a user's --zero-config, and resolves every
 * option from them and from what the user set by flags and environment. The plugin and zerorun
 * share this.
 *
 * The value of an option is the last of: compiled default, `defaults`, `gpus`, `partitions`,
 * `accounts`, `qos`, `nodes`, the user's file, environment, flag. Limits and locks of all sections
 * that apply bind together: the narrowest limit counts. A user's value beyond a limit is refused; a
 * site's or compiled default beyond a limit is clamped to it.
 */
#ifndef ZERO_CONFIG_H
#define ZERO_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/options.h"

/* A file in memory. */
struct zero_config;

enum zero_config_kind {
	ZERO_CONFIG_SITE, /* all keys; owned by root or the caller, writable by its owner alone */
	ZERO_CONFIG_USER, /* only `version` and `defaults` */
};

enum zero_enabled { ZERO_ENABLED_OFF, ZERO_ENABLED_OPT_IN, ZERO_ENABLED_ON };

/*
 * Reads and checks a whole file, with the current rights of the process. Free it with
 * zero_config_free. On error, returns NULL and sets *why to one sentence that starts with
 * "path:line:column: " or "path: ".
 */
struct zero_config *zero_config_read(const char *path, enum zero_config_kind kind, char *why,
				     size_t size);
void zero_config_free(struct zero_config *config);

/* The place that options are resolved for. Where a field is NULL or 0, it is not known yet, and no
   section of that kind applies. */
struct zero_where {
	const char *node;
	const char *partition;
	const char *account;
	const char *qos;
	const char *gpu;     /* model, such as "NVIDIA H100 80GB HBM3" */
	uint64_t vram_total; /* bytes, to compare a percentage with a size */
};

/* Sets the options that are unset, whose origins are NULL, from the file that the option `config`
   names, if it does. On error, returns false with a sentence in *why. */
bool zero_config_add_file(struct zero_settings *settings, char *why, size_t size);
/*
 * Returns the value of `enabled` by the last section that applies and has it; opt-in if none has,
 * or if `config` is NULL. *origin, unless `origin` is NULL, becomes "path:line" or "default" and
 * lives as long as the file.
 */
enum zero_enabled zero_config_enabled(const struct zero_config *config,
				      const struct zero_where *where, const char **origin);
/* Returns whether `enabled` is not off, or need not be in some place that `where` leaves open. */
bool zero_config_may_be_enabled(const struct zero_config *config, const struct zero_where *where);

/* Calls `each` for all texts that the file has as defaults of an option, of sections that apply or
   not. */
void zero_config_texts(const struct zero_config *site, enum zero_option_id id,
		       void (*each)(void *context, const char *text), void *context);

/* Returns where a line about each step goes: "syslog" or an absolute path; NULL: nowhere. */
const char *zero_config_telemetry(const struct zero_config *config);

/*
 * Resolves all options. `site` may be NULL. `user` has the user's values; its origins are NULL for
 * options that the user did not set. A locked option may be set to the value that it has anyway.
 * All of *resolved is overwritten, each option with its origin ("/etc/slurm/zero.yaml:12",
 * "default", "default, at most 16M by /etc/slurm/zero.yaml:20"). Returns false if the user's value
 * is not allowed, or if limits contradict each other: *why is then one sentence with the user's
 * flag, its value, the bound, and the line of the bound, and *resolved needs no clearing.
 */
bool zero_config_resolve(const struct zero_config *site, const struct zero_settings *user,
			 const struct zero_where *where, struct zero_settings *resolved, char *why,
			 size_t size);
/*
 * Sets an option of *resolved to a number that was computed after zero_config_resolve, such as a
 * threshold that was `auto`, and clamps it to the limits; the origin then names the limit. Returns
 * false without memory.
 */
bool zero_config_clamp(const struct zero_config *site, const struct zero_where *where,
		       enum zero_option_id id, uint64_t number, struct zero_settings *resolved);

/*
 * Calls `each` for every variable of the `env` maps that apply: once for each name, with the value
 * of the highest precedence. Names that the plugin or Slurm sets itself (LD_PRELOAD, RANK, ZERO_*,
 * SLURM_* and so on) are never among them. Stops and returns false when `each` returns false.
 */
typedef bool (*zero_config_variable)(void *context, const char *name, const char *value);
bool zero_config_env(const struct zero_config *site, const struct zero_where *where,
		     zero_config_variable each, void *context);

#endif
