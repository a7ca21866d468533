/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "scron.h"
#include "user_options.h"

/* scrontab splits the line at blanks, quotes or not (src/scrontab/parse.c). */
static void pass_on(spank_t spank, char *line)
{
	static const char blanks[] = " \t\n";
	char *rest, *word = strtok_r(line, blanks, &rest);

	for (; word; word = strtok_r(NULL, blanks, &rest)) {
		char *value = strchr(word, '=');
		struct user_variable_name name;
		bool has_value;

		if (value)
			*value++ = '\0';
		if (!user_flag_find(word, &name, &has_value))
			continue;
		if (!value && has_value)
			value = strtok_r(NULL, blanks, &rest);
		spank_setenv(spank, name.text, value ? value : "", 1);
	}
}

void scron_pass_on_flags(spank_t spank)
{
	char **argument = NULL, line[8192], user_environment[8];
	FILE *script;
	int count = 0;

	/* scrontab alone sets it always, sbatch for --get-user-env */
	if (spank_getenv(spank, "SLURM_GET_USER_ENV", user_environment, sizeof user_environment) ||
	    spank_get_item(spank, S_JOB_ARGV, &count, &argument) || count < 1 || !argument ||
	    argument[0][0] != '/')
		return;
	script = fopen(argument[0], "re");
	if (!script)
		return;
	while (fgets(line, sizeof line, script) && line[0] == '#') {
		if (zero_begins_with(line, "#SCRON"))
			pass_on(spank, line + strlen("#SCRON"));
	}
	fclose(script);
}
