/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "plugin.h"
#include "reexec.h"
#include "srun_env.h"

/* The variables for srun, unless the user set them. */
enum { MPI_TYPE, KILL_BAD_EXIT, WANTED };
static const struct reexec_variable wanted[WANTED] = {
	[MPI_TYPE] = {"SLURM_MPI_TYPE", "pmix"},
	[KILL_BAD_EXIT] = {"SLURM_KILL_BAD_EXIT", "1"},
};

/* The state when the command started, before srun adds its defaults. */
static struct {
	bool set;
	bool by_plugin; /* the job's decision lists it, and its value is still the plugin's */
} before[WANTED];
/* What srun_env_init took zero to be, and has changed the variables for. */
static enum { NO_GUESS, GUESSED_ON, GUESSED_OFF } guess;

static void note_variables(void)
{
	const char *decision = getenv(DECISION);

	for (size_t i = 0; i < WANTED; i++) {
		const char *value = getenv(wanted[i].name);

		before[i].set = value != NULL;
		before[i].by_plugin = value && strcmp(value, wanted[i].value) == 0 && decision &&
				      strstr(decision, wanted[i].name);
	}
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

/* ---- what can be known before flags are read ------------------------------------------------- */

struct search {
	char *folder; /* "" if no plugin of Slurm is loaded */
	bool found;
};

static int search_folder(struct dl_phdr_info *object, size_t size, void *context)
{
	/* srun has always loaded one of these by now, and all plugins are in one folder */
	static const char *const kinds[] = {"auth_", "hash_", "select_", "switch_"};
	struct search *search = context;
	const char *name = object->dlpi_name, *slash = strrchr(name, '/');
	char path[PATH_MAX + 16];

	(void)size;
	for (size_t i = 0; slash && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!zero_begins_with(slash + 1, kinds[i]))
			continue;
		snprintf(search->folder, PATH_MAX, "%.*s", (int)(slash - name), name);
		snprintf(path, sizeof path, "%s/mpi_pmix.so", search->folder);
		search->found = access(path, F_OK) == 0;
	}
	return search->found;
}

/* Returns whether mpi_pmix.so is missing from the folder of Slurm's other plugins, and sets
   `folder` to that folder. Returns false if the folder cannot be found. */
static bool lacks_pmix(char folder[PATH_MAX])
{
	struct search search = {.folder = folder};

	folder[0] = '\0';
	dl_iterate_phdr(search_folder, &search);
	return folder[0] && !search.found;
}

/*
 * Returns whether the first arguments have the flag. They end at the first that is neither a flag
 * nor the value of a short one: it is the program, or the value of a long flag such as --nodes.
 */
static bool begins_with_flag(const char *flag)
{
	static const char with_value[] = "ABCDFGJLMNSTWabcdeimnopqrtwx";
	char **argument = command_line();

	for (argument += argument && *argument; argument && *argument && **argument == '-';
	     argument++) {
		const char *letter = strpbrk(*argument + 1, with_value);

		if (argument_is(*argument, flag))
			return true;
		if ((*argument)[1] != '-' && letter && !letter[1] && argument[1])
			argument++;
	}
	return false;
}

static bool guess_on(void)
{
	const char *enabled = user_variable_text("ZERO_ENABLED");
	bool has = begins_with_flag("--zero");

	if (begins_with_flag("--no-zero"))
		return false;
	for (int i = 0; i < ZERO_OPTIONS && !has; i++)
		has = zero_option_table[i].flag && begins_with_flag(zero_option_table[i].flag);
	if (has || !enabled)
		return has || is_decision(DECISION_ON) || is_decision(DECISION_SITE);
	return strcmp(enabled, "yes") == 0;
}

void srun_env_init(void)
{
	char folder[PATH_MAX];

	note_variables();
	if (!reexec_save_environment())
		return;
	/* otherwise ps would name the process "exe" */
	if (reexec_is_second())
		prctl(PR_SET_NAME, program_invocation_short_name);
	if (lacks_pmix(folder)) {
		/* srun would fail with "Invalid MPI type" before it reads a flag */
		if (before[MPI_TYPE].by_plugin)
			unsetenv(wanted[MPI_TYPE].name);
		return;
	}
	if (reexec_is_second())
		return;
	guess = guess_on() ? GUESSED_ON : GUESSED_OFF;
	for (size_t i = 0; i < WANTED; i++) {
		if (guess == GUESSED_ON)
			setenv(wanted[i].name, wanted[i].value, 0);
		else if (before[i].by_plugin)
			unsetenv(wanted[i].name);
	}
}

