/* SPDX-License-Identifier: Apache-2.0 */
/* What is run for a request: which launcher, with which arguments and which environment. */
#include "launcher/plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void add_argument(struct plan *plan, const char *argument)
{
	strings_add(&plan->argv, format_text("%s", argument));
}

static void add_arguments(struct plan *plan, char *const *arguments)
{
	for (; arguments && *arguments; arguments++)
		add_argument(plan, *arguments);
}

static void add_variable(struct plan *plan, const char *name, const char *value)
{
	strings_add(&plan->environment, format_text("%s=%s", name, value));
}

/* A variable that the user has set keeps its value. */
static void add_unless_set(struct plan *plan, const char *name, const char *value)
{
	if (!getenv(name))
		add_variable(plan, name, value);
}

static bool is_from_flag(const struct zero_settings *settings, int id)
{
	const char *flag = zero_option_table[id].flag;

	return flag && strcmp(settings->origin[id], flag) == 0;
}

/* The package of the library's build comes before others. An empty part would be the working
   folder. */
static void plan_python(struct plan *plan, const struct zero_settings *settings)
{
	const char *before = getenv("PYTHONPATH");
	bool wanted = settings->value[ZERO_OPT_PYTHON].number == ZERO_PYTHON_YES;
	char *folder = wanted ? find_python() : NULL;

	if (folder)
		strings_add(&plan->environment,
			    format_text("PYTHONPATH=%s%s%s", folder, before && *before ? ":" : "",
					before ? before : ""));
	free(folder);
}

/* The ranks' environment, the same under every launcher. Slurm's plugin sets the rest itself. */
static void plan_environment(struct plan *plan, const struct zero_settings *settings)
{
	const char *cpus = plan->is_srun ? getenv("SLURM_CPUS_PER_TASK") : NULL;
	const char *threads = cpus && *cpus ? cpus : "1";
	char *resolved;

	/* with more ranks than cores, a rank that waits must let the others run */
	add_unless_set(plan, "OMPI_MCA_mpi_yield_when_idle", "1");
	/* each rank would otherwise start a thread for each core of the machine */
	add_unless_set(plan, "OMP_NUM_THREADS", threads);
	add_unless_set(plan, "OPENBLAS_NUM_THREADS", threads);
	add_unless_set(plan, "MKL_NUM_THREADS", threads);
	if (plan->has_plugin)
		return;
	plan_python(plan, settings);
	resolved = zero_settings_format(settings);
	if (!resolved)
		exit_no_memory();
	add_variable(plan, "ZERO_RESOLVED", resolved);
	free(resolved);
}

/* Finds the library to preload. 0, or the exit status after an error. */
static int plan_preload(struct plan *plan, const struct zero_settings *settings)
{
	const char *inherited = getenv("LD_PRELOAD");
	/* LD_PRELOAD is split at these or expands them; --export is split at commas */
	const char *separators = plan->is_srun ? " :$," : " :$";
	const char *origin = settings->origin[ZERO_OPT_PRELOAD];
	char *library;

	if (settings->value[ZERO_OPT_PRELOAD].number == ZERO_PRELOAD_NO) {
		plan->no_preload = format_text("%s is no", origin);
		return 0;
	}
	library = find_library();
	if (!library)
		plan->no_preload = format_text("there is no libzero.so in %s", ZERO_LIBDIR);
	else if (strpbrk(library, separators))
		plan->no_preload = format_text("LD_PRELOAD cannot hold the path '%s'", library);
	else if (inherited && plan->is_srun && strchr(inherited, ','))
		plan->no_preload = format_text("srun cannot pass on LD_PRELOAD='%s'", inherited);
	else if (inherited && *inherited)
		plan->preload = format_text("%s:%s", library, inherited);
	else
		plan->preload = format_text("%s", library);
	free(library);
	if (plan->preload || strcmp(origin, "default") == 0)
		return 0;
	print_error("%s: the library cannot be preloaded: %s", origin, plan->no_preload);
	return EXIT_FAILURE;
}

