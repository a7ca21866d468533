/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring whose ranks are all in this process. Each has the connections that it would have, and
 * takes turns; time passes only when no rank has anything left to do.
 */
#ifndef ZERO_WATCH_RING_H
#define ZERO_WATCH_RING_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "watch_test.h"

enum { MOST = 200, FOREVER = 1000000 /* s */ };

/* ---- time ------------------------------------------------------------------------------------ */

_Atomic uint64_t *watch_time;

/* These are called by the library instead of those of the C library. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	uint64_t time = watch_time && clock == CLOCK_MONOTONIC ? atomic_load(watch_time) : 0;

	if (!time)
		return (int)syscall(SYS_clock_gettime, clock, now);
	*now = (struct timespec){.tv_sec = (time_t)(time / 1000000000u),
				 .tv_nsec = (long)(time % 1000000000u)};
	return 0;
}

void advance_clock(double seconds)
{
	atomic_fetch_add(watch_time, (uint64_t)(1e9 * seconds) + 1);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static struct rank {
	struct zero_ring *ring;
	struct zero_activity activity;
	double began_at; /* when its operation began or ended */
	double wake_at;  /* when its next turn is due */
	double held_until;
	bool gone;                              /* its process has ended */
	char deadlock[ZERO_RING_MESSAGE_BYTES]; /* what it was told */
} ranks[MOST];

static struct rank *turning; /* whose turn it is */
static int world, lines_fd;
static atomic_int aborts;
static char text[16384]; /* what ranks have printed */
static pid_t stand_in;   /* a child that is in the state that the victim's process would be in */
static pid_t killed;     /* the process that a rank has killed */

struct trial {
	int world, victim;
	double timeout, stall; /* 0: 5 s, never */
	bool elsewhere;        /* each rank is on a node of its own */
	bool returns;          /* faults are recorded, and do not end the job */
};

static void get_activity(void *context, struct zero_activity *activity)
{
	const struct rank *one = context;

	*activity = one->activity;
	activity->seconds = (float)(zero_seconds() - one->began_at);
}

static void end_deadlock(void *context, int rank, const char *message)
{
	struct rank *one = context;

	ck_assert_int_eq(rank, 1);
	snprintf(one->deadlock, sizeof(one->deadlock), "%s", message);
}

static void abort_job(void *context, const char *message)
{
	(void)context;
	if (strstr(message, "rank"))
		atomic_fetch_add(&aborts, 1);
}

/* A process that has ended loses its connections. */
static void end_process(struct rank *one)
{
	one->gone = true;
	for (struct zero_link *link = one->ring->net->links; link; link = link->next)
		zero_net_close_fd(&link->fd);
}

static void turn(struct rank *one)
{
	int wait_ms;

	turning = one;
	wait_ms = zero_net_poll(one->ring->net, 0);
	turning = NULL;
	one->wake_at = zero_seconds() + 1e-3 * wait_ms;
	if (one->gone)
		end_process(one);
}

/* A rank that is not ended by the launcher kills itself. */
int kill(pid_t pid, int number)
{
	if (!turning || pid != getpid()) {
		killed = pid;
		return (int)syscall(SYS_kill, pid, number);
	}
	turning->gone = true;
	return 0;
}

static bool is_held(const struct rank *one)
{
	return one->gone || one->held_until > zero_seconds();
}

/* Gives each rank a turn that has something to read or to send, or whose time has come. */
static bool take_turns(void)
{
	struct pollfd polls[2 * MOST];
	bool any = false;
	int first = rand() % world;

	for (int i = 0; i < 2 * world; i++) {
		const struct rank *one = &ranks[i / 2];
		const struct zero_link *link;

		polls[i] = (struct pollfd){.fd = -1, .events = POLLIN};
		if (is_held(one))
			continue;
		link = one->ring->net->links;
		if (i % 2 && link)
			link = link->next;
		if (!link)
			continue;
		polls[i].fd = link->fd;
		if (link->out_bytes)
			polls[i].events |= POLLOUT;
	}
	poll(polls, (nfds_t)(2 * world), 0);
	for (int i = 0; i < world; i++) {
		int at = (first + i) % world;
		struct rank *one = &ranks[at];

		if (is_held(one) || (!polls[2 * at].revents && !polls[2 * at + 1].revents &&
				     one->wake_at > zero_seconds()))
			continue;
		turn(one);
		any = true;
	}
	return any;
}

