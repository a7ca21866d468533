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
	const char *inspect;       /* a checkpoint, or a folder of checkpoints */
	unsigned restarts;         /* of a job that fails; 0: none */
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
	bool has_plugin;    /* srun knows the zero flags, and the plugin does the rest */
	bool unset_preload; /* take LD_PRELOAD out of zerorun's own environment */
};

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* 0, or the exit status after an error. Adds the fact `tasks` to the request's settings. */
int plan_make(struct plan *plan, struct request *request);
void plan_clear(struct plan *plan);

/* ---- script.c -------------------------------------------------------------------------------- */

/* Prints the options as comments of a shell script. */
void plan_print_options(FILE *out, const struct zero_settings *settings);
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
