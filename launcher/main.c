/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "plan.h"

static void print_help(void)
{
	fputs("Usage: zerorun [options] [--] program [arguments]\n"
	      "\n"
	      "Starts the ranks of a program that uses libzero: with mpirun on this machine, with "
	      "srun\n"
	      "inside a Slurm allocation. Exits with the program's status.\n"
	      "\n"
	      "  -n, --ntasks=N          ranks (1; inside an allocation what the job has)\n"
	      "  -N, --nodes=N           nodes, under Slurm\n"
	      "      --slurm             use srun outside an allocation too\n"
	      "      --label             begin each line of output with its rank\n"
	      "      --launcher-arg=ARG  one more argument for mpirun or srun; may be repeated\n"
	      "      --plan              print what would be run, and with which options; run "
	      "nothing\n"
	      "      --zero              accepted as in Slurm's commands; changes nothing here\n"
	      "  -h, --help\n"
	      "  -V, --version\n"
	      "\n"
	      "Options of the library; in the environment ZERO_STAGE and so on, where flags win:\n",
	      stdout);
	zero_options_help(stdout);
	fputs("\n"
	      "Environment: ZERO_MPIRUN names the mpirun to use.\n",
	      stdout);
}

/* The arguments, and the one that is being read. */
struct cursor {
	char **argv;
	int at;
};

/*
 * If the argument is `name`, its value: what follows a '=' or, for a short name, the name itself,
 * or else the next argument, which is then read too. False: it is another. *value is NULL if there
 * is none.
 */
static bool takes_value(struct cursor *cursor, const char *name, const char **value)
{
	const char *argument = cursor->argv[cursor->at];
	bool is_short = name[1] != '-';
	size_t length = strlen(name);

	if (strncmp(argument, name, length) != 0)
		return false;
	if (argument[length] == '=' || (is_short && argument[length])) {
		*value = argument + length + (argument[length] == '=');
		return true;
	}
	if (argument[length])
		return false;
	*value = cursor->argv[cursor->at + 1];
	cursor->at += *value != NULL;
	return true;
}

static bool parse_count(const char *name, const char *text, unsigned *count)
{
	size_t digits = text ? strspn(text, "0123456789") : 0;
	unsigned number = 0;

	if (digits && digits < 8 && !text[digits])
		number = (unsigned)atoi(text);
	if (!number) {
		complain("%s: '%s' is not a whole number from 1 to 9999999", name,
			 text ? text : "");
		return false;
	}
	*count = number;
	return true;
}

/* 1: it was a flag of the table; 0: it is not; -1: it is wrong, and said so. */
static int parse_zero_flag(struct cursor *cursor, struct zero_settings *settings)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];
		const char *value;
		char why[512];

		if (!option->flag || !takes_value(cursor, option->flag, &value))
			continue;
		if (!value) {
			complain("%s needs a value: %s", option->flag, option->argument);
			return -1;
		}
		if (!zero_settings_set(settings, (enum zero_option_id)i, value, option->flag, why,
				       sizeof why)) {
			complain("%s", why);
			return -1;
		}
		return 1;
	}
	return 0;
}

static void complain_unknown(const char *flag)
{
	size_t length = strcspn(flag, "=");
	char near[512], *name;

	if (strncmp(flag, "--zero-", 7) != 0) {
		complain("there is no option %.*s: see zerorun --help", (int)length, flag);
		return;
	}
	name = text_of("%.*s", (int)length - 7, flag + 7);
	for (char *c = name; *c; c++)
		*c = *c == '-' ? '_' : *c;
	zero_option_near(name, strlen(name), ZERO_IN_FLAG, near, sizeof near);
	complain("there is no option %.*s: %s", (int)length, flag, near);
	free(name);
}

/* One option that is not of the table; as parse_zero_flag. */
static int parse_own_flag(struct cursor *cursor, struct request *request)
{
	const char *flag = cursor->argv[cursor->at];
	const char *value;

	if (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0) {
		print_help();
		return request->answered = true;
	}
	if (strcmp(flag, "--version") == 0 || strcmp(flag, "-V") == 0) {
		puts("zerorun (slurm-zero) " PACKAGE_VERSION);
		return request->answered = true;
	}
	if (strcmp(flag, "--zero") == 0)
		return 1;
	if (strcmp(flag, "--no-zero") == 0) {
		complain("--no-zero: zerorun is for programs that use zero; start others with "
			 "mpirun or "
			 "srun");
		return -1;
	}
	if (strcmp(flag, "--slurm") == 0)
		return request->slurm = true;
	if (strcmp(flag, "--label") == 0)
		return request->label = true;
	if (strcmp(flag, "--plan") == 0)
		return request->plan = true;
	if (takes_value(cursor, "--ntasks", &value) || takes_value(cursor, "-n", &value))
		return parse_count("-n", value, &request->tasks) ? 1 : -1;
	if (takes_value(cursor, "--nodes", &value) || takes_value(cursor, "-N", &value))
		return parse_count("-N", value, &request->nodes) ? 1 : -1;
	if (takes_value(cursor, "--launcher-arg", &value)) {
		if (!value) {
			complain("--launcher-arg needs a value: an argument for mpirun or srun");
			return -1;
		}
		strings_add(&request->launcher_args, text_of("%s", value));
		return 1;
	}
	return 0;
}

/* Reads options up to the program. 0, or the exit status after a complaint. */
static int parse_arguments(char **argv, struct request *request)
{
	struct cursor cursor = {.argv = argv, .at = 1};

	for (; argv[cursor.at] && argv[cursor.at][0] == '-'; cursor.at++) {
		int known;

		if (strcmp(argv[cursor.at], "--") == 0) {
			cursor.at++;
			break;
		}
		known = parse_zero_flag(&cursor, &request->settings);
		if (!known)
			known = parse_own_flag(&cursor, request);
		if (!known)
			complain_unknown(argv[cursor.at]);
		if (known != 1)
			return EXIT_USAGE;
		if (request->answered)
			return 0;
	}
	request->program = argv + cursor.at;
	if (!*request->program) {
		complain("which program? Usage: zerorun [options] [--] program [arguments]");
		return EXIT_USAGE;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct request request = {0};
	struct plan plan = {0};
	bool environment_ok;
	char why[512];
	int status;

	if (argc < 1 || !zero_settings_init(&request.settings)) {
		complain("no memory");
		return EXIT_FAILURE;
	}
	environment_ok = zero_settings_environment(&request.settings, why, sizeof why);
	status = parse_arguments(argv, &request);
	/* help is given in a bad environment too */
	if (status || request.answered)
		goto out;
	if (!environment_ok) {
		complain("%s", why);
		status = EXIT_USAGE;
		goto out;
	}
	status = plan_make(&plan, &request);
	if (status)
		goto out;
	if (request.plan)
		plan_print(stdout, &plan, &request.settings);
	else
		status = launch(&plan);
out:
	if (fflush(stdout) != 0 && !status)
		status = EXIT_FAILURE;
	plan_clear(&plan);
	strings_clear(&request.launcher_args);
	zero_settings_clear(&request.settings);
	return status;
}
