/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/recover/recover.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned number_of(const char *variable)
{
	const char *text = getenv(variable);

	return text ? (unsigned)strtoul(text, NULL, 10) : 0;
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* They come after the user's own, so that srun takes these. */
static void set_flags(struct recovery *recovery, struct strings *flags)
{
	struct plan *plan = recovery->plan;
	struct strings argv = {0};

	for (size_t i = 0; i < plan->argv.count; i++) {
		if (i == recovery->flags_at)
			for (size_t j = 0; j < flags->count; j++)
				strings_add(&argv, format_text("%s", flags->item[j]));
		if (i < recovery->flags_at || i >= recovery->flags_at + recovery->flags)
			strings_add(&argv, format_text("%s", plan->argv.item[i]));
	}
	strings_clear(&plan->argv);
	plan->argv = argv;
	recovery->flags = flags->count;
	plan->program = recovery->flags_at + recovery->flags;
	strings_clear(flags);
}

/*
 * Of an attempt on the nodes that are used. By itself srun asks for the GPUs of all nodes. Slurm's
 * PMIx takes the number of a node in the step for one in SLURM_JOB_NODELIST (22.05): with the list
 * of the allocation a request for a rank's data goes to another node, and ranks hang.
 */
static struct strings layout_flags(struct recovery *recovery)
{
	const char *all_gpus = getenv("SLURM_GPUS");
	struct strings flags = {0};
	unsigned nodes = 0;
	char *gpus;

	for (size_t i = 0; i < recovery->nodes.count; i++)
		nodes += recovery->used[i];
	free(recovery->names);
	recovery->names = nodes_join(&recovery->nodes, recovery->used);
	strings_add(&flags, format_text("--nodes=%u", nodes));
	strings_add(&flags, format_text("--ntasks=%u", recovery->ranks));
	strings_add(&flags, format_text("--nodelist=%s", recovery->names));
	setenv("SLURM_JOB_NODELIST", recovery->names, 1);
	gpus = all_gpus ? scale_gpus(all_gpus, (unsigned)recovery->nodes.count, nodes) : NULL;
	if (gpus)
		strings_add(&flags, format_text("--gpus=%s", gpus));
	free(gpus);
	return flags;
}

/* ---- the first attempt ----------------------------------------------------------------------- */

/* Sets the layout as srun has it by itself, and checks it. */
static int find_layout(struct layout *layout, const struct request *request, unsigned count)
{
	unsigned per_node = number_of("SLURM_NTASKS_PER_NODE"), tasks = number_of("SLURM_NTASKS");
	unsigned spare = request->spare_nodes;

	if (spare && (spare >= count || request->nodes + spare > count)) {
		print_error("--spare-nodes=%u: the allocation has %u node%s%s", spare, count,
			    count > 1 ? "s" : "", request->nodes ? ", and -N takes others" : "");
		return EXIT_USAGE;
	}
	layout->nodes = request->nodes ? request->nodes : count - spare;
	layout->min_ranks = request->min_ranks;
	if (request->tasks)
		layout->ranks = request->tasks;
	else if (tasks && !spare)
		layout->ranks = tasks;
	else
		layout->ranks = layout->nodes * (per_node ? per_node
						 : tasks  ? ranks_per_node(tasks, count)
							  : 1);
	if (layout->nodes > layout->ranks)
		layout->nodes = layout->ranks;
	layout->per_node = ranks_per_node(layout->ranks, layout->nodes);
	if (layout->min_ranks <= layout->ranks)
		return 0;
	print_error("--min-ranks=%u: the job has %u rank%s", layout->min_ranks, layout->ranks,
		    layout->ranks > 1 ? "s" : "");
	return EXIT_USAGE;
}

static bool nodes_can_be_replaced(const struct plan *plan, struct nodes *nodes)
{
	const char *job = getenv("SLURM_JOB_ID"), *list = getenv("SLURM_JOB_NODELIST");

	/* the parts of a heterogeneous job are allocations of their own */
	return plan->is_srun && job && *job && list && *list && !getenv("SLURM_HET_SIZE") &&
	       nodes_read(nodes, list);
}

static void stop_releasing(struct recovery *recovery)
{
	if (recovery->releases <= 0)
		return;
	kill(-recovery->releases, SIGTERM);
	waitpid(recovery->releases, NULL, 0);
	recovery->releases = 0;
}

void recovery_free(struct recovery *recovery)
{
	if (!recovery)
		return;
	stop_releasing(recovery);
	nodes_clear(&recovery->nodes);
	free(recovery->used);
	free(recovery->told);
	free(recovery->names);
	free(recovery);
}

int recovery_prepare(struct recovery **recovery, struct plan *plan, const struct request *request)
{
	struct recovery *made = calloc(1, sizeof(*made));
	int status;

	if (!made)
		exit_no_memory();
	*recovery = NULL;
	made->plan = plan;
	made->flags_at = plan->program;
	if (!nodes_can_be_replaced(plan, &made->nodes)) {
		recovery_free(made);
		if (!request->spare_nodes && !request->min_ranks)
			return 0;
		print_error(
			"%s needs an allocation of Slurm, which is not a heterogeneous job, and "
			"whose nodes scontrol shows",
			request->spare_nodes ? "--spare-nodes" : "--min-ranks");
		return EXIT_USAGE;
	}
	status = find_layout(&made->layout, request, (unsigned)made->nodes.count);
	if (status) {
		recovery_free(made);
		return status;
	}
	made->used = calloc(made->nodes.count, sizeof(*made->used));
	made->told = calloc(made->nodes.count, sizeof(*made->told));
	if (!made->used || !made->told)
		exit_no_memory();
	for (size_t i = 0; i < made->layout.nodes && i < made->nodes.count; i++)
		made->used[i] = true;
	made->ranks = made->layout.ranks;
	*recovery = made;
	if (request->spare_nodes) {
		struct strings flags = layout_flags(made);

		set_flags(made, &flags);
	}
	return 0;
}

/* ---- after a loss ---------------------------------------------------------------------------- */

bool recovery_has_loss(struct recovery *recovery)
{
	nodes_probe(&recovery->nodes, recovery->notice.node);
	for (size_t i = 0; i < recovery->nodes.count; i++)
		if (recovery->nodes.lost[i] && !recovery->told[i])
			return true;
	return false;
}

void recovery_print_loss(struct recovery *recovery, double seconds)
{
	const struct nodes *nodes = &recovery->nodes;

	for (size_t i = 0; i < nodes->count; i++) {
		if (nodes->lost[i] && !recovery->told[i])
			print_error("node %s is lost after %.1f s: %s", nodes->name[i], seconds,
				    nodes->why[i]);
		recovery->told[i] = nodes->lost[i];
	}
}

/*
 * Releases the lost nodes from the job, which Slurm would end when it finds them down. That is long
 * after the next attempt has begun, and Slurm may refuse for a while after an earlier change, so
 * that a process does it aside. scontrol writes scripts into the working folder.
 */
static void release_lost(struct recovery *recovery)
{
	static const char script[] =
		"exec 3>&2 2>/dev/null\n"
		"folder=$(mktemp -d) && cd \"$folder\" || exit\n"
		"trap 'cd / && rm -rf \"$folder\"' EXIT; trap 'exit 1' TERM\n"
		"for try in 1 2 3 4 5 6 7 8 9 10; do\n"
		"	said=$(scontrol update JobId=\"$1\" ReqNodeList=\"$2\" 2>&1) && exit\n"
		"	sleep 3\n"
		"done\n"
		"echo \"zerorun: Slurm does not release the lost nodes, and may end the job when "
		"it finds them down: $said\" >&3";
	const struct nodes *nodes = &recovery->nodes;
	bool *kept = calloc(nodes->count, sizeof(*kept));
	pid_t self = getpid();
	sigset_t none;
	char *left;

	if (!kept)
		exit_no_memory();
	for (size_t i = 0; i < nodes->count; i++)
		kept[i] = !nodes->lost[i];
	left = nodes_join(nodes, kept);
	free(kept);
	stop_releasing(recovery);
	recovery->releases = fork();
	if (recovery->releases == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		if (getppid() == self)
			execl("/bin/sh", "sh", "-c", script, "sh", getenv("SLURM_JOB_ID"), left,
			      NULL);
		_exit(EXIT_FAILURE);
	}
	/* what it waits for ends with it, see stop_releasing */
	if (recovery->releases > 0)
		setpgid(recovery->releases, recovery->releases);
	free(left);
}

/* Ends the step that has given notice, on the nodes that are left: its srun was killed, and a task
   that does not end by itself would hold its GPUs. */
static void end_step(const struct recovery *recovery)
{
	/* of itself scancel asks the nodes, and waits for those that are lost */
	char *argv[] = {NULL, (char *)"--ctld", (char *)"--signal=KILL", NULL, NULL};
	int status;

	if (recovery->notice.step == ZERO_NO_STEP || !(argv[0] = find_program("scancel", &status)))
		return;
	argv[3] = format_text("%s.%u", getenv("SLURM_JOB_ID"), (unsigned)recovery->notice.step);
	/* it has nothing to say that helps: the step may have ended by itself */
	free(run_program(argv, true, &status));
	free(argv[0]);
	free(argv[3]);
}

bool recovery_continue(struct recovery *recovery)
{
	struct strings flags;
	char why[256];

	recovery->ranks = choose_nodes(&recovery->layout, recovery->nodes.lost, recovery->used,
				       recovery->nodes.count, why, sizeof(why));
	if (!recovery->ranks) {
		print_error("the job cannot go on: %s", why);
		return false;
	}
	end_step(recovery);
	release_lost(recovery);
	flags = layout_flags(recovery);
	/* the step that has lost a node holds its resources until Slurm knows it */
	strings_add(&flags, format_text("--overlap"));
	strings_add(&flags, format_text("--mem=0"));
	set_flags(recovery, &flags);
	return true;
}
