/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "launcher/inspect/inspect.h"
#include "launcher/launch/launch.h"
#include "launcher/plan/survey.h"
#include "protect/leftover.h"

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
	      "      --max-restarts=N    start a job that fails again, at most N times\n"
	      "      --spare-nodes=N     with --max-restarts: nodes of the allocation that "
	      "replace lost ones\n"
	      "      --min-ranks=N       with --max-restarts: go on with fewer ranks if nodes are "
	      "lost,\n"
	      "                          but not with fewer than these\n"
	      "      --plan              print what would be run, and with which options; run "
	      "nothing\n"
	      "      --model=PATH        with --plan: print the memory that a rank needs for this "
	      "model\n"
	      "                          (a safetensors file, index or folder), and whether it "
	      "fits\n"
	      "      --inspect=DIR       print what is in a checkpoint, or in a folder of "
	      "checkpoints,\n"
	      "                          and verify it\n"
	      "      --check-config FILE check a zero.yaml\n"
	      "      --show-config [FILE]\n"
	      "                          print what the options of a zero.yaml resolve to, and "
	      "where each\n"
	      "                          value came from (" ZERO_SITE_CONFIG ")\n"
	      "      --node=NODE, --partition=PARTITION, --account=ACCOUNT, --qos=QOS,\n"
	      "      --gpu=MODEL         the place that --show-config resolves for\n"
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

/* The arguments, and the index of the one that is being read. */
struct cursor {
	char **argv;
	int at;
};

/*
 * Whether the argument is `name`. *value is then what follows a '=' or, for a short name, the name
 * itself; else the next argument, which counts as read; or NULL if there is none.
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
		print_error("%s: '%s' is not a whole number from 1 to 9999999", name,
			    text ? text : "");
		return false;
	}
	*count = number;
	return true;
}

/* 1: the argument is a flag of the table; 0: it is not; -1: an error was printed. */
static int parse_zero_flag(struct cursor *cursor, struct zero_settings *settings)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];
		const char *value;
		char why[512];

		if (!option->flag || !takes_value(cursor, option->flag, &value))
			continue;
		if (!value) {
			print_error("%s needs a value: %s", option->flag, option->argument);
			return -1;
		}
		if (!zero_settings_set(settings, (enum zero_option_id)i, value, option->flag, why,
				       sizeof why)) {
			print_error("%s", why);
			return -1;
		}
		return 1;
	}
	return 0;
}

static void refuse_unknown(const char *flag)
{
	size_t length = strcspn(flag, "=");
	char near[512], *name;

	if (strncmp(flag, "--zero-", 7) != 0) {
		print_error("there is no option %.*s: see zerorun --help", (int)length, flag);
		return;
	}
	name = format_text("%.*s", (int)length - 7, flag + 7);
	for (char *c = name; *c; c++)
		*c = *c == '-' ? '_' : *c;
	zero_option_near(name, strlen(name), ZERO_IN_FLAG, near, sizeof near);
	print_error("there is no option %.*s: %s", (int)length, flag, near);
	free(name);
}

/* The flags that take a text. Returns as parse_zero_flag. */
static int parse_text_flag(struct cursor *cursor, struct request *request)
{
	struct config_query *config = &request->config;
	const struct {
		const char *name, *what;
		const char **value;
	} flags[] = {
		{"--model", "a folder, a .safetensors file or an index of several",
		 &request->model},
		{"--inspect", "a checkpoint, or a folder of them", &request->inspect},
		{"--check-config", "a zero.yaml", &config->check},
		{"--show-config", "a zero.yaml", &config->show},
		{"--node", "its name", &config->node},
		{"--partition", "its name", &config->partition},
		{"--account", "its name", &config->account},
		{"--qos", "its name", &config->qos},
		{"--gpu", "its model", &config->gpu},
	};
	const char *next = cursor->argv[cursor->at + 1];

	/* the file may be left out */
	if (strcmp(cursor->argv[cursor->at], "--show-config") == 0 && (!next || next[0] == '-')) {
		config->show = ZERO_SITE_CONFIG;
		return 1;
	}
	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
		if (!takes_value(cursor, flags[i].name, flags[i].value))
			continue;
		if (*flags[i].value && **flags[i].value)
			return 1;
		print_error("%s needs a value: %s", flags[i].name, flags[i].what);
		return -1;
	}
	return 0;
}

/* The other flags that are not in the table. Returns as parse_zero_flag. */
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
		print_error("--no-zero: zerorun is for programs that use zero; start others with "
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
	if (takes_value(cursor, "--max-restarts", &value))
		return parse_count("--max-restarts", value, &request->restarts) ? 1 : -1;
	if (takes_value(cursor, "--spare-nodes", &value))
		return parse_count("--spare-nodes", value, &request->spare_nodes) ? 1 : -1;
	if (takes_value(cursor, "--min-ranks", &value))
		return parse_count("--min-ranks", value, &request->min_ranks) ? 1 : -1;
	if (takes_value(cursor, "--launcher-arg", &value)) {
		if (!value) {
			print_error("--launcher-arg needs a value: an argument for mpirun or srun");
			return -1;
		}
		strings_add(&request->launcher_args, format_text("%s", value));
		return 1;
	}
	return 0;
}

