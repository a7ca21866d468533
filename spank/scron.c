/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "scron.h"
#include "user_options.h"

/* Returns the next word, without its quotes, and moves *text behind it; NULL at the end. */
static char *next_word(char **text)
{
	char *word, *to, quote = '\0';

	*text += strspn(*text, " \t\n");
	if (!**text)
		return NULL;
	word = to = *text;
	for (; **text && (quote || !strchr(" \t\n", **text)); ++*text) {
		if (**text == quote)
			quote = '\0';
		else if (!quote && (**text == '"' || **text == '\''))
			quote = **text;
		else
			*to++ = **text;
	}
	*text += **text != '\0';
	*to = '\0';
	return word;
}

static void pass_on(spank_t spank, char *line)
{
	char *word = next_word(&line);

	while (word) {
		char *value = strchr(word, '=');
		struct user_variable_name name;

		if (value)
			*value++ = '\0';
		if (zero_begins_with(word, "--") && user_flag_variable(word + 2, &name)) {
			if (!value && user_flag_has_value(word + 2))
				value = next_word(&line);
			spank_setenv(spank, name.text, value ? value : "", 1);
		}
		word = next_word(&line);
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
