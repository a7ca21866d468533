/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --max-restarts: mpirun or srun is a child, which is started again when the job has failed, unless
 * a signal to zerorun ended the job. In an allocation of Slurm it is started again without the
 * nodes that are lost.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/clock.h"
#include "launcher/launch/launch.h"
#include "launcher/recover/listen.h"

/* The pause grows to PAUSE_MAX seconds where the job fails within SHORT_RUN seconds each time. */
enum { PAUSE_MAX = 32, SHORT_RUN = 60 };
/* In seconds. When a rank gives notice that the job ends, zerorun looks for lost nodes, for which
   srun would wait; again and again, since a node may be lost later. srun gets a while to print what
   is left before it is killed. */
#define GRACE      0.5
#define LOOK_AGAIN 2.0

struct restarts {
	struct plan *plan;
	unsigned limit, restart; /* of restarts; which one this is */
	sigset_t waited;         /* signals to wait for; they are blocked all the time */
	sigset_t before;         /* the signals that were blocked before */
	int ended_by;            /* the signal by which a user ended it; 0: none */
	unsigned pause;
	int signals;               /* delivers them, see signalfd(2) */
	struct recovery *recovery; /* NULL: nodes cannot be replaced */
	struct listener listener;
	double noticed_at; /* the notice that the attempt ends, or the end of its srun; 0: none */
	double look_at;    /* when to look for lost nodes; 0: not yet */
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
	restarts->signals = signalfd(-1, &restarts->waited, SFD_CLOEXEC | SFD_NONBLOCK);
	if (restarts->signals < 0) {
		print_error("signals cannot be waited for: %s", strerror(errno));
		exit(EXIT_FAILURE);
	}
}

