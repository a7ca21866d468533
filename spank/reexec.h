/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executes srun once more with other environment variables, which is the only way to change those
 * that it reads before any plugin sees its flags. Its process number, stdin, terminal and signals
 * stay the same.
 */
#ifndef ZERO_REEXEC_H
#define ZERO_REEXEC_H

#include <stdbool.h>
#include <stddef.h>

/* Saves a copy of the environment, before srun adds to it. Returns false without memory. */
bool reexec_save_environment(void);
/* Returns whether this srun was executed by reexec_srun. */
bool reexec_is_second(void);

struct reexec_variable {
	const char *name;
	const char *value; /* NULL: the variable is removed */
};

/* Executes srun with the saved environment, changed by these variables. Returns on error only, with
   errno set. */
void reexec_srun(const struct reexec_variable *variables, size_t count);

#endif
