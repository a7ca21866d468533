/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zerorun in three steps: main.c reads the command line into a request, plan.c works out what would
 * be run, launch.c makes it happen. find.c knows what is installed on this machine.
 */
#ifndef ZERORUN_PLAN_H
#define ZERORUN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "options.h"

/* Exit statuses of zerorun's own, as shells use them. */
enum {
	EXIT_USAGE = 2,
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NOT_FOUND = 127,
};

/* A list of owned strings; `item` is NULL or ends with a NULL. */
struct strings {
	char **item;
	size_t count;
};

/* What the command line asks for. */
struct request {
	struct zero_settings settings;
	struct strings launcher_args;
	char **program;        /* NULL-terminated tail of argv; not owned */
	unsigned tasks, nodes; /* 0: not said */
	bool slurm, label, plan;
	bool answered; /* --help or --version: there is nothing else to do */
};

/* What will be run. */
struct plan {
	char *path; /* of mpirun or srun */
	struct strings argv;
	struct strings environment; /* "NAME=value", added to zerorun's own */
	char *preload;              /* the ranks' LD_PRELOAD, or NULL */
	char *no_preload;           /* why there is none, or NULL */
	bool is_srun;
	bool unset_preload; /* take LD_PRELOAD out of zerorun's own environment */
};

/* Prints "zerorun: ..." as a line on stderr. */
__attribute__((format(printf, 1, 2))) void complain(const char *format, ...);
/* As asprintf, but ends zerorun if there is no memory: nothing is running yet that could suffer. */
__attribute__((format(printf, 1, 2))) char *text_of(const char *format, ...);
/* Appends; the list owns `string` from then on. */
void strings_add(struct strings *strings, char *string);
void strings_clear(struct strings *strings);

/* find.c */

/* The path of a program, as execvp finds it; malloc'ed. NULL, and *status 126 or 127, if none. */
char *find_program(const char *name, int *status);
/* The major version of an Open MPI mpirun; 0 if it is another's, after a complaint. */
unsigned find_mpirun_version(const char *path);
/* The libzero.so that belongs to this zerorun; malloc'ed, NULL if there is none. */
char *find_library(void);

/* plan.c */

/* 0, or the exit status after a complaint. The settings of the request gain the fact `tasks`. */
int plan_make(struct plan *plan, struct request *request);
/* As a shell script that does what the plan says, with the options in comments. */
void plan_print(FILE *out, const struct plan *plan, const struct zero_settings *settings);
void plan_clear(struct plan *plan);

/* launch.c */

/* Becomes mpirun or srun. Returns only if that fails: the exit status, after a complaint. */
int launch(struct plan *plan);

#endif
