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

#include "core/options.h"

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

/* What is asked about a zero.yaml; not owned. */
struct asked_config {
	const char *check; /* the file of --check-config, or NULL */
	const char *show;  /* the file of --show-config, or NULL */
	const char *node, *partition, *gpu;
};

/* What the command line asks for. */
struct request {
	struct zero_settings settings; /* the defaults come in once all is read */
	struct strings launcher_args;
	char **program;        /* NULL-terminated tail of argv; not owned */
	unsigned tasks, nodes; /* 0: not said */
	const char *model;     /* whose bytes --plan is to say; NULL: none */
	bool slurm, label, plan;
	const char *inspect; /* a checkpoint, or a folder of them; NULL: none */
	unsigned restarts;   /* of a job that fails; 0: none */
	struct asked_config config;
	bool answered; /* --help or --version: there is nothing else to do */
};

/* What will be run. */
struct plan {
	char *path; /* of mpirun or srun */
	struct strings argv;
	struct strings environment; /* "NAME=value", added to zerorun's own */
	char *preload;              /* the ranks' LD_PRELOAD, or NULL */
	char *no_preload;           /* why there is none, or NULL */
	size_t program;             /* where the ranks' program begins in argv */
	bool is_srun;
	bool has_plugin;    /* srun knows the zero flags, and sees to the rest itself */
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
/*
 * Runs argv[0], a path, without input and to its end. 0 or an errno value; then *text is what it
 * printed (malloc'ed) and *status what a shell would exit with. `quiet`: its stderr goes nowhere.
 */
int run_program(char *const *argv, bool quiet, char **text, int *status);
/* The major version of an Open MPI mpirun; 0 if it is another's, after a complaint. */
unsigned find_mpirun_version(const char *path);
/* Whether Slurm's plugin has given srun the zero flags. */
bool find_plugin(const char *srun);
/* The libzero.so that belongs to this zerorun; malloc'ed, NULL if there is none. */
char *find_library(void);

/* plan.c */

/* 0, or the exit status after a complaint. The settings of the request gain the fact `tasks`. */
int plan_make(struct plan *plan, struct request *request);
/* The options, in a shell's comments. */
void plan_print_options(FILE *out, const struct zero_settings *settings);
/* The commands of a shell that do what the plan says. */
void plan_print_script(FILE *out, const struct plan *plan);
void plan_clear(struct plan *plan);
/* Text that must not end its line: control bytes become '?'. At least `width` wide. */
void print_in_line(FILE *out, const char *text, int width);
/* An option's value; malloc'ed. */
char *setting_text(const struct zero_settings *settings, int id);
/* An option, its value and where that came from, as a line of a table. */
void print_setting(FILE *out, const struct zero_settings *settings, int id);

/* show.c */

/*
 * --plan: prints a shell script that does what the plan says, and in its comments the options, what
 * the nodes of the allocation say, and what a rank will hold of the model. 0, or the exit status
 * after a complaint.
 */
int show_plan(FILE *out, const struct plan *plan, struct request *request);

/* config.c */

/* Reads the site's file and says whether it is fine. 0, or the exit status after a complaint. */
int config_check(FILE *out, const char *path);
/* What its options come to; `said` has a NULL origin where the user says nothing. */
int config_show(FILE *out, const struct asked_config *asked, const struct zero_settings *said);

/* inspect.c */

/* Says what is in a checkpoint, or in a folder of them, and verifies it. 0 if it is whole, else the
   exit status after complaints. */
int inspect(FILE *out, const char *path);

/* guard.c */

/* A process of its own that ends this one, once it is mpirun, if that hangs without ranks. */
void guard_begin(void);

/* launch.c */

/* Becomes mpirun or srun. Returns only if that fails: the exit status, after a complaint. */
int launch(struct plan *plan);

/* restart.c */

/* Runs mpirun or srun, again up to `limit` times if the job fails. The exit status of the last. */
int launch_restarting(struct plan *plan, unsigned limit);

#endif
