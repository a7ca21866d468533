/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel's life: from a listening socket to a farewell. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "private.h"

/* ---- processes that are forked from a rank --------------------------------------------------- */

/*
 * They would hold its connections open, and nobody would see it end. What they do with it fails.
 * There is no other way for a fork to find the sockets, hence this list.
 */
static struct zero_control *controls;
static pthread_mutex_t controls_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t guarded = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&controls_lock);
	for (struct zero_control *control = controls; control; control = control->next)
		pthread_mutex_lock(&control->lock);
}

static void after_fork(void)
{
	for (struct zero_control *control = controls; control; control = control->next)
		pthread_mutex_unlock(&control->lock);
	pthread_mutex_unlock(&controls_lock);
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void in_forked(void)
{
	for (struct zero_control *control = controls; control; control = control->next) {
		shut(&control->listener);
		shut(&control->wakeup);
		shut(&control->connecting);
		for (struct zero_link *link = control->links; link; link = link->next)
			shut(&link->fd);
		zero_control_free_strangers(control);
		control->forked = true;
		if (!atomic_load(&control->broken)) {
			control->broken_rank = control->config.rank;
			snprintf(control->broken_text, sizeof(control->broken_text),
				 "a process that was forked from rank %d is no rank",
				 control->config.rank);
			atomic_store(&control->broken, true);
		}
	}
	after_fork();
}

static void guard_forks(void)
{
	pthread_atfork(before_fork, after_fork, in_forked);
}

static void remember(struct zero_control *control)
{
	pthread_once(&guarded, guard_forks);
	pthread_mutex_lock(&controls_lock);
	control->next = controls;
	controls = control;
	pthread_mutex_unlock(&controls_lock);
}

static void forget(struct zero_control *control)
{
	struct zero_control **at = &controls;

	pthread_mutex_lock(&controls_lock);
	while (*at != control)
		at = &(*at)->next;
	*at = control->next;
	pthread_mutex_unlock(&controls_lock);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static struct zero_control *new_control(void)
{
	struct zero_control *control = calloc(1, sizeof(*control));
	pthread_condattr_t monotonic;

	if (!control)
		return NULL;
	pthread_mutex_init(&control->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&control->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	control->listener = control->wakeup = control->connecting = -1;
	remember(control);
	return control;
}

zero_status zero_control_listen(struct zero_control **control, struct zero_address *own)
{
	struct zero_control *made = new_control();
	zero_status status = ZERO_OK;
	char why[256];

	if (!made)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the control channel");
	gethostname(made->own.node, sizeof(made->own.node) - 1);
	made->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (made->wakeup < 0 || getrandom(made->own.cookie, sizeof(made->own.cookie), 0) !=
					(ssize_t)sizeof(made->own.cookie))
		status =
			zero_core->fail(ZERO_E_COMM, "cannot begin to listen: %s", strerror(errno));
	else if (!zero_address_listen(&made->listener, &made->own, why, sizeof(why)))
		status = zero_core->fail(ZERO_E_COMM, "%s", why);
	if (status) {
		zero_control_close(made);
		return status;
	}
	*own = made->own;
	*control = made;
	return ZERO_OK;
}

static zero_status join_all(struct zero_control *control)
{
	size_t world = (size_t)control->config.world;
	int *ranks = malloc(world * sizeof(*ranks));
	zero_status status;

	if (!ranks)
		return zero_control_give_up(control, control->config.rank,
					    "rank %d has no memory for a list of %zu ranks",
					    control->config.rank, world);
	for (size_t i = 0; i < world; i++)
		ranks[i] = (int)i;
	status = zero_control_team_new(control, ranks, world, &control->all);
	free(ranks);
	return status;
}

zero_status zero_control_join(struct zero_control *control,
			      const struct zero_control_config *config)
{
	struct zero_address root = control->own;
	zero_status status = ZERO_OK;

	if (control->joined)
		return zero_core->fail(ZERO_E_STATE, "ranks join twice");
	if (config->world < 1 || config->rank < 0 || config->rank >= config->world)
		return zero_core->fail(ZERO_E_INVALID, "rank %d of %d joins", config->rank,
				       config->world);
	if (config->rank)
		status = config->address(config->context, 0, &root);
	if (status)
		return status;
	memcpy(control->cookie, root.cookie, sizeof(control->cookie));
	control->config = *config;
	if (config->world == 1)
		shut(&control->listener);
	status = zero_control_start_reader(control);
	if (status)
		return status;
	control->joined = true;
	return join_all(control);
}

struct zero_control_team *zero_control_all(struct zero_control *control)
{
	return control->all;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* With the lock. Whether a neighbour's kernel has all that was said to it. */
static bool delivered(const struct zero_link *link)
{
	int left = 0;

	return link->fd < 0 || link->mute ||
	       (!link->out.first && (ioctl(link->fd, SIOCOUTQ, &left) || !left));
}

static bool all_delivered(struct zero_control *control)
{
	bool all = true;

	pthread_mutex_lock(&control->lock);
	for (const struct zero_link *link = control->links; link; link = link->next)
		all &= delivered(link);
	pthread_mutex_unlock(&control->lock);
	return all;
}

/*
 * A socket that is closed before its farewell has arrived may take that back, and the neighbour
 * would think that this rank is gone. Kernels take it at once, whatever their ranks do; a node that
 * is no more has a few seconds.
 */
static void say_farewell(struct zero_control *control)
{
	static const struct zero_frame_header bye = {.kind = ZERO_FRAME_BYE};
	double until = zero_seconds();
	useconds_t pause = 20;

	pthread_mutex_lock(&control->lock);
	control->closing = true;
	for (struct zero_link *link = control->links; link; link = link->next)
		zero_link_post(link, &bye, NULL);
	pthread_mutex_unlock(&control->lock);
	until += atomic_load(&control->broken) ? 1 : 5;
	while (!all_delivered(control) && zero_seconds() < until) {
		usleep(pause);
		pause = pause < 1000 ? 2 * pause : 1000;
	}
}

static void stop_reader(struct zero_control *control)
{
	pthread_mutex_lock(&control->lock);
	control->stopping = true;
	zero_control_wake(control);
	pthread_mutex_unlock(&control->lock);
	pthread_join(control->reader, NULL);
}

void zero_control_close(struct zero_control *control)
{
	if (!control)
		return;
	if (control->reading && !control->forked) {
		say_farewell(control);
		stop_reader(control);
	}
	forget(control);
	shut(&control->listener);
	shut(&control->wakeup);
	shut(&control->connecting);
	zero_control_free_strangers(control);
	while (control->links) {
		struct zero_link *link = control->links;

		control->links = link->next;
		zero_link_free(link);
	}
	while (control->teams) {
		struct zero_control_team *team = control->teams;

		control->teams = team->next;
		zero_control_free_team(team);
	}
	/* The threads that a forked process lacks may have waited. */
	if (!control->forked)
		pthread_cond_destroy(&control->changed);
	pthread_mutex_destroy(&control->lock);
	free(control);
}
