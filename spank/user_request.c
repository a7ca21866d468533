/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "user_request.h"

/* What sbatch or salloc was told. A name that starts with SLURM_ survives --export=NONE. */
#define USER_REQUEST_OF_JOB "SLURM_ZERO_JOB"

/* The longest text of a variable that Linux passes to a program. */
enum { LONGEST = 128 << 10 };

/* Moves options of `from` that are unset in `to`, and clears the others. */
static void add_unset(struct zero_settings *to, struct zero_settings *from)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (to->origin[i] || !from->origin[i])
			continue;
		to->value[i] = from->value[i];
		to->origin[i] = from->origin[i];
		from->value[i] = (struct zero_value){.kind = ZERO_VALUE_NUMBER};
		from->origin[i] = NULL;
	}
	zero_settings_clear(from);
}

/* ---- variables ----------------------------------------------------------------------------- */

/* It may be a variable of another program, since names such as ZERO_STAGE are taken by others too. */
static bool set_variable(struct zero_settings *settings, int id, const char *text, char *why,
			 size_t size)
{
	const struct zero_option *option = &zero_option_table[id];

	if (zero_settings_set(settings, (enum zero_option_id)id, text, option->env, why, size))
		return true;
	if (option->flag)
		zero_append(why, size, strlen(why),
			    "; if the variable is another program's, override it with %s, or turn "
			    "zero off with --no-zero",
			    option->flag);
	else
		zero_append(why, size, strlen(why),
			    "; if the variable is another program's, unset it, or turn zero off "
			    "with --no-zero");
	return false;
}

static bool add_variables(struct zero_settings *settings, char *why, size_t size)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const char *name = zero_option_table[i].env;
		const char *text = name ? user_variable_text(name) : NULL;

		if (text && !settings->origin[i] && !set_variable(settings, i, text, why, size))
			return false;
	}
	return true;
}

/* ---- the user's file ----------------------------------------------------------------------- */

/* Appends the working folder to the sentence, for a path that is relative to it. */
static void append_folder(const char *path, char *why, size_t size)
{
	char folder[PATH_MAX];

	if (*path != '/' && getcwd(folder, sizeof folder))
		zero_append(why, size, strlen(why), " (in %s)", folder);
}

static bool add_file(struct zero_settings *settings, char *why, size_t size)
{
	const char *path = settings->value[ZERO_OPT_CONFIG].text;
	struct zero_settings of_file;
	struct zero_config *file;
	bool ok;

	if (!path || !*path)
		return true;
	file = zero_config_read(path, ZERO_CONFIG_USER, why, size);
	if (!file) {
		append_folder(path, why, size);
		return false;
	}
	ok = zero_config_settings(file, &of_file);
	zero_config_free(file);
	if (ok)
		add_unset(settings, &of_file);
	return ok || zero_refuse(why, size, "out of memory for %s", path);
}

/* ---- what was passed on -------------------------------------------------------------------- */

/* Returns whether users set the option. Others are facts, which nodes find out. */
static bool is_user_option(const struct zero_option *option)
{
	return (option->where & ~(unsigned)ZERO_IN_RESOLVED) != 0;
}

/* Parses a text of user_request_pass_on, and gives each option the origin that it had. */
static bool parse(const char *text, const char *name, struct zero_settings *settings, char *why,
		  size_t size)
{
	struct zero_settings parsed = {0};
	bool ok = true;

	*settings = (struct zero_settings){0};
	if (!zero_settings_parse(&parsed, text, name, why, size))
		return false;
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (!parsed.origin[i] || !is_user_option(&zero_option_table[i]))
			continue;
		settings->origin[i] = zero_settings_origin(&parsed, (enum zero_option_id)i);
		settings->value[i] = parsed.value[i];
		parsed.value[i] = (struct zero_value){.kind = ZERO_VALUE_NUMBER};
		ok = ok && settings->origin[i];
	}
	zero_settings_clear(&parsed);
	if (ok)
		return true;
	zero_settings_clear(settings);
	return zero_refuse(why, size, "out of memory for %s", name);
}

static bool add_passed_on(const char *text, const char *name, struct zero_settings *settings,
			  char *why, size_t size)
{
	struct zero_settings passed_on;

	if (!parse(text, name, &passed_on, why, size))
		return false;
	add_unset(settings, &passed_on);
	return true;
}