/*
 * To both launchers, an argument ":" starts the command line of another program, wherever it is,
 * and there is no way to quote it.
 */
static int check_arguments(const struct request *request)
{
	for (char **argument = request->program; *argument; argument++) {
		if (strcmp(*argument, ":") == 0) {
			print_error("an argument ':' cannot be passed through mpirun or "
				    "srun");
			return EXIT_USAGE;
		}
	}
	return 0;
}

/* The user's flags as flags of srun. The plugin sets up PMIx, the library and ZERO_RESOLVED. */
static void plan_plugin_flags(struct plan *plan, const struct request *request)
{
	add_argument(plan, "--zero");
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		char *text;

		if (!is_from_flag(&request->settings, i))
			continue;
		text = setting_text(&request->settings, i);
		strings_add(&plan->argv, format_text("%s=%s", zero_option_table[i].flag, text));
		free(text);
	}
}

/* What the plugin would set up, except for PMIx. */
static void plan_own_flags(struct plan *plan)
{
	if (!getenv("SLURM_KILL_BAD_EXIT"))
		add_argument(plan, "--kill-on-bad-exit=1");
	/*
	 * ALL, since `sbatch --export=NONE` would keep ZERO_RESOLVED from the ranks. LD_PRELOAD
	 * here is the ranks' alone, and a plugin can put the cluster's own library before it; but
	 * srun passes one that is in its environment instead.
	 */
	plan->unset_preload = plan->preload && getenv("LD_PRELOAD");
	if (plan->preload)
		strings_add(&plan->argv, format_text("--export=ALL,LD_PRELOAD=%s", plan->preload));
	else
		add_argument(plan, "--export=ALL");
}

/* Only the plugin reads a user's YAML file. */
static int check_without_plugin(const struct request *request)
{
	const char *path = request->settings.value[ZERO_OPT_CONFIG].text;

	if (!*path)
		return 0;
	print_error("%s=%s needs Slurm's plugin, which reads the file; without it, give flags",
		    request->settings.origin[ZERO_OPT_CONFIG], path);
	return EXIT_USAGE;
}

static int plan_srun(struct plan *plan, const struct request *request)
{
	int status;

	plan->path = find_program("srun", &status);
	if (!plan->path) {
		print_error("srun was not found in PATH: install Slurm's commands (slurm-client on "
			    "Debian and "
			    "Ubuntu, slurm on Fedora and RHEL)");
		return EXIT_FAILURE;
	}
	plan->has_plugin = find_plugin(plan->path);
	if (!plan->has_plugin) {
		status = check_without_plugin(request);
		if (!status)
			status = plan_preload(plan, &request->settings);
		if (status)
			return status;
	}
	/*
	 * The program is not looked for: it may be on the compute nodes or in a container alone.
	 * The user's arguments come after these, so that srun takes theirs.
	 */
	add_argument(plan, plan->path);
	if (plan->has_plugin)
		plan_plugin_flags(plan, request);
	else if (!getenv("SLURM_MPI_TYPE"))
		add_argument(plan, "--mpi=pmix");
	if (request->tasks)
		strings_add(&plan->argv, format_text("--ntasks=%u", request->tasks));
	if (request->nodes)
		strings_add(&plan->argv, format_text("--nodes=%u", request->nodes));
	if (!plan->has_plugin)
		plan_own_flags(plan);
	if (request->label)
		add_argument(plan, "--label");
	add_arguments(plan, request->launcher_args.item);
	plan->program = plan->argv.count;
	add_arguments(plan, request->program);
	return 0;
}

/* Without the program, mpirun would print 20 lines and end with status 134. */
static int check_program_found(const char *name)
{
	int status;
	char *path = find_program(name, &status);

	if (status == EXIT_NOT_FOUND)
		print_error("%s: there is no such program%s", name,
			    strchr(name, '/') ? "" : " in PATH");
	else if (status)
		print_error("%s is not a program that can be run", name);
	free(path);
	return status;
}

