/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reexec.h"
#include "user_options.h"

/* The value of a flag for its callback: the id of an option, or one of these two. */
enum { SWITCH_ON = ZERO_OPTIONS, SWITCH_OFF, FLAGS };

/*
 * The state of a flag. Within a job, Slurm calls its callback first for the command line of sbatch
 * or salloc, then for that of srun.
 */
static struct flag_state {
	char *text;     /* the last value; "" for a switch; NULL if the flag was not given */
	bool inherited; /* the last value is from the job */
} flags[FLAGS];

static bool no_memory; /* Slurm ignores an error of a callback of an optional plugin */

/* Returns "zero-stage" for --zero-stage. */
static const char *flag_name(int flag)
{
	if (flag == SWITCH_ON)
		return "zero";
	if (flag == SWITCH_OFF)
		return "no-zero";
	return zero_option_table[flag].flag ? zero_option_table[flag].flag + 2 : NULL;
}

struct variable_name {
	char text[160];
};

/* Returns the variable in which Slurm passes the value of a flag to the steps of a job. */
static struct variable_name job_variable(int flag)
{
	struct variable_name name;

	snprintf(name.text, sizeof name.text, "SLURM_SPANK__SLURM_SPANK_OPTION_zero_%s",
		 flag_name(flag));
	for (char *c = name.text; *c; c++)
		*c = *c == '-' ? '_' : *c;
	return name;
}

/* Returns whether the job around this srun was given the flag. */
static bool is_in_job(int flag)
{
	return getenv(job_variable(flag).text) != NULL;
}

/* Returns whether an argument of the command may be this flag. Slurm accepts unique prefixes. */
static bool is_on_command_line(int flag)
{
	char **argument = reexec_arguments();

	for (; argument && *argument; argument++) {
		size_t length = strcspn(*argument, "=");

		if (length > 2 && strncmp(*argument, "--", 2) == 0 &&
		    strncmp(*argument + 2, flag_name(flag), length - 2) == 0)
			return true;
	}
	return false;
}

/* Slurm repeats the flags of the job for each component of a heterogeneous step. */
static bool is_repeated(const struct flag_state *given, int flag, const char *text)
{
	return !given->text ||
	       (given->inherited && strcmp(given->text, text) == 0 && !is_on_command_line(flag));
}

static int store_flag(int flag, const char *text, int remote)
{
	struct flag_state *given;

	if (flag < 0 || flag >= FLAGS)
		return ESPANK_ERROR;
	text = text && flag < SWITCH_ON ? text : "";
	given = &flags[flag];
	given->inherited = !remote && is_in_job(flag) && is_repeated(given, flag, text);
	free(given->text);
	given->text = strdup(text);
	no_memory = no_memory || !given->text;
	return ESPANK_SUCCESS;
}

/* Returns the text that zerorun --help has too, malloc'ed. */
static char *help_text(const struct zero_option *option)
{
	char *help;

	if (!option->default_text[0])
		return strdup(option->help);
	return asprintf(&help, "%s (%s)", option->help, option->default_text) < 0 ? NULL : help;
}

static spank_err_t register_flag(spank_t spank, int flag, const char *argument, char *help)
{
	struct spank_option option = {
		.name = (char *)flag_name(flag),
		.arginfo = (char *)argument,
		.usage = help,
		.has_arg = argument != NULL,
		.val = flag,
		.cb = store_flag,
	};

	return help ? spank_option_register(spank, &option) : ESPANK_ERROR;
}

spank_err_t user_options_register(spank_t spank)
{
	/* in the order of sbatch --help: that of the table, after the two switches */
	spank_err_t status =
		register_flag(spank, SWITCH_ON, NULL,
			      (char *)"turn zero on, with all options at the site's defaults");

	if (!status)
		status = register_flag(spank, SWITCH_OFF, NULL,
				       (char *)"turn zero off, whatever the job or the site has");
	for (int i = 0; i < ZERO_OPTIONS && !status; i++) {
		const struct zero_option *option = &zero_option_table[i];
		char *help;

		if (!(option->where & ZERO_IN_FLAG))
			continue;
		help = help_text(option);
		status = register_flag(spank, i, option->argument, help);
		free(help);
	}
	return status;
}

/* Evaluates either the flags of the job or those of the command itself. Among these --no-zero wins,
   so that it can be added to a command that has other flags. */
static enum user_choice choice_by_flags(bool inherited)
{
	enum user_choice choice = ZERO_UNSPECIFIED;

	for (int i = 0; i < SWITCH_OFF; i++) {
		if (flags[i].text && flags[i].inherited == inherited)
			choice = ZERO_REQUESTED;
	}
	return flags[SWITCH_OFF].text && flags[SWITCH_OFF].inherited == inherited ? ZERO_DECLINED
										  : choice;
}

bool user_choice(user_variable variable, void *context, enum user_choice *choice, char *why,
		 size_t size)
{
	char text[PATH_MAX + 1];

	*choice = choice_by_flags(false);
	if (*choice == ZERO_UNSPECIFIED)
		*choice = choice_by_flags(true);
	if (*choice != ZERO_UNSPECIFIED)
		return true;
	if (variable(context, "ZERO_ENABLED", text, sizeof text)) {
		*choice = strcmp(text, "yes") == 0 ? ZERO_REQUESTED : ZERO_DECLINED;
		if (*choice == ZERO_REQUESTED || strcmp(text, "no") == 0)
			return true;
		snprintf(why, size, "ZERO_ENABLED: '%.40s' is not one of yes, no", text);
		return false;
	}
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		/* variables without a flag, such as ZERO_ISA, do not turn zero on */
		if (option->flag && option->env &&
		    variable(context, option->env, text, sizeof text))
			*choice = ZERO_REQUESTED;
	}
	return true;
}

bool user_settings(user_variable variable, void *context, struct zero_settings *settings, char *why,
		   size_t size)
{
	char text[PATH_MAX + 1]; /* longer than any option may be, so that a cut text is refused */

	*settings = (struct zero_settings){0};
	if (no_memory) {
		snprintf(why, size, "out of memory for the flags");
		return false;
	}
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];
		const char *value = flags[i].text, *origin = option->flag;

		/* after --export=NONE the batch step gets no other sign of the flag */
		if (!value && option->flag &&
		    variable(context, job_variable(i).text, text, sizeof text))
			value = text;
		if (!value && option->env && variable(context, option->env, text, sizeof text)) {
			value = text;
			origin = option->env;
		}
		if (value && !zero_settings_set(settings, (enum zero_option_id)i, value, origin,
						why, size)) {
			zero_settings_clear(settings);
			return false;
		}
	}
	return true;
}