/* ---- once flags are read --------------------------------------------------------------------- */

/* Finds the variables that are to be set, and the decision, which lists them after its word. */
static size_t find_variables(const char *word, struct reexec_variable set[WANTED],
			     char decision[128])
{
	size_t count = 0, length = zero_append(decision, 128, 0, "%s", word);

	for (size_t i = 0; i < WANTED; i++) {
		if (before[i].set && !before[i].by_plugin)
			continue;
		length = zero_append(decision, 128, length, "%c%s", count ? ',' : ':',
				     wanted[i].name);
		set[count++] = wanted[i];
	}
	return count;
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

	if (command_line_has("--mpi") || !lacks_pmix(folder))
		return;
	slurm_error(
		PLUGIN_NAME
		": this Slurm has no PMIx plugin (no mpi_pmix.so in %s), which the ranks need to "
		"find each other: install it, or give srun another --mpi",
		folder);
	exit(EXIT_FAILURE);
}

static void turn_on(enum zero_state state)
{
	const char *word = is_decision(DECISION_ON) ? DECISION_ON : DECISION_STEP;
	struct reexec_variable set[WANTED + 1];
	char decision[128], folder[PATH_MAX];
	bool is_unread = false; /* this srun has not read one of them */
	size_t count;

	count = find_variables(state == ZERO_ON_BY_SITE ? DECISION_SITE : word, set, decision);
	for (size_t i = 0; i < WANTED; i++)
		is_unread = is_unread || !before[i].set ||
			    (before[i].by_plugin && guess == GUESSED_OFF);
	if (state == ZERO_ON_BY_USER && (!before[MPI_TYPE].set || before[MPI_TYPE].by_plugin))
		require_pmix();
	set[count++] = (struct reexec_variable){DECISION, decision};
	if (is_unread && guess != GUESSED_ON && !reexec_is_second() && !lacks_pmix(folder))
		reexec_or_exit(set, count);
	setenv(DECISION, decision, 1);
}

static void turn_off(void)
{
	struct reexec_variable removed[WANTED];
	size_t count = 0;

	for (size_t i = 0; i < WANTED; i++) {
		if (before[i].by_plugin)
			removed[count++] = (struct reexec_variable){wanted[i].name, NULL};
	}
	/* srun has already read these variables */
	if (guess == GUESSED_ON || (count && guess != GUESSED_OFF))
		reexec_or_exit(removed, count);
	/* srun itself now has a SLURM_MPI_TYPE for slurmstepd in its environment */
	if (getenv(DECISION))
		setenv(DECISION, DECISION_OFF, 1);
}

/* Returns whether a component of a heterogeneous step may follow, after a colon. */
static bool has_components(void)
{
	char **argument = command_line();

	for (; argument && *argument && argument[1]; argument++) {
		if (strcmp(*argument, ":") == 0)
			return true;
	}
	return false;
}

void srun_env_set(enum zero_state state)
{
	if (state == ZERO_ON_BY_USER || state == ZERO_ON_BY_SITE)
		turn_on(state);
	/* another component, not read yet, may be on */
	else if (state == ZERO_OFF_BY_USER || !has_components())
		turn_off();
}

void job_env_set(enum zero_state state)
{
	struct reexec_variable set[WANTED];
	char decision[128] = DECISION_OFF;
	size_t count = 0;

	note_variables();
	if (state == ZERO_ON_BY_USER || state == ZERO_ON_BY_SITE) {
		/* sbatch and salloc load no plugins that would show whether there is PMIx */
		count = find_variables(state == ZERO_ON_BY_SITE ? DECISION_SITE : DECISION_ON, set,
				       decision);
		for (size_t i = 0; i < count; i++)
			setenv(set[i].name, set[i].value, 1);
	} else {
		for (size_t i = 0; i < WANTED; i++) {
			if (before[i].by_plugin)
				unsetenv(wanted[i].name);
		}
		/* the sruns of the job are told that the user turned it off */
		if (state == ZERO_NOT_ON && !getenv(DECISION))
			return;
	}
	setenv(DECISION, decision, 1);
}
