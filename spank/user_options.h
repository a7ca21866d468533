/* SPDX-License-Identifier: Apache-2.0 */
/* What the user set by flags and by variables. */
#ifndef ZERO_USER_OPTIONS_H
#define ZERO_USER_OPTIONS_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/options.h"

/* Registers every flag of the options table, --zero and --no-zero. */
spank_err_t user_options_register(spank_t spank);

/* Copies a variable of the user's environment, cut to `size`. Returns false if it is unset. */
typedef bool (*user_variable)(void *context, const char *name, char *text, size_t size);

enum user_choice { ZERO_UNSPECIFIED, ZERO_REQUESTED, ZERO_DECLINED };

/* Finds whether flags, or else variables, turn zero on or off. Returns false with a sentence in
   *why if ZERO_ENABLED is neither yes nor no. */
bool user_choice(user_variable variable, void *context, enum user_choice *choice, char *why,
		 size_t size);
/*
 * Collects the options that the user set; a flag overrides its variable. The origin of all other
 * options is NULL. On error, returns false with a sentence in *why; *settings needs no clearing.
 */
bool user_settings(user_variable variable, void *context, struct zero_settings *settings, char *why,
		   size_t size);

#endif
