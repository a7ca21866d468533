/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "command_line.h"
#include "core/options.h"
#include "plugin.h"
#include "reexec.h"
#include "srun_env.h"
#include "srun_pmix.h"
#include "user_options.h"

/* The variables for srun, unless the user set them. */
enum { MPI_TYPE, KILL_BAD_EXIT, WANTED };
static const struct reexec_variable wanted[WANTED] = {
	[MPI_TYPE] = {"SLURM_MPI_TYPE", "pmix"},
	[KILL_BAD_EXIT] = {"SLURM_KILL_BAD_EXIT", "1"},
};

/* The state when the command started, before srun adds its defaults. */
static bool was_set[WANTED], was_wanted[WANTED];
/* What srun_env_init took zero to be, and has changed the variables for. */
static enum { NO_GUESS, GUESSED_ON, GUESSED_OFF } guess;

static bool is_srun(void)
{
	return spank_context() == S_CTX_LOCAL;
}

/* Returns whether the job's decision lists the variable, and its value is still the plugin's. */
static bool is_set_by_plugin(const char *decision, size_t variable)
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

static bool is_decision(const char *word)
{
	const char *decision = getenv(DECISION);

	return decision && zero_begins_with(decision, word);
}

enum user_choice srun_env_job_choice(void)
{
	if (is_decision(DECISION_OFF))
		return ZERO_DECLINED;
	return is_decision(DECISION_ON) ? ZERO_REQUESTED : ZERO_UNSPECIFIED;
}

static bool has_zero_flag(void)
{
	bool has = command_line_has("--zero");

	for (int i = 0; i < ZERO_OPTIONS && !has; i++)
		has = zero_option_table[i].flag && command_line_has(zero_option_table[i].flag);
	return has;
}

static bool guess_on(void)
{
	const char *enabled = user_variable_text("ZERO_ENABLED");

	if (command_line_has("--no-zero"))
		return false;
	if (has_zero_flag())
		return true;
	return enabled ? strcmp(enabled, "yes") == 0
		       : is_decision(DECISION_ON) || is_decision(DECISION_SITE);
}

void srun_env_init(void)
{
	char folder[PATH_MAX];

	for (size_t i = 0; i < WANTED; i++) {
		const char *value = getenv(wanted[i].name);

		was_set[i] = value != NULL;
		was_wanted[i] = value && strcmp(value, wanted[i].value) == 0;
	}
	if (!is_srun() || !reexec_save_environment())
		return;
	/* otherwise ps would name the process "exe" */
	if (reexec_is_second())
		prctl(PR_SET_NAME, program_invocation_short_name);
	if (srun_lacks_pmix(folder)) {
		/* srun would fail with "Invalid MPI type" before it reads a flag */
		if (is_set_by_plugin(getenv(DECISION), MPI_TYPE))
			unsetenv(wanted[MPI_TYPE].name);
		return;
	}
	if (reexec_is_second())
		return;
	guess = guess_on() ? GUESSED_ON : GUESSED_OFF;
	for (size_t i = 0; i < WANTED; i++) {
		if (guess == GUESSED_ON)
			setenv(wanted[i].name, wanted[i].value, 0);
		else if (is_set_by_plugin(getenv(DECISION), i))
			unsetenv(wanted[i].name);
	}
}

static void reexec_or_exit(const struct reexec_variable *variables, size_t count)
{
	reexec_srun(variables, count);
	slurm_error(PLUGIN_NAME ": srun cannot be executed again (%s): with --zero, add --mpi=pmix "
				"--kill-on-bad-exit=1; without it, set SLURM_MPI_TYPE",
		    strerror(errno));
	exit(EXIT_FAILURE);
}

/* Without PMIx, tasks would not find each other. An --mpi of the user's is accepted as it is. */
static void require_pmix(void)
{
	char folder[PATH_MAX];

	if (command_line_has("--mpi") || !srun_lacks_pmix(folder))
		return;
	slurm_error(
		PLUGIN_NAME
		": this Slurm has no PMIx plugin (no mpi_pmix.so in %s), which the ranks need to "
		"find each other: install it, or give srun another --mpi",
		folder);
	exit(EXIT_FAILURE);
}

/* Returns the first word of the decision. */
static const char *decision_on(enum zero_state state)
{
	if (state == ZERO_ON_BY_SITE)
		return DECISION_SITE;
	return is_srun() && !is_decision(DECISION_ON) ? DECISION_STEP : DECISION_ON;
}

static void turn_on(enum zero_state state)
{
	const char *before = getenv(DECISION);
	struct reexec_variable set[WANTED + 1];
	char decision[128];
	bool is_unread = false; /* this srun has not read one of them */
	size_t count = 0;

	snprintf(decision, sizeof decision, "%s", decision_on(state));
	for (size_t i = 0; i < WANTED; i++) {
		size_t length = strlen(decision);

		if (was_set[i] && !is_set_by_plugin(before, i))
			continue;
		set[count++] = wanted[i];
		is_unread = is_unread || !was_set[i] || guess == GUESSED_OFF;
		snprintf(decision + length, sizeof decision - length, "%c%s",
			 count == 1 ? ':' : ',', wanted[i].name);
	}
	if (!is_srun()) {
		/* sbatch and salloc load no plugins that would show whether there is PMIx */
		for (size_t i = 0; i < count; i++)
			setenv(set[i].name, set[i].value, 1);
	} else {
		char folder[PATH_MAX];

		if (state == ZERO_ON_BY_USER &&
		    (!was_set[MPI_TYPE] || is_set_by_plugin(before, MPI_TYPE)))
			require_pmix();
		set[count++] = (struct reexec_variable){DECISION, decision};
		if (is_unread && guess != GUESSED_ON && !reexec_is_second() &&
		    !srun_lacks_pmix(folder))
			reexec_or_exit(set, count);
	}
	setenv(DECISION, decision, 1);
}

/* `declined`: by the user, which sbatch and salloc tell the sruns of the job. */
static void turn_off(bool declined)
{
	const char *before = getenv(DECISION);
	struct reexec_variable removed[WANTED];
	size_t count = 0;

	for (size_t i = 0; i < WANTED; i++) {
		if (was_set[i] && is_set_by_plugin(before, i))
			removed[count++] = (struct reexec_variable){wanted[i].name, NULL};
	}
	/* srun has already read these variables */
	if (is_srun() && (guess == GUESSED_ON || (count && guess != GUESSED_OFF)))
		reexec_or_exit(removed, count);
	/* srun itself now has a SLURM_MPI_TYPE for slurmstepd in its environment */
	for (size_t i = 0; i < count && !is_srun(); i++)
		unsetenv(removed[i].name);
	if (before || (declined && !is_srun()))
		setenv(DECISION, DECISION_OFF, 1);
}

void srun_env_set(enum zero_state state)
{
	switch (state) {
	case ZERO_ON_BY_USER:
	case ZERO_ON_BY_SITE:
		turn_on(state);
		break;
	case ZERO_OFF_BY_USER:
		turn_off(true);
		break;
	case ZERO_NOT_ON:
		/* another component of a heterogeneous step, not read yet, may be on */
		if (!command_line_has(":"))
			turn_off(false);
		break;
	}
}