static int check_outside_slurm(const struct request *request)
{
	if (request->nodes) {
		print_error("-N needs Slurm: outside an allocation all ranks are on this machine "
			    "(--slurm asks for an allocation)");
		return EXIT_USAGE;
	}
	return check_program_found(request->program[0]);
}

static int plan_mpirun(struct plan *plan, const struct request *request)
{
	const char *name = getenv("ZERO_MPIRUN");
	int status = check_without_plugin(request);

	if (!status)
		status = check_outside_slurm(request);
	if (status)
		return status;
	name = name && *name ? name : "mpirun";
	plan->path = find_program(name, &status);
	if (!plan->path) {
		print_error("%s was not found: install Open MPI (openmpi-bin on Debian and Ubuntu, "
			    "openmpi on "
			    "Fedora and RHEL, there with 'module load mpi'), or name its mpirun in "
			    "ZERO_MPIRUN",
			    name);
		return EXIT_FAILURE;
	}
	plan->mpirun_version = find_mpirun_version(plan->path);
	if (!plan->mpirun_version)
		return EXIT_FAILURE;
	status = plan_preload(plan, &request->settings);
	if (status)
		return status;
	add_argument(plan, plan->path);
	add_argument(plan, "-n");
	strings_add(&plan->argv, format_text("%u", request->tasks));
	/* versions 4 and 5 have this; in 5, --oversubscribe is deprecated */
	add_argument(plan, "--map-by");
	add_argument(plan, ":OVERSUBSCRIBE");
	add_argument(plan, "--bind-to");
	add_argument(plan, "none");
	if (request->label && plan->mpirun_version >= 5) {
		add_argument(plan, "--output");
		add_argument(plan, "tag");
	} else if (request->label) {
		add_argument(plan, "--tag-output");
	}
	add_arguments(plan, request->launcher_args.item);
	/*
	 * env(1) in front of the program sets LD_PRELOAD for the ranks alone; mpirun's own -x would
	 * set it for mpirun as well. env takes a program with a '=' for a variable, nice does not.
	 */
	if (plan->preload) {
		add_argument(plan, "/usr/bin/env");
		strings_add(&plan->argv, format_text("LD_PRELOAD=%s", plan->preload));
	}
	if (plan->preload && strchr(request->program[0], '=')) {
		add_argument(plan, "nice");
		add_argument(plan, "-n");
		add_argument(plan, "0");
	}
	add_arguments(plan, request->program);
	/* containers run as root, which mpirun refuses without these */
	if (geteuid() == 0) {
		add_unless_set(plan, "OMPI_ALLOW_RUN_AS_ROOT", "1");
		add_unless_set(plan, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
	}
	return 0;
}

int plan_make(struct plan *plan, struct request *request)
{
	const char *origin = request->tasks ? "-n" : "default";
	const char *job = getenv("SLURM_JOB_ID");
	int status = check_arguments(request);

	*plan = (struct plan){.is_srun = request->slurm || (job && *job)};
	if (status)
		return status;
	/* inside an allocation, srun takes the number of tasks from the job */
	if (!request->tasks && !plan->is_srun)
		request->tasks = 1;
	if (request->tasks) {
		char *tasks = format_text("%u", request->tasks);
		char why[256];
		bool ok = zero_settings_set(&request->settings, ZERO_OPT_TASKS, tasks, origin, why,
					    sizeof why);

		free(tasks);
		if (!ok) {
			print_error("%s", why);
			return EXIT_FAILURE;
		}
	}
	status = plan->is_srun ? plan_srun(plan, request) : plan_mpirun(plan, request);
	if (!status)
		plan_environment(plan, &request->settings);
	return status;
}

void plan_clear(struct plan *plan)
{
	free(plan->path);
	strings_clear(&plan->argv);
	strings_clear(&plan->environment);
	free(plan->preload);
	free(plan->no_preload);
	*plan = (struct plan){0};
}
