/* SPDX-License-Identifier: Apache-2.0 */
/* Registers the flags with Slurm, a row of the table of options each, and keeps what they say. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"
#include "reexec.h"
#include "user_request.h"

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

/* Returns the text of the flag, such as "--zero-stage"; NULL for an option that has none. */
static const char *flag_text(int flag)
{
	if (flag == SWITCH_ON)
		return "--zero";
	if (flag == SWITCH_OFF)
		return "--no-zero";
	return zero_option_table[flag].flag;
}

/* Returns the variable in which Slurm passes the value of a flag to the steps of a job. */
static struct user_variable_name job_variable(int flag)
{
	struct user_variable_name name;

	snprintf(name.text, sizeof name.text, "SLURM_SPANK__SLURM_SPANK_OPTION_zero_%s",
		 flag_text(flag) + 2);
	for (char *c = name.text; *c; c++)
		*c = *c == '-' ? '_' : *c;
	return name;
}

bool user_flag_find(const char *text, struct user_variable_name *variable, bool *has_value)
{
	int flag = 0;

	while (flag < FLAGS && (!flag_text(flag) || strcmp(flag_text(flag), text) != 0))
		flag++;
	if (flag == FLAGS)
		return false;
	*variable = job_variable(flag);
	*has_value = flag < SWITCH_ON;
	return true;
}

/* Returns whether the job around this srun was given the flag. */
static bool is_in_job(int flag)
{
	return getenv(job_variable(flag).text) != NULL;
}

/* Slurm repeats the flags of the job for each component of a heterogeneous step. */
static bool is_repeated(const struct flag_state *given, int flag, const char *text)
{
	return !given->text || (given->inherited && strcmp(given->text, text) == 0 &&
				!command_line_has(flag_text(flag)));
}

/* Checks a value where nothing else will, so that scrontab refuses its line. */
static bool check_crontab(int flag, const char *text)
{
	struct zero_settings settings = {0};
	char why[512];
	bool ok = flag >= SWITCH_ON ||
		  zero_settings_set(&settings, (enum zero_option_id)flag, text,
				    zero_option_table[flag].flag, why, sizeof why);

	zero_settings_clear(&settings);
	if (!ok) {
		zero_clean(why);
		slurm_error(PLUGIN_NAME ": %s", why);
	}
	return ok;
}

static int store_flag(int flag, const char *text, int remote)
{
	struct flag_state *given;

	if (flag < 0 || flag >= FLAGS)
		return ESPANK_ERROR;
	text = text && flag < SWITCH_ON ? text : "";
	if (!remote && strcmp(program_invocation_short_name, "scrontab") == 0 &&
	    !check_crontab(flag, text))
		return ESPANK_ERROR;
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
		.name = (char *)flag_text(flag) + 2,
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

bool user_choice(enum user_choice *choice, char *why, size_t size)
{
	const char *enabled = user_variable_text("ZERO_ENABLED");

	*choice = choice_by_flags(false);
	if (*choice != ZERO_UNSPECIFIED)
		return true;
	if (!enabled) {
		*choice = choice_by_flags(true);
		return true;
	}
	*choice = strcmp(enabled, "yes") == 0 ? ZERO_REQUESTED : ZERO_DECLINED;
	if (*choice == ZERO_REQUESTED || strcmp(enabled, "no") == 0)
		return true;
	return zero_refuse(why, size,
			   "ZERO_ENABLED: %s is not one of yes, no; if the variable is another "
			   "program's, override it with --zero or --no-zero",
			   zero_quote(enabled, strlen(enabled)).text);
}

bool user_flags(bool inherited, struct zero_settings *settings, char *why, size_t size)
{
	if (no_memory)
		return zero_refuse(why, size, "out of memory for the flags");
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (flags[i].text && flags[i].inherited == inherited && !settings->origin[i] &&
		    !zero_settings_set(settings, (enum zero_option_id)i, flags[i].text,
				       zero_option_table[i].flag, why, size))
			return false;
	}
	return true;
}