static bool ends_job(int number)
{
	return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

/*
 * The terminal sends its signals (Ctrl-C) to the launcher as well, which aborts at once on a second
 * one. Signals of the terminal come from the kernel; others come from a process, to zerorun alone.
 */
static void forward(struct restarts *restarts, pid_t child, const struct signalfd_siginfo *info)
{
	int number = (int)info->ssi_signo;

	if (ends_job(number))
		restarts->ended_by = number;
	if (info->ssi_code != SI_KERNEL)
		kill(child, number);
}

/* srun does not end by itself if a node is lost. Only SIGKILL ends it at once. */
static void end_srun(struct restarts *restarts, pid_t child)
{
	double now = zero_seconds(), until = restarts->noticed_at + GRACE;

	if (!restarts->look_at || now < restarts->look_at)
		return;
	restarts->look_at = now + LOOK_AGAIN;
	if (!recovery_has_loss(restarts->recovery))
		return;
	if (zero_seconds() >= until)
		kill(child, SIGKILL);
	else
		restarts->look_at = until;
}

static void read_notices(struct restarts *restarts)
{
	struct zero_loss_notice notice;

	if (listen_read(&restarts->listener, (int)restarts->restart, &notice) &&
	    !restarts->noticed_at) {
		restarts->recovery->notice = notice;
		restarts->noticed_at = restarts->look_at = zero_seconds();
	}
}

/* Waits for a signal or a notice, and acts on it. */
static void wait_for_event(struct restarts *restarts, pid_t child)
{
	struct pollfd fds[2 + LISTEN_PENDING] = {{.fd = restarts->signals, .events = POLLIN}};
	nfds_t count = 1;
	int wait_ms = -1;
	struct signalfd_siginfo info;

	if (restarts->recovery)
		count += listen_fds(&restarts->listener, fds + 1);
	if (restarts->look_at) {
		double left = restarts->look_at - zero_seconds();

		wait_ms = left > 0 ? (int)(1e3 * left) + 1 : 0;
	}
	poll(fds, count, wait_ms);
	while (read(restarts->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
		if (info.ssi_signo != SIGCHLD)
			forward(restarts, child, &info);
	if (!restarts->recovery)
		return;
	read_notices(restarts);
	end_srun(restarts, child);
}

static int exit_status(int ended)
{
	return WIFSIGNALED(ended) ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
}

/* Runs the launcher once. Returns the exit status of a shell. */
static int run_once(struct restarts *restarts)
{
	pid_t self = getpid(), child = fork();
	int ended = 0;

	restarts->noticed_at = restarts->look_at = 0;
	if (restarts->recovery)
		restarts->recovery->notice = (struct zero_loss_notice){.step = ZERO_NO_STEP};
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
		wait_for_event(restarts, child);
	if (!restarts->noticed_at)
		restarts->noticed_at = zero_seconds();
	/* some flags of srun make it end with 0 though a node is lost */
	if (restarts->look_at && !ended)
		return EXIT_FAILURE;
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
static bool pause_before_restart(struct restarts *restarts, unsigned seconds)
{
	const double end = zero_seconds() + seconds;
	siginfo_t info;

	for (;;) {
		double left = end - zero_seconds();
		struct timespec wait = {.tv_sec = left > 0 ? (time_t)left : 0};
		int number;

		if (left > 0)
			wait.tv_nsec = (long)(1e9 * (left - (double)wait.tv_sec));
		number = sigtimedwait(&restarts->waited, &info, &wait);
		if (number > 0 && ends_job(number)) {
			restarts->ended_by = number;
			return false;
		}
		if (number < 0 && left <= 0)
			return true;
	}
}

static void set_restart(unsigned restart)
{
	char *text = format_text("%u", restart);

	setenv("ZERO_RESTART", text, 1);
	free(text);
}

/* After the loss of nodes. Returns false if the job does not go on. */
static bool restart_without_nodes(struct restarts *restarts, double began, int status)
{
	struct recovery *recovery = restarts->recovery;

	recovery_print_loss(recovery, restarts->noticed_at - began);
	if (restarts->restart == restarts->limit) {
		print_outcome(restarts, status);
		return false;
	}
	if (!recovery_continue(recovery) || !pause_before_restart(restarts, 0))
		return false;
	restarts->restart++;
	print_error("the job continues with %u rank%s on %s: restart %u of %u, %.2f s after %s",
		    recovery->ranks, recovery->ranks > 1 ? "s" : "", recovery->names,
		    restarts->restart, restarts->limit, zero_seconds() - restarts->noticed_at,
		    restarts->look_at ? "the notice" : "its end");
	return true;
}

static bool restart_as_before(struct restarts *restarts, double began, int status)
{
	if (zero_seconds() - began >= SHORT_RUN)
		restarts->pause = 1;
	print_outcome(restarts, status);
	if (restarts->restart == restarts->limit ||
	    !pause_before_restart(restarts, restarts->pause))
		return false;
	restarts->pause = restarts->pause < PAUSE_MAX ? 2 * restarts->pause : PAUSE_MAX;
	restarts->restart++;
	return true;
}

/* Runs the job until it does not go on. Returns the exit status. */
static int run_attempts(struct restarts *restarts)
{
	for (;;) {
		double began = zero_seconds();
		bool again;
		int status;

		set_restart(restarts->restart);
		status = run_once(restarts);
		if (is_final(restarts, status))
			return status;
		if (restarts->recovery && recovery_has_loss(restarts->recovery))
			again = restart_without_nodes(restarts, began, status);
		else
			again = restart_as_before(restarts, began, status);
		if (!again)
			return restarts->ended_by ? 128 + restarts->ended_by : status;
	}
}

int launch_restarting(struct plan *plan, unsigned limit, struct recovery *recovery)
{
	struct restarts restarts = {.plan = plan, .limit = limit, .pause = 1, .recovery = recovery};
	int status;

	block_signals(&restarts);
	if (recovery)
		listen_begin(&restarts.listener, getenv("ZERO_RUN"));
	status = run_attempts(&restarts);
	if (recovery)
		listen_end(&restarts.listener);
	close(restarts.signals);
	return status;
}