/* Lets this time pass, but no more of it than until ranks have printed something. */
static void pass_until_line(double seconds)
{
	double until = zero_seconds() + seconds;
	size_t have = strlen(text);

	while (strlen(text) == have) {
		double next = until;
		ssize_t got;

		while (take_turns())
			continue;
		got = read(lines_fd, text + have, sizeof(text) - 1 - have);
		text[have + (size_t)(got > 0 ? got : 0)] = '\0';
		if (got > 0 || zero_seconds() >= until)
			return;
		for (int i = 0; i < world; i++) {
			const struct rank *one = &ranks[i];
			double at = one->held_until > one->wake_at ? one->held_until : one->wake_at;

			if (!one->gone && at < next)
				next = at;
		}
		advance_clock(next > zero_seconds() ? next - zero_seconds() : 0);
	}
}

static void pass(double seconds)
{
	double until = zero_seconds() + seconds;

	while (zero_seconds() < until)
		pass_until_line(until - zero_seconds());
}

/* ---- a ring ---------------------------------------------------------------------------------- */

static void describe(struct zero_ring_peer *peer, const struct trial *trial, int rank)
{
	zero_ring_describe(ranks[rank].ring, peer);
	peer->default_signals |= UINT32_C(1) << SIGSEGV; /* which a sanitizer handles itself */
	if (trial->elsewhere)
		snprintf(peer->address.node, sizeof(peer->address.node), "node%d", rank);
	if (!trial->elsewhere && rank == trial->victim && stand_in) {
		peer->pid = stand_in;
		peer->start_time = zero_process_start_time(stand_in);
	}
}

static struct zero_link *new_link(struct rank *one, int fd, int rank)
{
	int bytes = 1;
	struct zero_link *link = zero_link_new(one->ring->net, fd, rank, "node");

	ck_assert(link != NULL);
	/* The least that there is, so that frames are sent and received in pieces. */
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	link->confirmed = true;
	return link;
}

