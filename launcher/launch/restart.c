/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --max-restarts: mpirun or srun is a child, which is started again when the job has failed, unless
 * a signal to zerorun ended the job.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/clock.h"
#include "launcher/launch/launch.h"

/* The pause grows to PAUSE_MAX seconds where the job fails within SHORT_RUN seconds each time. */
enum { PAUSE_MAX = 32, SHORT_RUN = 60 };

struct restarts {
	struct plan *plan;
	unsigned limit, restart; /* of restarts; which one this is */
	sigset_t waited;         /* signals to wait for; they are blocked all the time */
	sigset_t before;         /* the signals that were blocked before */
	int ended_by;            /* the signal by which a user ended it; 0: none */
	unsigned pause;
};

/* A signal that was ignored when zerorun was started, as by nohup, stays ignored. */
static bool is_ignored(int number)
{
	struct sigaction now;

	return !sigaction(number, NULL, &now) && now.sa_handler == SIG_IGN;
}

static void block_signals(struct restarts *restarts)
{
	static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
	sigset_t blocked;

	signal(SIGCHLD, SIG_DFL);
	sigemptyset(&restarts->waited);
	sigaddset(&restarts->waited, SIGCHLD);
	for (size_t i = 0; i < sizeof forwarded / sizeof forwarded[0]; i++)
		/* mpirun must not get SIGQUIT, see launch() */
		if (!is_ignored(forwarded[i]) &&
		    (forwarded[i] != SIGQUIT || restarts->plan->is_srun))
			sigaddset(&restarts->waited, forwarded[i]);
	blocked = restarts->waited;
	sigaddset(&blocked, SIGQUIT);
	sigprocmask(SIG_BLOCK, &blocked, &restarts->before);
}

static bool ends_job(int number)
{
	return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

/*
 * The terminal sends its signals (Ctrl-C) to the launcher as well, which aborts at once on a second
 * one. Signals of the terminal come from the kernel; others come from a process, to zerorun alone.
 */
static void forward(struct restarts *restarts, pid_t child, const siginfo_t *info)
{
	if (ends_job(info->si_signo))
		restarts->ended_by = info->si_signo;
	if (info->si_code != SI_KERNEL)
		kill(child, info->si_signo);
}

static int exit_status(int ended)
{
	return WIFSIGNALED(ended) ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
}

/* Runs the launcher once. Returns the exit status of a shell. */
static int run_once(struct restarts *restarts)
{
	pid_t self = getpid(), child = fork();
	siginfo_t info;
	int ended = 0;

	if (child < 0) {
		print_error("the launcher cannot be started: %s", strerror(errno));
		return EXIT_FAILURE;
	}
	if (child == 0) {
		/* the launcher ends with zerorun, even if that is killed */
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		if (getppid() != self)
			_exit(EXIT_FAILURE);
		sigprocmask(SIG_SETMASK, &restarts->before, NULL);
		_exit(launch(restarts->plan));
	}
	while (waitpid(child, &ended, WNOHANG) == 0)
		if (sigwaitinfo(&restarts->waited, &info) > 0 && info.si_signo != SIGCHLD)
			forward(restarts, child, &info);
	return exit_status(ended);
}

/* The exit status of a job that was asked to stop, has saved and can go on. */
static bool wants_restart(int status)
{
	return status == EX_TEMPFAIL;
}

/* Whether another attempt would end in the same way, or is not wanted. */
static bool is_final(const struct restarts *restarts, int status)
{
	const char *job = getenv("SLURM_JOB_ID");

	if (!status || status == EXIT_USAGE || status == EXIT_NOT_EXECUTABLE ||
	    status == EXIT_NOT_FOUND || restarts->ended_by)
		return true;
	/* within an allocation, Slurm asked the job to stop, since the allocation ends: the batch
	   script requeues the job */
	return wants_restart(status) && job && *job;
}

static void print_outcome(const struct restarts *restarts, int status)
{
	char *how;

	if (wants_restart(status))
		how = format_text("the job has stopped and asks to be run again (status %d)",
				  status);
	else if (status > 128 && status < 128 + NSIG)
		how = format_text("the job was ended by signal %d, %s (status %d)", status - 128,
				  strsignal(status - 128), status);
	else
		how = format_text("the job ended with status %d", status);
	if (restarts->restart < restarts->limit)
		print_error("%s: restart %u of %u in %u s", how, restarts->restart + 1,
			    restarts->limit, restarts->pause);
	else
		print_error("%s: --max-restarts=%u allows no more restarts", how, restarts->limit);
	free(how);
}

/* False if a signal ended the pause. Signals that do not end a job are dropped: none is running. */
static bool pause_before_restart(struct restarts *restarts)
{
	const double end = zero_seconds() + restarts->pause;
	siginfo_t info;

	for (;;) {
		double left = end - zero_seconds();
		struct timespec wait = {.tv_sec = (time_t)left};

		if (left <= 0)
			return true;
		wait.tv_nsec = (long)(1e9 * (left - (double)wait.tv_sec));
		if (sigtimedwait(&restarts->waited, &info, &wait) > 0 && ends_job(info.si_signo)) {
			restarts->ended_by = info.si_signo;
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
	struct restarts restarts = {.plan = plan, .limit = limit, .pause = 1};

	block_signals(&restarts);
	for (;;) {
		double begin = zero_seconds();
		int status;

		set_restart(restarts.restart);
		status = run_once(&restarts);
		if (is_final(&restarts, status))
			return status;
		if (zero_seconds() - begin >= SHORT_RUN)
			restarts.pause = 1;
		print_outcome(&restarts, status);
		if (restarts.restart == limit)
			return status;
		if (!pause_before_restart(&restarts))
			return 128 + restarts.ended_by;
		restarts.pause = restarts.pause < PAUSE_MAX ? 2 * restarts.pause : PAUSE_MAX;
		restarts.restart++;
	}
}
