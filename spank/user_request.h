/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that the user asked for. sbatch, salloc and srun read it from these, the first of which
 * counts:
 *
 *	the command's own flags
 *	variables such as ZERO_STAGE, unless they are as they were when the job was submitted
 *	the file of --zero-config or ZERO_CONFIG
 *	within a job, what sbatch or salloc was told
 *
 * They pass it on as one variable, in the format of ZERO_RESOLVED: nodes read nothing else of it.
 * The origins of options that the user did not set are NULL. On error, functions that take `why`
 * return false with a sentence there.
 */
#ifndef ZERO_USER_REQUEST_H
#define ZERO_USER_REQUEST_H

#include <slurm/spank.h>

#include "yaml/site_config.h"

/* The variables in which it is passed on: what sbatch or salloc was told, and what srun was told
   for its step, which tasks need not have. A name that starts with SLURM_ survives --export=NONE.
   */
#define USER_REQUEST_OF_JOB  "SLURM_ZERO_JOB"
#define USER_REQUEST_OF_STEP "SLURM_ZERO_STEP"

/* Reads what this command was told. *request needs no clearing after an error. */
bool user_request_make(struct zero_settings *request, char *why, size_t size);
/* Sets one of the variables above. Returns false without memory. */
bool user_request_pass_on(const struct zero_settings *request, const char *name);
/* Returns the text that was passed on, or that a job around this srun passes on; NULL without one.
   */
const char *user_request_text(void);
/* On a node: reads what the client has passed on. *request needs no clearing after an error. */
bool user_request_read(spank_t spank, struct zero_settings *request, char *why, size_t size);

/* Returns the value of a variable; NULL if it is unset, or has the value that it had when sbatch or
   salloc submitted the job around this command: what it said is then among what the job was told.
   */
const char *user_variable_text(const char *name);
/* In sbatch and salloc: stores the value of ZERO_ENABLED for the function above, and those of the
   options, or forgets these. */
void user_variables_are_seen(bool options);

/* ---- user_options.c: flags ------------------------------------------------------------------- */

/* Registers every flag of the options table, --zero and --no-zero. */
spank_err_t user_options_register(spank_t spank);

/* The name of a variable that is made from another name. */
struct user_variable_name {
	char text[160];
};

/* Finds the variable in which Slurm passes a flag, such as "--zero-stage", to the sruns of a job,
   and whether the flag has a value. Returns false if there is no such flag. */
bool user_flag_find(const char *text, struct user_variable_name *variable, bool *has_value);

enum user_choice { ZERO_UNSPECIFIED, ZERO_REQUESTED, ZERO_DECLINED };

/* Finds whether the command's flags, else ZERO_ENABLED, else the flags of the job turn zero on or
   off. Fails if ZERO_ENABLED is neither yes nor no. */
bool user_choice(enum user_choice *choice, char *why, size_t size);
/* Sets the options that are still unset, whose origin is NULL, from flags: those of the command
   itself, or those that it inherits from its job. */
bool user_flags(bool inherited, struct zero_settings *settings, char *why, size_t size);

#endif