static void connect_ranks(void)
{
	for (int rank = 0; rank < (world == 2 ? 1 : world); rank++) {
		struct rank *one = &ranks[rank], *next = &ranks[(rank + 1) % world];
		int ends[2], side = world == 2 ? ZERO_PREV : ZERO_NEXT;

		ck_assert(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
		one->ring->link[side].to = new_link(one, ends[0], (rank + 1) % world);
		next->ring->link[ZERO_PREV].to = new_link(next, ends[1], rank);
	}
}

static void begin(const struct trial *trial)
{
	static struct zero_ring_peer all[MOST];
	size_t count = (size_t)trial->world;
	int ends[2];

	world = trial->world;
	text[0] = '\0';
	killed = 0;
	atomic_store(&aborts, 0);
	ck_assert(!pipe2(ends, O_NONBLOCK | O_CLOEXEC));
	lines_fd = ends[0];
	memset(ranks, 0, sizeof(ranks));
	for (int rank = 0; rank < world; rank++) {
		struct zero_ring *ring = ranks[rank].ring = zero_ring_new(zero_net_new());

		ck_assert(ring != NULL);
		describe(&all[rank], trial, rank);
		ring->own = all[rank];
		ranks[rank].activity = (struct zero_activity){.operation = 7, .running = 1};
		strcpy(ranks[rank].activity.label, "gather of group 'g'");
		ranks[rank].began_at = zero_seconds();
	}
	for (int rank = 0; rank < world; rank++) {
		struct zero_ring *ring = ranks[rank].ring;

		ring->config = (struct zero_ring_config){
			.rank = rank,
			.world = world,
			.heartbeat_timeout = trial->timeout > 0 ? trial->timeout : 5,
			.stall_timeout = trial->stall,
			.aborts = !trial->returns,
			.get_activity = get_activity,
			.end_deadlock = end_deadlock,
			.abort_job = abort_job,
			.context = &ranks[rank],
			.out_fd = ends[1]};
		ring->all = malloc(count * sizeof(*all));
		ring->inquiry.activity = calloc(count, sizeof(*ring->inquiry.activity));
		ring->inquiry.replied = calloc(count, sizeof(bool));
		ring->inquiry.listed = calloc(count, sizeof(int));
		memcpy(ring->all, all, count * sizeof(*all));
		ring->link[ZERO_PREV].rank = (rank + world - 1) % world;
		ring->link[ZERO_NEXT].rank = (rank + 1) % world;
		for (int i = 0; i < 2; i++) {
			const struct zero_ring_peer *peer = &all[ring->link[i].rank];

			ring->link[i].received_at = zero_seconds();
			if (zero_ring_is_local(ring, peer))
				ring->oom[i] = zero_oom_open((pid_t)peer->pid);
		}
		ring->due_at = ring->next_heartbeat_at = zero_seconds();
		ring->link[ZERO_NEXT].state = world == 2 ? ZERO_PEER_CLOSED : ZERO_PEER_ALIVE;
		zero_net_ops.attach(ring->net, &ring->user);
		atomic_store(&ring->watching, true);
	}
	connect_ranks();
	pass(3);
	ck_assert_str_eq(text, "");
}

static void close_both(struct zero_ring *ring)
{
	struct zero_net *net = ring->net;

	ck_assert(zero_ring_close(ring));
	zero_net_close(net);
}

/* Lines about a lost rank; each is of one abort. */
static int count_lines(void)
{
	int count = 0;

	for (const char *at = text; (at = strstr(at, "; ending the job\n")); at++)
		count++;
	return count;
}

static void finish(void)
{
	int lines = count_lines();

	/* Each is called in a thread. */
	while (atomic_load(&aborts) < lines)
		sched_yield();
	ck_assert_int_eq(atomic_load(&aborts), lines);
	for (int rank = 0; rank < world; rank++) {
		if (!ranks[rank].ring)
			continue;
		ranks[rank].ring->config.aborts = false;
		end_process(&ranks[rank]);
		close_both(ranks[rank].ring);
	}
	close(lines_fd);
	if (stand_in) {
		syscall(SYS_kill, stand_in, SIGKILL);
		waitpid(stand_in, NULL, 0);
		stand_in = 0;
	}
}

/* All ranks that are left know of the fault. */
static void check_faults(const struct trial *trial)
{
	char fault[600];
	int about = -1;

	for (int rank = 0; rank < world; rank++) {
		if (ranks[rank].gone || ranks[rank].held_until > zero_seconds())
			continue;
		ck_assert_msg(zero_ring_fault(ranks[rank].ring, fault, sizeof(fault), &about),
			      "rank %d knows of no fault", rank);
		ck_assert(about == trial->victim || trial->stall > 0);
		ck_assert(atomic_load(&ranks[rank].ring->may_end) ||
			  !ranks[rank].ring->config.aborts);
		ck_assert_msg(strlen(fault) > 40 && (!*text || strstr(text, fault)), "%s", fault);
	}
}

/* One line about the victim comes so many seconds from now, and no other. */
static void expect(const struct trial *trial, double least, double most, const char *words)
{
	double began = zero_seconds(), took;
	char who[64];

	pass_until_line(most + 30);
	took = zero_seconds() - began;
	snprintf(who, sizeof(who), "zero: rank %d on node ", trial->victim);
	ck_assert_msg(!strncmp(text, who, strlen(who)), "%d ranks: no '%s' in: %s", world, who,
		      text);
	ck_assert_msg(strstr(text, words) != NULL, "no '%s' in: %s", words, text);
	ck_assert_msg(took > least - 0.001 && took < most, "after %g s: %s", took, text);
	pass(0.5);
	check_faults(trial);
	pass(10);
	ck_assert_msg(count_lines() == 1, "%d ranks: several lines: %s", world, text);
	/* No launcher has ended the ranks. */
	for (int rank = 0; rank < world; rank++)
		ck_assert_msg(is_held(&ranks[rank]), "rank %d is still there", rank);
	finish();
}

/* Nothing is printed in this time, but the loss of a rank is after it. */
static void expect_nothing(struct trial *trial, double seconds, int victim)
{
	pass(seconds);
	ck_assert_str_eq(text, "");
	trial->victim = victim;
	end_process(&ranks[victim]);
	expect(trial, 0, 2, "");
}

/* ---- processes that end or stop -------------------------------------------------------------- */

/* The child runs, is stopped or, with another signal or none, has died of it or called _exit(3). */
static void be_process(int number)
{
	struct zero_process found = {.state = 0};
	siginfo_t info;

	stand_in = fork();
	if (!stand_in) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (number == SIGCONT)
			for (;;)
				pause();
		if (number)
			signal(number, SIG_DFL);
		syscall(SYS_kill, getpid(), number);
		_exit(3);
	}
	ck_assert_int_gt(stand_in, 0);
	if (number != SIGCONT)
		ck_assert(!waitid(P_PID, (id_t)stand_in, &info, WEXITED | WSTOPPED | WNOWAIT));
	/* On a busy machine it comes to its pause late. */
	for (; number == SIGCONT && found.state != 'S'; usleep(100))
		ck_assert(zero_process_read(stand_in, zero_process_start_time(stand_in), &found));
}

#endif
