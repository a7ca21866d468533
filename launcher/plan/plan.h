/* SPDX-License-Identifier: Apache-2.0 */
/* zerorun reads the command line into a request, makes a plan for it, and prints or launches it. */
#ifndef ZERORUN_PLAN_H
#define ZERORUN_PLAN_H

#include "launcher/config/show_config.h"
#include "launcher/text.h"

/* What the command line asks for. Paths are not owned; those that were not given are NULL. */
struct request {
	struct zero_settings settings; /* completed with defaults after all flags are read */
	struct strings launcher_args;
	char **program;        /* NULL-terminated tail of argv; not owned */
	unsigned tasks, nodes; /* 0: not given */
	const char *model;     /* --plan prints the memory that a rank needs for it */
	bool slurm, label, plan;
	const char *inspect;             /* a checkpoint, or a folder of checkpoints */
	unsigned restarts;               /* of a job that fails; 0: none */
	unsigned spare_nodes, min_ranks; /* after the loss of nodes; 0: not given */
	struct config_query config;
	bool answered; /* --help or --version was printed: there is nothing else to do */
};

/* What will be run. */
struct plan {
	char *path; /* of mpirun or srun */
	struct strings argv;
	struct strings environment; /* "NAME=value", added to zerorun's own */
	char *preload;              /* the ranks' LD_PRELOAD, or NULL */
	char *no_preload;           /* why there is none, or NULL */
	size_t program;             /* where the ranks' program begins in argv */
	unsigned mpirun_version;    /* major version of Open MPI; 0 with srun */
	bool is_srun;
	bool own_run;       /* nobody else knows its ZERO_RUN */
	bool has_plugin;    /* srun knows the zero flags, and the plugin does the rest */
	bool unset_preload; /* take LD_PRELOAD out of zerorun's own environment */
};

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* 0, or the exit status after an error. Adds the fact `tasks` to the request's settings. */
int plan_make(struct plan *plan, struct request *request);
void plan_clear(struct plan *plan);

/* ---- find.c: what is installed on this machine, and how it is run ---------------------------- */

/* The path of a program, as execvp finds it; malloc'ed. NULL, and *status 126 or 127, if none. */
char *find_program(const char *name, int *status);
/* Runs argv[0], a path, without input and to its end. Returns what it printed, malloc'ed; *status
   is what a shell exits with. With `quiet`, its stderr is discarded. */
char *run_program(char *const *argv, bool quiet, int *status);
/* The major version of an Open MPI mpirun; 0, after an error, if the program is not Open MPI's. */
unsigned find_mpirun_version(const char *path);
/* Whether Slurm's plugin has given srun the zero flags. */
bool find_plugin(const char *srun);
/* The libzero.so that belongs to this zerorun; malloc'ed, NULL if there is none. */
char *find_library(void);
/* The folder of the package slurm_zero that was built with that library, malloc'ed; NULL if there
   is none that PYTHONPATH can hold. */
char *find_python(void);

/* ---- script.c -------------------------------------------------------------------------------- */

/* Prints the options as comments of a shell script. */
void plan_print_options(FILE *out, const struct zero_settings *settings);
/* Prints text as one word of a shell. */
void print_quoted(FILE *out, const char *text);
/* Prints shell commands that do what the plan says. */
void plan_print_script(FILE *out, const struct plan *plan);

/* ---- show.c ---------------------------------------------------------------------------------- */

/*
 * --plan: prints a shell script that does what the plan says; its comments have the options, what
 * the nodes of the allocation report, and the memory that a rank needs for the model. Returns 0, or
 * the exit status after an error.
 */
int show_plan(FILE *out, const struct plan *plan, struct request *request);

#endif
