/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that the user asked for. sbatch, salloc and srun read it from these, the first of which counts:
 *
 *	the command's own flags
 *	variables such as ZERO_STAGE, unless they are as they were when the job was submitted
 *	the file of --zero-config or ZERO_CONFIG
 *	within a job, what sbatch or salloc was told
 *
 * They pass it on as one variable, in the format of ZERO_RESOLVED: nodes read nothing else of it.
 */
#ifndef ZERO_USER_REQUEST_H
#define ZERO_USER_REQUEST_H

#include "user_options.h"
#include "yaml/site_config.h"

struct user_request {
	struct zero_settings settings; /* origins of options that the user did not set are NULL */
};

/* Reads what this command was told. On error, returns false with a sentence in *why; *request needs
   no clearing. */
bool user_request_make(struct user_request *request, char *why, size_t size);
/* Sets the variable for the steps of the job, or in srun for its own step. Returns false without
   memory. */
bool user_request_pass_on(const struct user_request *request, bool is_srun);
/* Returns the text that was passed on, or that a job around this srun passes on; NULL without one. */
const char *user_request_text(void);
/* Removes it. An srun leaves what its job was told. */
void user_request_forget(bool is_srun);

/* Copies a variable of the environment of a step, cut to `size`. Returns false if it is unset. */
typedef bool (*user_variable)(void *context, const char *name, char *text, size_t size);

/* On a node: reads what the client has passed on. On error, returns false as above. */
bool user_request_read(user_variable variable, void *context, struct user_request *request,
		       char *why, size_t size);
/* The variable that srun sets, which tasks need not have. */
#define USER_REQUEST_OF_STEP "SLURM_ZERO_STEP"

void user_request_clear(struct user_request *request);
/* Resolves all options. On error, returns false as above. */
bool user_request_resolve(const struct user_request *request, const struct zero_config *site,
			  const struct zero_where *where, struct zero_settings *resolved, char *why,
			  size_t size);

#endif
