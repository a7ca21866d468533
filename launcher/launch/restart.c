/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --max-restarts: mpirun or srun is a child, and begins again when the job has failed. A signal
 * that ends a job ends it for good.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "launcher/launch/launch.h"

/* A job that fails at once is begun at most twice a minute, in the end. */
enum { PAUSE_MAX = 32, SHORT_RUN = 60 };

struct runs {
	struct plan *plan;
	unsigned limit, restart; /* of restarts; which one this is */
	sigset_t waited;         /* signals that are waited for; blocked all the time */
	sigset_t before;         /* and what was blocked before */
	int ended_by;            /* the signal by which a user ended it; 0: none */
	unsigned pause;
};

/* What whoever began zerorun wants ignored, as nohup does, stays so. */
static bool is_ignored(int number)
{
	struct sigaction now;

	return !sigaction(number, NULL, &now) && now.sa_handler == SIG_IGN;
}

static void block_signals(struct runs *runs)
{
	static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
	sigset_t blocked;

	signal(SIGCHLD, SIG_DFL);
	sigemptyset(&runs->waited);
	sigaddset(&runs->waited, SIGCHLD);
	for (size_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; i++)
		/* SIGQUIT is not for mpirun, see launch() */
		if (!is_ignored(passed_on[i]) && (passed_on[i] != SIGQUIT || runs->plan->is_srun))
			sigaddset(&runs->waited, passed_on[i]);
	blocked = runs->waited;
	sigaddset(&blocked, SIGQUIT);
	sigprocmask(SIG_BLOCK, &blocked, &runs->before);
}

static bool ends_job(int number)
{
	return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

/*
 * The terminal gives its signals (Ctrl-C) to the launcher as well, which takes a second one for
 * "abort at once". Those come from the kernel, all others from a process that knows zerorun alone.
 */
static void pass_on(struct runs *runs, pid_t child, const siginfo_t *info)
{
	if (ends_job(info->si_signo))
		runs->ended_by = info->si_signo;
	if (info->si_code != SI_KERNEL)
		kill(child, info->si_signo);
}

static int exit_status(int ended)
{
	return WIFSIGNALED(ended) ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
}

/* Runs the launcher once; what a shell would say of how it ended. */
static int run_once(struct runs *runs)
{
	pid_t self = getpid(), child = fork();
	siginfo_t info;
	int ended = 0;

	if (child < 0) {
		print_error("no process for the launcher: %s", strerror(errno));
		return EXIT_FAILURE;
	}
	if (child == 0) {
		/* without a zerorun nobody would end it */
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		if (getppid() != self)
			_exit(EXIT_FAILURE);
		sigprocmask(SIG_SETMASK, &runs->before, NULL);
		_exit(launch(runs->plan));
	}
	while (waitpid(child, &ended, WNOHANG) == 0)
		if (sigwaitinfo(&runs->waited, &info) > 0 && info.si_signo != SIGCHLD)
			pass_on(runs, child, &info);
	return exit_status(ended);
}

/* What a job ends with when it was asked to stop, has saved and would go on. */
static bool asks_again(int status)
{
	return status == EX_TEMPFAIL;
}

/* Another attempt would end as this one did, or nobody wants one. */
static bool is_final(const struct runs *runs, int status)
{
	const char *job = getenv("SLURM_JOB_ID");

	if (!status || status == EXIT_USAGE || status == EXIT_NOT_EXECUTABLE ||
	    status == EXIT_NOT_FOUND || runs->ended_by)
		return true;
	/* within an allocation it was Slurm that asked, which is about to take the nodes back: it
	   is for the batch script to requeue the job */
	return asks_again(status) && job && *job;
}

static void tell(const struct runs *runs, int status)
{
	char *how;

	if (asks_again(status))
		how = format_text("the job has stopped and asks to be run again (status %d)",
				  status);
	else if (status > 128 && status < 128 + NSIG)
		how = format_text("the job was ended by signal %d, %s (status %d)", status - 128,
				  strsignal(status - 128), status);
	else
		how = format_text("the job ended with status %d", status);
	if (runs->restart < runs->limit)
		print_error("%s: restart %u of %u in %u s", how, runs->restart + 1, runs->limit,
			    runs->pause);
	else
		print_error("%s: all %u restarts are used up", how, runs->limit);
	free(how);
}

/* False: a user ended it meanwhile. Other signals have nobody to go to. */
static bool wait_a_little(struct runs *runs)
{
	struct timespec now, end;
	siginfo_t info;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += runs->pause;
	for (;;) {
		struct timespec left = {0};

		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec >= end.tv_sec)
			return true;
		left.tv_sec = end.tv_sec - now.tv_sec;
		if (sigtimedwait(&runs->waited, &info, &left) > 0 && ends_job(info.si_signo)) {
			runs->ended_by = info.si_signo;
			return false;
		}
	}
}

static void set_restart(unsigned restart)
{
	char *text = format_text("%u", restart);

	setenv("ZERO_RESTART", text, 1);
	free(text);
}

int launch_restarting(struct plan *plan, unsigned limit)
{
	struct runs runs = {.plan = plan, .limit = limit, .pause = 1};

	block_signals(&runs);
	for (;;) {
		time_t begin = time(NULL);
		int status;

		set_restart(runs.restart);
		status = run_once(&runs);
		if (is_final(&runs, status))
			return status;
		if (time(NULL) - begin >= SHORT_RUN)
			runs.pause = 1;
		tell(&runs, status);
		if (runs.restart == limit)
			return status;
		if (!wait_a_little(&runs))
			return 128 + runs.ended_by;
		runs.pause = runs.pause < PAUSE_MAX ? 2 * runs.pause : PAUSE_MAX;
		runs.restart++;
	}
}
