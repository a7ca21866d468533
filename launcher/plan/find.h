/* SPDX-License-Identifier: Apache-2.0 */
/* What is installed on this machine, and how it is run. */
#ifndef ZERORUN_FIND_H
#define ZERORUN_FIND_H

#include <stdbool.h>

/* The path of a program, as execvp finds it; malloc'ed. NULL, and *status 126 or 127, if none. */
char *find_program(const char *name, int *status);
/*
 * Runs argv[0], a path, without input and to its end. Returns 0 or an errno value; with 0, *text is
 * what it printed (malloc'ed) and *status what a shell would exit with. With `quiet`, its stderr is
 * discarded.
 */
int run_program(char *const *argv, bool quiet, char **text, int *status);
/* The major version of an Open MPI mpirun; 0, after an error, if the program is not Open MPI's. */
unsigned find_mpirun_version(const char *path);
/* Whether Slurm's plugin has given srun the zero flags. */
bool find_plugin(const char *srun);
/* The libzero.so that belongs to this zerorun; malloc'ed, NULL if there is none. */
char *find_library(void);
/* The folder of the package slurm_zero that was built with that library, malloc'ed; NULL if there is
   none that PYTHONPATH can hold. */
char *find_python(void);

#endif
