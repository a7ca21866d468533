/* SPDX-License-Identifier: Apache-2.0 */
/* What the user set by flags, and whether flags or variables turn zero on. */
#ifndef ZERO_USER_OPTIONS_H
#define ZERO_USER_OPTIONS_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/options.h"

/* Registers every flag of the options table, --zero and --no-zero. */
spank_err_t user_options_register(spank_t spank);

struct user_variable_name {
	char text[160];
};

/* Finds the variable in which Slurm passes a flag, such as "--zero-stage", to the sruns of a job, and
   whether the flag has a value. Returns false if there is no such flag. */
bool user_flag_find(const char *text, struct user_variable_name *variable, bool *has_value);

/* Returns the value of a variable; NULL if it is unset, or has the value that it had when sbatch or
   salloc submitted the job around this command: what it said is then among what the job was told. */
const char *user_variable_text(const char *name);
/* In sbatch and salloc: stores the value of the variable for the function above, or stores none. */
void user_variable_is_seen(const char *name, bool is);

enum user_choice { ZERO_UNSPECIFIED, ZERO_REQUESTED, ZERO_DECLINED };

/* Finds whether the command's flags, else ZERO_ENABLED, else the flags of the job turn zero on or
   off. Returns false with a sentence in *why if ZERO_ENABLED is neither yes nor no. */
bool user_choice(enum user_choice *choice, char *why, size_t size);
/*
 * These set the options that are still unset, whose origin is NULL, from flags: those of the command
 * itself, or those that it inherits from its job. On error, they return false with a sentence in
 * *why.
 */
bool user_flags(bool inherited, struct zero_settings *settings, char *why, size_t size);

#endif
