/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a plan as a shell script that does the same. */
#include <string.h>

#include "launcher/plan/plan.h"

/* Whether a fact was not found out. */
static bool is_unknown(const struct zero_value *value)
{
	return value->kind == ZERO_VALUE_TEXT ? !*value->text : value->number == 0;
}

void plan_print_options(FILE *out, const struct zero_settings *settings)
{
	fputs("# option            value         from\n", out);
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		/* facts, and options of the YAML alone */
		if (!option->flag && !option->env && is_unknown(&settings->value[i]))
			continue;
		fputs("# ", out);
		print_setting(out, settings, i);
	}
}

void print_quoted(FILE *out, const char *text)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "_@%+=:,./-";

	if (*text && text[strspn(text, plain)] == '\0') {
		fputs(text, out);
		return;
	}
	fputc('\'', out);
	for (; *text; text++) {
		if (*text == '\'')
			fputs("'\\''", out);
		else
			fputc(*text, out);
	}
	fputc('\'', out);
}

void plan_print_script(FILE *out, const struct plan *plan)
{
	if (plan->no_preload) {
		fputs("# nothing is preloaded: ", out);
		print_in_line(out, plan->no_preload, 0);
		fputc('\n', out);
	}
	if (plan->unset_preload)
		fputs("unset LD_PRELOAD\n", out);
	for (size_t i = 0; i < plan->environment.count; i++) {
		const char *variable = plan->environment.item[i];
		const char *value = strchr(variable, '=') + 1;

		fprintf(out, "export %.*s", (int)(value - variable), variable);
		print_quoted(out, value);
		fputc('\n', out);
	}
	for (size_t i = 0; i < plan->argv.count; i++) {
		fputs(i ? " " : "", out);
		print_quoted(out, plan->argv.item[i]);
	}
	fputc('\n', out);
}
