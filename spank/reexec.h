/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What srun was started with, which SPANK does not show while flags are read. Executing srun once
 * more with other environment variables is the only way to change those that it reads before any
 * plugin sees its flags. Its process number, stdin, terminal and signals stay the same.
 */
#ifndef ZERO_REEXEC_H
#define ZERO_REEXEC_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the NULL-terminated arguments of this command, which are read once and never freed; NULL
   if they cannot be read. */
char **command_line(void);
/* Returns whether one of all arguments, the program's too, is the flag, or an unambiguous prefix of
   it as Slurm accepts them, with or without a value. */
bool command_line_has(const char *flag);
/* Returns whether the argument is the flag as above. */
bool argument_is(const char *argument, const char *flag);

/* Saves a copy of the environment, before srun adds to it. Returns false without memory. */
bool reexec_save_environment(void);
/* Returns whether this srun was executed by reexec_srun. */
bool reexec_is_second(void);

struct reexec_variable {
	const char *name;
	const char *value; /* NULL: the variable is removed */
};

/* Executes srun with the saved environment, changed by these variables. Returns on error only, with
   errno set; the environment is changed then. */
void reexec_srun(const struct reexec_variable *variables, size_t count);

#endif
