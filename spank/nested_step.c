/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step and its tasks inherit from a zero task around them: the environment of the srun that
 * started them, with variables that are that task's alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step_node.h"

/* Whether a variable is of the PMIx server's making. Those in PMIX_MCA_ are the user's settings. */
static bool is_pmix(const char *entry, size_t length)
{
	return entry[length] == '=' && strncmp(entry, "PMIX_", 5) == 0 &&
	       strncmp(entry, "PMIX_MCA_", 9) != 0;
}

void inherit_clean_step(spank_t spank)
{
	/* a server makes some twenty of them; each that goes moves all behind it, here as root */
	enum { MOST = 256 };
	char **variable = NULL, name[256];
	size_t at = 0, gone = 0;

	if (spank_getenv(spank, "ZERO_RESOLVED", name, sizeof name) == ESPANK_ENV_NOEXIST)
		return;
	while (gone < MOST && !spank_get_item(spank, S_JOB_ENV, &variable) && variable &&
	       variable[at]) {
		const char *entry = variable[at];
		size_t length = strcspn(entry, "=");

		if (length < sizeof name && is_pmix(entry, length)) {
			memcpy(name, entry, length);
			name[length] = '\0';
			spank_unsetenv(spank, name);
			gone++;
		}
		/* the next one has moved here, unless nothing was taken away */
		if (!spank_get_item(spank, S_JOB_ENV, &variable) && variable[at] == entry)
			at++;
	}
}

static bool is_set_to(spank_t spank, const char *name, const char *value, size_t length)
{
	char *text = node_variable(spank, name);
	bool same = text && strlen(text) == length && memcmp(text, value, length) == 0;

	free(text);
	return same;
}

static void clean_master(spank_t spank, const char *master)
{
	const char *colon = strrchr(master, ':');

	if (!colon || !is_set_to(spank, "MASTER_ADDR", master, (size_t)(colon - master)) ||
	    !is_set_to(spank, "MASTER_PORT", colon + 1, strlen(colon + 1)))
		return;
	spank_unsetenv(spank, "MASTER_ADDR");
	spank_unsetenv(spank, "MASTER_PORT");
}

/* Cuts the first entry `library` out of a list as LD_PRELOAD is one; false: it is not there. */
static bool cut_entry(char *list, const char *library)
{
	size_t length = strlen(library);
	char *entry = list;

	for (;;) {
		size_t bytes = strcspn(entry, ": ");

		if (bytes == length && memcmp(entry, library, length) == 0)
			break;
		if (!entry[bytes])
			return false;
		entry += bytes + 1;
	}
	if (entry[length])
		memmove(entry, entry + length + 1, strlen(entry + length + 1) + 1);
	else
		entry[entry > list ? -1 : 0] = '\0';
	return true;
}

/* That task may have put something of its own before the library. */
static void clean_preload(spank_t spank, const char *library)
{
	char *preload = node_variable(spank, "LD_PRELOAD");

	if (preload && *library && cut_entry(preload, library)) {
		if (*preload)
			spank_setenv(spank, "LD_PRELOAD", preload, 1);
		else
			spank_unsetenv(spank, "LD_PRELOAD");
	}
	free(preload);
}

void inherit_clean_task(spank_t spank)
{
	static const char *const ranks[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
	char *text = node_variable(spank, "ZERO_RESOLVED");
	struct zero_settings inherited = {0};
	const char *master, *library;
	char why[256];

	if (!text)
		return;
	/* one that the user made up may not parse, and is gone all the same */
	zero_settings_parse(&inherited, text, "ZERO_RESOLVED", why, sizeof why);
	master = inherited.value[ZERO_OPT_MASTER].text;
	library = inherited.value[ZERO_OPT_PRELOAD_PATH].text;
	/* only a task was given these; a batch script's RANK is its own */
	if (master && *master) {
		clean_master(spank, master);
		for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
			spank_unsetenv(spank, ranks[i]);
	}
	if (library)
		clean_preload(spank, library);
	spank_unsetenv(spank, "ZERO_RESOLVED");
	zero_settings_clear(&inherited);
	free(text);
}