/* 0, or the exit status after an error. */
static int refuse_program(const char *flag, char *const *program)
{
	if (!*program)
		return 0;
	print_error("%s runs no program: '%s' is one argument too many", flag, *program);
	return EXIT_USAGE;
}

/* Options that were not set get their compiled defaults. */
static bool complete_settings(struct zero_settings *settings)
{
	char why[256];

	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (!settings->origin[i] && !zero_settings_set(settings, (enum zero_option_id)i,
							       zero_option_table[i].default_text,
							       "default", why, sizeof why))
			return false;
	}
	return true;
}

/* Reads options up to the program. 0, or the exit status after an error. */
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
			known = parse_text_flag(&cursor, request);
		if (!known)
			refuse_unknown(argv[cursor.at]);
		if (known != 1)
			return EXIT_USAGE;
		if (request->answered)
			return 0;
	}
	request->program = argv + cursor.at;
	if (request->inspect)
		return refuse_program("--inspect", request->program);
	if (request->config.check && request->config.show) {
		print_error("--check-config and --show-config cannot be given together");
		return EXIT_USAGE;
	}
	if (request->config.check)
		return refuse_program("--check-config", request->program);
	if (request->config.show)
		return refuse_program("--show-config", request->program);
	if (request->config.node || request->config.partition || request->config.account ||
	    request->config.qos || request->config.gpu) {
		print_error("--node, --partition, --account, --qos and --gpu can be given with "
			    "--show-config alone");
		return EXIT_USAGE;
	}
	if (request->model && !request->plan) {
		print_error("--model can be given with --plan alone, which prints the memory that "
			    "a rank needs");
		return EXIT_USAGE;
	}
	if ((request->spare_nodes || request->min_ranks) && !request->restarts) {
		print_error("%s can be given with --max-restarts alone, which starts a job again "
			    "that has lost nodes",
			    request->spare_nodes ? "--spare-nodes" : "--min-ranks");
		return EXIT_USAGE;
	}
	if (!*request->program) {
		print_error(
			"no program was given. Usage: zerorun [options] [--] program [arguments]");
		return EXIT_USAGE;
	}
	return 0;
}

/* What ranks on this machine have protected in its memory is of no use to another run. Elsewhere it
   is removed at the end of the job. */
static int launch_to_the_end(struct plan *plan, struct request *request, struct recovery *recovery)
{
	int status = launch_restarting(plan, request->restarts, recovery);

	if (plan->own_run && !plan->is_srun)
		zero_protect_remove(request->settings.value[ZERO_OPT_PROTECT_DIR].text,
				    zero_protect_job_level().name, getenv("ZERO_RUN"));
	return status;
}

/* Prints or runs the plan. */
static int carry_out(struct plan *plan, struct request *request)
{
	struct recovery *recovery = NULL;
	int status = request->restarts ? recovery_prepare(&recovery, plan, request) : 0;

	if (!status && request->plan)
		status = show_plan(stdout, plan, request);
	else if (!status && !launch_set_key(plan))
		status = EXIT_FAILURE;
	else if (!status)
		status = request->restarts ? launch_to_the_end(plan, request, recovery)
					   : launch(plan);
	recovery_free(recovery);
	return status;
}

int main(int argc, char **argv)
{
	struct request request = {0};
	struct plan plan = {0};
	bool environment_ok;
	char why[512];
	int status;

	if (argc < 1)
		return EXIT_FAILURE;
	/* --plan runs zerorun in this way, as the tasks of a step */
	if (argc == 2 && strcmp(argv[1], SURVEY_FLAG) == 0)
		return survey_report(stdout);
	status = parse_arguments(argv, &request);
	/* a flag overrides its variable, even one that is another program's */
	environment_ok = zero_settings_environment(&request.settings, why, sizeof why);
	/* errors in the environment matter to a job alone */
	if (status || request.answered)
		goto out;
	if (request.inspect) {
		status = inspect(stdout, request.inspect);
		goto out;
	}
	if (request.config.check) {
		status = config_check(stdout, request.config.check);
		goto out;
	}
	if (!environment_ok) {
		print_error("%s", why);
		status = EXIT_USAGE;
		goto out;
	}
	if (request.config.show) {
		status = config_show(stdout, &request.config, &request.settings);
		goto out;
	}
	if (!complete_settings(&request.settings)) {
		print_error("no memory");
		status = EXIT_FAILURE;
		goto out;
	}
	status = plan_make(&plan, &request);
	if (!status)
		status = carry_out(&plan, &request);
out:
	if (fflush(stdout) != 0 && !status)
		status = EXIT_FAILURE;
	plan_clear(&plan);
	strings_clear(&request.launcher_args);
	zero_settings_clear(&request.settings);
	return status;
}
