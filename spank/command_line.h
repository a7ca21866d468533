/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of sbatch, salloc or srun, which SPANK does not show while flags are read. */
#ifndef ZERO_COMMAND_LINE_H
#define ZERO_COMMAND_LINE_H

#include <stdbool.h>

/* Returns the NULL-terminated arguments of the command, which are read once and never freed; NULL
   if they cannot be read. */
char **command_line(void);
/*
 * Returns whether one of the command's own arguments is the flag, with or without a value, or is the
 * colon between components. Slurm accepts unique prefixes of flags, so that a prefix counts. Arguments
 * after the program's name are the program's. Where the program begins is a guess if a flag that is
 * unknown here, such as one of another plugin, is followed by an argument that is no flag.
 */
bool command_line_has(const char *flag);

#endif
