/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "reexec.h"
#include "core/options.h"
#include "plugin.h"
#include "srun_pmix.h"
#include "srun_env.h"

/* What srun is to read, as long as the user says nothing of it. */
enum { MPI_TYPE, KILL_BAD_EXIT, WANTED };
static const struct again_variable wanted[WANTED] = {
	[MPI_TYPE] = {"SLURM_MPI_TYPE", "pmix"},
	[KILL_BAD_EXIT] = {"SLURM_KILL_BAD_EXIT", "1"},
};

/* When the command began; srun adds defaults of its own later. */
static bool was_set[WANTED], was_wanted[WANTED];
static bool guessed; /* that zero is on, so that those which were not set are */

static bool is_srun(void)
{
	return spank_context() == S_CTX_LOCAL;
}

/* Whether the job's decision says that the plugin set this variable, and nobody else has since. */
static bool is_ours(const char *decision, size_t variable)
{
	const char *at = decision ? strchr(decision, ':') : NULL, *name = wanted[variable].name;
	size_t length = strlen(name);

	if (!was_wanted[variable])
		return false;
	while (at && *at) {
		at++;
		if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length]))
			return true;
		at = strchr(at, ',');
	}
	return false;
}

bool wireup_job_is_on(void)
{
	const char *decision = getenv(DECISION);

	return decision && zero_begins_with(decision, DECISION_ON);
}

static bool has_argument(bool (*is)(const char *argument))
{
	char **argument = again_arguments();

	for (; argument && *argument && strcmp(*argument, "--") != 0; argument++) {
		if (is(*argument))
			return true;
	}
	return false;
}

static bool is_no_zero(const char *argument)
{
	return strcmp(argument, "--no-zero") == 0;
}

static bool is_mpi(const char *argument)
{
	return zero_begins_with(argument, "--mpi");
}

static bool is_colon(const char *argument)
{
	return strcmp(argument, ":") == 0;
}

/* As far as can be told before srun has read where its own flags end. */
static bool is_zero_flag(const char *argument)
{
	if (strcmp(argument, "--zero") == 0)
		return true;
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const char *flag = zero_option_table[i].flag;
		char next = '\0';

		if (flag && zero_begins_with(argument, flag))
			next = argument[strlen(flag)];
		else
			continue;
		if (next == '=' || !next)
			return true;
	}
	return false;
}

static bool looks_on(void)
{
	bool on = wireup_job_is_on() || getenv("ZERO_ENABLED");

	for (int i = 0; i < ZERO_OPTIONS && !on; i++) {
		const struct zero_option *option = &zero_option_table[i];

		on = option->flag && option->env && getenv(option->env);
	}
	return (on || has_argument(is_zero_flag)) && !has_argument(is_no_zero);
}

void wireup_begin(void)
{
	char folder[PATH_MAX];

	for (size_t i = 0; i < WANTED; i++) {
		const char *value = getenv(wanted[i].name);

		was_set[i] = value != NULL;
		was_wanted[i] = value && strcmp(value, wanted[i].value) == 0;
	}
	if (!is_srun() || !again_note())
		return;
	/* it would be called "exe" by those who look for srun */
	if (again_is_second())
		prctl(PR_SET_NAME, program_invocation_short_name);
	if (pmix_is_missing(folder)) {
		/* told to offer it, srun would end before it reads a flag, with "Invalid MPI
		   type" */
		if (is_ours(getenv(DECISION), MPI_TYPE))
			unsetenv(wanted[MPI_TYPE].name);
		return;
	}
	if (again_is_second() || !looks_on())
		return;
	guessed = true;
	for (size_t i = 0; i < WANTED; i++)
		setenv(wanted[i].name, wanted[i].value, 0);
}

static void begin_again(const struct again_variable *variables, size_t count)
{
	again_begin(variables, count);
	slurm_error(PLUGIN_NAME ": srun cannot be executed again (%s): give it --mpi=pmix "
				"--kill-on-bad-exit=1 with --zero, or SLURM_MPI_TYPE without",
		    strerror(errno));
	exit(EXIT_FAILURE);
}

/* The tasks would find nobody. Whoever gives srun an --mpi knows what they do. */
static void refuse_without_pmix(void)
{
	char folder[PATH_MAX];

	if (has_argument(is_mpi) || !pmix_is_missing(folder))
		return;
	slurm_error(PLUGIN_NAME
		    ": this Slurm has no PMIx (no mpi_pmix.so in %s), by which the ranks find "
		    "each other: install Slurm's PMIx plugin, or give srun another --mpi",
		    folder);
	exit(EXIT_FAILURE);
}

/* The decision's first word. */
static const char *decision_on(enum wireup_zero zero)
{
	if (zero == WIREUP_SITE)
		return DECISION_SITE;
	return is_srun() && !wireup_job_is_on() ? DECISION_STEP : DECISION_ON;
}

static void turn_on(enum wireup_zero zero)
{
	const char *before = getenv(DECISION);
	struct again_variable set[WANTED + 1];
	char decision[128];
	bool is_unread = false; /* by this srun */
	size_t count = 0;

	snprintf(decision, sizeof decision, "%s", decision_on(zero));
	for (size_t i = 0; i < WANTED; i++) {
		size_t length = strlen(decision);

		if (was_set[i] && !is_ours(before, i))
			continue;
		set[count++] = wanted[i];
		is_unread = is_unread || !was_set[i];
		snprintf(decision + length, sizeof decision - length, "%c%s",
			 count == 1 ? ':' : ',', wanted[i].name);
	}
	if (!is_srun()) {
		/* nothing is loaded yet that would tell whether there is PMIx */
		for (size_t i = 0; i < count; i++)
			setenv(set[i].name, set[i].value, 1);
	} else {
		char folder[PATH_MAX];

		if (zero == WIREUP_ON && (!was_set[MPI_TYPE] || is_ours(before, MPI_TYPE)))
			refuse_without_pmix();
		set[count++] = (struct again_variable){DECISION, decision};
		if (is_unread && !guessed && !again_is_second() && !pmix_is_missing(folder))
			begin_again(set, count);
	}
	setenv(DECISION, decision, 1);
}

/* `again`: srun has read what it should not have. */
static void turn_off(bool again)
{
	const char *before = getenv(DECISION);
	struct again_variable taken[WANTED];
	size_t count = 0;

	for (size_t i = 0; i < WANTED; i++) {
		if (was_set[i] && is_ours(before, i))
			taken[count++] = (struct again_variable){wanted[i].name, NULL};
	}
	if (is_srun() && (again || count))
		begin_again(taken, count);
	for (size_t i = 0; i < count; i++)
		unsetenv(taken[i].name);
	if (before)
		setenv(DECISION, DECISION_OFF, 1);
}

void wireup(enum wireup_zero zero)
{
	switch (zero) {
	case WIREUP_ON:
	case WIREUP_SITE:
		turn_on(zero);
		break;
	case WIREUP_OFF:
		turn_off(guessed);
		break;
	case WIREUP_NONE:
		/* of a heterogeneous step, another part may be on, and has not been read yet */
		if (!has_argument(is_colon))
			turn_off(guessed);
		break;
	}
}
