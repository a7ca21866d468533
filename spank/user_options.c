/* SPDX-License-Identifier: Apache-2.0 */
/* What the user said, by flags and by variables. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reexec.h"
#include "plugin.h"

/* The flags' values for the callback: an option's place in the table, and these two. */
enum { SWITCH_ON = ZERO_OPTIONS, SWITCH_OFF, FLAGS };

/*
 * What one flag was called with. Within a job, Slurm first calls it for what sbatch or salloc was
 * given, then for srun's own command line.
 */
static struct said_flag {
	char *text;     /* the last value; "" for a switch; NULL: not given */
	bool inherited; /* the last one came from the job */
} flags[FLAGS];

static bool no_memory; /* a callback's error return would be lost in an optional plugin */

/* "zero-stage" of "--zero-stage". */
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

/* Where Slurm keeps, in a job's environment, that the job was given the flag. */
static struct variable_name job_variable(int flag)
{
	struct variable_name name;

	snprintf(name.text, sizeof name.text, "SLURM_SPANK__SLURM_SPANK_OPTION_zero_%s",
		 flag_name(flag));
	for (char *c = name.text; *c; c++)
		*c = *c == '-' ? '_' : *c;
	return name;
}

/* Whether the job that this srun is in was given the flag. */
static bool is_in_job(int flag)
{
	return getenv(job_variable(flag).text) != NULL;
}

/* Whether a word of the command may be this flag, which Slurm lets people cut short. */
static bool is_on_command_line(int flag)
{
	char **argument = again_arguments();

	for (; argument && *argument; argument++) {
		size_t length = strcspn(*argument, "=");

		if (length > 2 && strncmp(*argument, "--", 2) == 0 &&
		    strncmp(*argument + 2, flag_name(flag), length - 2) == 0)
			return true;
	}
	return false;
}

/* For each part of a heterogeneous step, Slurm says again what the job was given. */
static bool is_repeated(const struct said_flag *given, int flag, const char *text)
{
	return !given->text ||
	       (given->inherited && strcmp(given->text, text) == 0 && !is_on_command_line(flag));
}

static int take_flag(int flag, const char *text, int remote)
{
	struct said_flag *given;

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

/* As zerorun --help has it. Slurm copies the text. */
static char *help_of(const struct zero_option *option)
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
		.cb = take_flag,
	};

	return help ? spank_option_register(spank, &option) : ESPANK_ERROR;
}

spank_err_t said_register(spank_t spank)
{
	spank_err_t status =
		register_flag(spank, SWITCH_ON, NULL,
			      (char *)"shard with zero, all options at the site's defaults");

	for (int i = 0; i < ZERO_OPTIONS && !status; i++) {
		const struct zero_option *option = &zero_option_table[i];
		char *help;

		if (!(option->where & ZERO_IN_FLAG))
			continue;
		help = help_of(option);
		status = register_flag(spank, i, option->argument, help);
		free(help);
	}
	return status ? status
		      : register_flag(spank, SWITCH_OFF, NULL,
				      (char *)"no zero, whatever the job or the site says");
}

/* Whether flags of the command line itself, or those of the job, turn zero on or off. At one place
   --no-zero wins: it is what one adds to a command for a run without. */
static enum said_switch flags_switch(bool inherited)
{
	enum said_switch wanted = SAID_NOTHING;

	for (int i = 0; i < SWITCH_OFF; i++) {
		if (flags[i].text && flags[i].inherited == inherited)
			wanted = SAID_ON;
	}
	return flags[SWITCH_OFF].text && flags[SWITCH_OFF].inherited == inherited ? SAID_OFF
										  : wanted;
}

bool said_switch(said_variable variable, void *context, enum said_switch *wanted, char *why,
		 size_t size)
{
	char text[PATH_MAX + 1];

	*wanted = flags_switch(false);
	if (*wanted == SAID_NOTHING)
		*wanted = flags_switch(true);
	if (*wanted != SAID_NOTHING)
		return true;
	if (variable(context, "ZERO_ENABLED", text, sizeof text)) {
		*wanted = strcmp(text, "yes") == 0 ? SAID_ON : SAID_OFF;
		if (*wanted == SAID_ON || strcmp(text, "no") == 0)
			return true;
		snprintf(why, size, "ZERO_ENABLED: '%.40s' is not one of yes, no", text);
		return false;
	}
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		/* ZERO_ISA is no word of Slurm's */
		if (option->flag && option->env &&
		    variable(context, option->env, text, sizeof text))
			*wanted = SAID_ON;
	}
	return true;
}

bool said_settings(said_variable variable, void *context, struct zero_settings *said, char *why,
		   size_t size)
{
	char text[PATH_MAX + 1]; /* more than any option takes: what is cut is refused */

	*said = (struct zero_settings){0};
	if (no_memory) {
		snprintf(why, size, "no memory for the flags");
		return false;
	}
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];
		bool ok = true;

		if (flags[i].text)
			ok = zero_settings_set(said, (enum zero_option_id)i, flags[i].text,
					       option->flag, why, size);
		else if (option->flag && variable(context, job_variable(i).text, text, sizeof text))
			/* after --export=NONE the batch step is not told otherwise */
			ok = zero_settings_set(said, (enum zero_option_id)i, text, option->flag,
					       why, size);
		else if (option->env && variable(context, option->env, text, sizeof text))
			ok = zero_settings_set(said, (enum zero_option_id)i, text, option->env, why,
					       size);
		if (!ok) {
			zero_settings_clear(said);
			return false;
		}
	}
	return true;
}
