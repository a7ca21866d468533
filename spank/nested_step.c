/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

/* Returns whether a PMIx server sets the variable. Those in PMIX_MCA_ are settings of the user. */
static bool is_pmix(const char *entry, size_t length)
{
	return entry[length] == '=' && strncmp(entry, "PMIX_", 5) == 0 &&
	       strncmp(entry, "PMIX_MCA_", 9) != 0;
}

void nested_step_remove_pmix(spank_t spank)
{
	/* a server sets about 20; the limit bounds the work of root: a removal moves the rest */
	enum { MAX_REMOVED = 256 };
	char **variable = NULL, name[256];
	size_t at = 0, removed = 0;

	if (spank_getenv(spank, "ZERO_RESOLVED", name, sizeof name) == ESPANK_ENV_NOEXIST)
		return;
	while (removed < MAX_REMOVED && !spank_get_item(spank, S_JOB_ENV, &variable) && variable &&
	       variable[at]) {
		const char *entry = variable[at];
		size_t length = strcspn(entry, "=");

		if (length < sizeof name && is_pmix(entry, length)) {
			memcpy(name, entry, length);
			name[length] = '\0';
			spank_unsetenv(spank, name);
			removed++;
		}
		/* after a removal, the next variable has moved to this place */
		if (!spank_get_item(spank, S_JOB_ENV, &variable) && variable[at] == entry)
			at++;
	}
}

static bool is_set_to(spank_t spank, const char *name, const char *value, size_t length)
{
	char *text = step_variable(spank, name);
	bool same = text && strlen(text) == length && memcmp(text, value, length) == 0;

	free(text);
	return same;
}

static void remove_master(spank_t spank, const char *master)
{
	const char *colon = strrchr(master, ':');

	if (!colon || !is_set_to(spank, "MASTER_ADDR", master, (size_t)(colon - master)) ||
	    !is_set_to(spank, "MASTER_PORT", colon + 1, strlen(colon + 1)))
		return;
	spank_unsetenv(spank, "MASTER_ADDR");
	spank_unsetenv(spank, "MASTER_PORT");
}

/* Removes the first entry `path` of a list such as LD_PRELOAD. Returns false without one. */
static bool remove_entry(char *list, const char *path)
{
	size_t length = strlen(path);
	char *entry = list;

	for (;;) {
		size_t bytes = strcspn(entry, ": ");

		if (bytes == length && memcmp(entry, path, length) == 0)
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

/* Takes out what the plugin prepended. The task may have prepended a path of its own since. */
static void remove_from(spank_t spank, const char *variable, const char *path)
{
	char *list = step_variable(spank, variable);

	if (list && path && *path && remove_entry(list, path)) {
		if (*list)
			spank_setenv(spank, variable, list, 1);
		else
			spank_unsetenv(spank, variable);
	}
	free(list);
}

void nested_step_remove_variables(spank_t spank)
{
	static const char *const ranks[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
	char *text = step_variable(spank, "ZERO_RESOLVED");
	struct zero_settings inherited = {0};
	const char *master;
	char why[256];

	if (!text)
		return;
	/* a forged ZERO_RESOLVED may not parse, but is removed as well */
	zero_settings_parse(&inherited, text, "ZERO_RESOLVED", why, sizeof why);
	master = inherited.value[ZERO_OPT_MASTER].text;
	/* a task without MASTER_ADDR, such as a batch script, got no RANK from the plugin either */
	if (master && *master) {
		remove_master(spank, master);
		for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
			spank_unsetenv(spank, ranks[i]);
	}
	remove_from(spank, "LD_PRELOAD", inherited.value[ZERO_OPT_PRELOAD_PATH].text);
	remove_from(spank, "PYTHONPATH", inherited.value[ZERO_OPT_PYTHON_PATH].text);
	spank_unsetenv(spank, "ZERO_RESOLVED");
	zero_settings_clear(&inherited);
	free(text);
}