bool user_request_pass_on(const struct user_request *request, bool is_srun)
{
	char *text = zero_settings_format(&request->settings);
	const char *name = is_srun ? USER_REQUEST_OF_STEP : USER_REQUEST_OF_JOB;
	bool ok = text && setenv(name, text, 1) == 0;

	free(text);
	if (is_srun)
		return ok;
	unsetenv(USER_REQUEST_OF_STEP);
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (zero_option_table[i].env)
			user_variable_is_seen(zero_option_table[i].env, true);
	}
	return ok;
}

const char *user_request_text(void)
{
	const char *step = getenv(USER_REQUEST_OF_STEP);

	return step ? step : getenv(USER_REQUEST_OF_JOB);
}

void user_request_forget(bool is_srun)
{
	unsetenv(USER_REQUEST_OF_STEP);
	if (is_srun)
		return;
	unsetenv(USER_REQUEST_OF_JOB);
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (zero_option_table[i].env)
			user_variable_is_seen(zero_option_table[i].env, false);
	}
}

/* ---- all of it ----------------------------------------------------------------------------- */

bool user_request_make(struct user_request *request, char *why, size_t size)
{
	struct zero_settings *settings = &request->settings;
	const char *job = getenv(USER_REQUEST_OF_JOB);

	*settings = (struct zero_settings){0};
	if (user_flags(false, settings, why, size) && add_variables(settings, why, size) &&
	    add_file(settings, why, size) &&
	    (job ? add_passed_on(job, USER_REQUEST_OF_JOB, settings, why, size)
		 : user_flags(true, settings, why, size)))
		return true;
	zero_settings_clear(settings);
	return false;
}

/* Reads the variable of the step, or that of the job, which a batch script has. */
static bool read_passed_on(user_variable variable, void *context, struct zero_settings *settings,
			   char *why, size_t size)
{
	static const char *const names[] = {USER_REQUEST_OF_STEP, USER_REQUEST_OF_JOB};
	char *text = malloc(LONGEST);
	bool ok = true, found = false;

	if (!text)
		return zero_refuse(why, size, "out of memory for the options");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !found; i++) {
		found = variable(context, names[i], text, LONGEST);
		if (found)
			ok = add_passed_on(text, names[i], settings, why, size);
	}
	free(text);
	/* a client of another release passes on flags alone */
	return found ? ok : user_flags(false, settings, why, size);
}

static bool is_known_file(const struct zero_settings *settings, const char *path)
{
	const char *known = settings->value[ZERO_OPT_CONFIG].text;

	return !*path || (known && strcmp(known, path) == 0);
}

/* Variables that only the step has, by srun --export=ZERO_STAGE=1. They do not override flags. */
static bool add_step_variables(user_variable variable, void *context,
			       struct zero_settings *settings, char *why, size_t size)
{
	char text[PATH_MAX + 1], seen[PATH_MAX + 1], name[160];

	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		if (!option->env || (settings->origin[i] && settings->origin[i][0] == '-') ||
		    !variable(context, option->env, text, sizeof text))
			continue;
		snprintf(name, sizeof name, "SLURM_%s", option->env);
		if (variable(context, name, seen, sizeof seen) && strcmp(text, seen) == 0)
			continue;
		if (i == ZERO_OPT_CONFIG && !is_known_file(settings, text))
			return zero_refuse(why, size,
					   "%s: %s is not read here, but where the job or step is "
					   "submitted: set it there, not by --export",
					   option->env, zero_quote(text, strlen(text)).text);
		if (!set_variable(settings, i, text, why, size))
			return false;
	}
	return true;
}

bool user_request_read(user_variable variable, void *context, struct user_request *request,
		       char *why, size_t size)
{
	request->settings = (struct zero_settings){0};
	if (read_passed_on(variable, context, &request->settings, why, size) &&
	    add_step_variables(variable, context, &request->settings, why, size))
		return true;
	zero_settings_clear(&request->settings);
	return false;
}

void user_request_clear(struct user_request *request)
{
	zero_settings_clear(&request->settings);
}

bool user_request_resolve(const struct user_request *request, const struct zero_config *site,
			  const struct zero_where *where, struct zero_settings *resolved, char *why,
			  size_t size)
{
	return zero_config_resolve(site, NULL, &request->settings, where, resolved, why, size);
}
