/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step.h"
#include "user_request.h"

/* ---- variables ------------------------------------------------------------------------------- */

/* It may be a variable of another program, since names such as ZERO_STAGE are taken by others too.
   */
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

static struct user_variable_name seen_name(const char *name)
{
	struct user_variable_name seen;

	snprintf(seen.text, sizeof seen.text, "SLURM_%s", name);
	return seen;
}

const char *user_variable_text(const char *name)
{
	const char *value = getenv(name), *seen = getenv(seen_name(name).text);

	return value && seen && strcmp(value, seen) == 0 ? NULL : value;
}

static void see(const char *name, bool is_seen)
{
	const char *value = is_seen ? getenv(name) : NULL;

	if (value)
		setenv(seen_name(name).text, value, 1);
	else
		unsetenv(seen_name(name).text);
}

void user_variables_are_seen(bool options)
{
	see("ZERO_ENABLED", true);
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (zero_option_table[i].env)
			see(zero_option_table[i].env, options);
	}
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

/* ---- what was passed on ---------------------------------------------------------------------- */

/* Returns whether users set the option. Others are facts, which nodes find out. */
static bool is_user_option(const struct zero_option *option)
{
	return (option->where & ~(unsigned)ZERO_IN_RESOLVED) != 0;
}

/* Sets options that are unset from a text of user_request_pass_on, with the origins that they had.
   */
static bool add_passed_on(const char *text, const char *name, struct zero_settings *settings,
			  char *why, size_t size)
{
	struct zero_settings parsed = {0};
	bool ok = true;

	if (!zero_settings_parse(&parsed, text, name, why, size))
		return false;
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (settings->origin[i] || !parsed.origin[i] ||
		    !is_user_option(&zero_option_table[i]))
			continue;
		settings->origin[i] = zero_settings_origin(&parsed, (enum zero_option_id)i);
		settings->value[i] = parsed.value[i];
		parsed.value[i] = (struct zero_value){.kind = ZERO_VALUE_NUMBER};
		ok = ok && settings->origin[i];
	}
	zero_settings_clear(&parsed);
	return ok || zero_refuse(why, size, "out of memory for %s", name);
}

bool user_request_pass_on(const struct zero_settings *request, const char *name)
{
	char *text = zero_settings_format(request);
	bool ok = text && setenv(name, text, 1) == 0;

	free(text);
	return ok;
}

const char *user_request_text(void)
{
	const char *step = getenv(USER_REQUEST_OF_STEP);

	return step ? step : getenv(USER_REQUEST_OF_JOB);
}

/* ---- all of it ------------------------------------------------------------------------------- */

bool user_request_make(struct zero_settings *request, char *why, size_t size)
{
	const char *job = getenv(USER_REQUEST_OF_JOB);

	*request = (struct zero_settings){0};
	if (user_flags(false, request, why, size) && add_variables(request, why, size) &&
	    zero_config_add_file(request, why, size) &&
	    (job ? add_passed_on(job, USER_REQUEST_OF_JOB, request, why, size)
		 : user_flags(true, request, why, size)))
		return true;
	zero_settings_clear(request);
	return false;
}

/* Reads the variable of the step, or that of the job, which a batch script has. */
static bool read_passed_on(spank_t spank, struct zero_settings *settings, char *why, size_t size)
{
	static const char *const names[] = {USER_REQUEST_OF_STEP, USER_REQUEST_OF_JOB};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char *text = step_variable(spank, names[i]);
		bool ok = text && add_passed_on(text, names[i], settings, why, size);

		free(text);
		if (text)
			return ok;
	}
	/* a client of another release passes on flags alone */
	return user_flags(false, settings, why, size);
}

static bool is_known_file(const struct zero_settings *settings, const char *path)
{
	const char *known = settings->value[ZERO_OPT_CONFIG].text;

	return !*path || (known && strcmp(known, path) == 0);
}

/* Copies a variable of the step, cut to `size`. Returns false if it is unset. */
static bool read_variable(spank_t spank, const char *name, char *text, size_t size)
{
	spank_err_t status = spank_getenv(spank, name, text, (int)size);

	return status == ESPANK_SUCCESS || status == ESPANK_NOSPACE;
}

/* Variables that only the step has, by srun --export=ZERO_STAGE=1. They do not override flags. */
static bool add_step_variables(spank_t spank, struct zero_settings *settings, char *why,
			       size_t size)
{
	char text[PATH_MAX + 1], seen[PATH_MAX + 1];

	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		if (!option->env || (settings->origin[i] && settings->origin[i][0] == '-') ||
		    !read_variable(spank, option->env, text, sizeof text))
			continue;
		if (read_variable(spank, seen_name(option->env).text, seen, sizeof seen) &&
		    strcmp(text, seen) == 0)
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

bool user_request_read(spank_t spank, struct zero_settings *request, char *why, size_t size)
{
	*request = (struct zero_settings){0};
	if (read_passed_on(spank, request, why, size) &&
	    add_step_variables(spank, request, why, size))
		return true;
	zero_settings_clear(request);
	return false;
}
