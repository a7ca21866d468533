/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the control plane: the listening socket, the first team, the goodbye. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "private.h"

/* ---- opening --------------------------------------------------------------------------------- */

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
	zero_control_register(control);
	return control;
}

zero_status zero_control_listen(struct zero_control **control, struct zero_address *own)
{
	struct zero_control *made = new_control();
	zero_status status = ZERO_OK;
	char why[256];

	if (!made)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the control connections");
	gethostname(made->own.node, sizeof(made->own.node) - 1);
	made->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (made->wakeup < 0 || getrandom(made->own.cookie, sizeof(made->own.cookie), 0) !=
					(ssize_t)sizeof(made->own.cookie))
		status = zero_core->fail(ZERO_E_COMM, "cannot listen for control connections: %s",
					 strerror(errno));
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

static zero_status join_world(struct zero_control *control)
{
	size_t world = (size_t)control->config.world;
	int *ranks = malloc(world * sizeof(*ranks));
	zero_status status;

	if (!ranks)
		return zero_control_fail_all_printf(control, control->config.rank,
						    "rank %d has no memory for a list of %zu ranks",
						    control->config.rank, world);
	for (size_t i = 0; i < world; i++)
		ranks[i] = (int)i;
	status = zero_control_team_new(control, ranks, world, &control->world_team);
	free(ranks);
	return status;
}

zero_status zero_control_join(struct zero_control *control,
			      const struct zero_control_config *config)
{
	struct zero_address root = control->own;
	zero_status status = ZERO_OK;

	if (control->joined)
		return zero_core->fail(ZERO_E_STATE, "the ranks have joined already");
	if (config->world < 1 || config->rank < 0 || config->rank >= config->world)
		return zero_core->fail(ZERO_E_INVALID, "rank %d is not one of %d ranks",
				       config->rank, config->world);
	if (config->rank)
		status = config->address(config->context, 0, &root);
	if (status)
		return status;
	memcpy(control->cookie, root.cookie, sizeof(control->cookie));
	control->config = *config;
	if (config->world == 1)
		zero_control_close_fd(&control->listener);
	status = zero_control_start_reader(control);
	if (status)
		return status;
	control->joined = true;
	return join_world(control);
}

struct zero_control_team *zero_control_world_team(struct zero_control *control)
{
	return control->world_team;
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Called with the lock held. Whether the neighbour's kernel has acknowledged all that was sent. */
static bool delivered(const struct zero_link *link)
{
	int unacknowledged = 0;

	return link->fd < 0 || link->write_closed ||
	       (!link->out.first &&
		(ioctl(link->fd, SIOCOUTQ, &unacknowledged) || !unacknowledged));
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
 * Closing a socket may discard a goodbye that has not arrived, and the neighbour would report this
 * rank as lost. Kernels acknowledge at once, whatever their ranks do. The limit is for a node that
 * is down.
 */
static void send_goodbye(struct zero_control *control)
{
	static const struct zero_frame_header goodbye = {.kind = ZERO_FRAME_GOODBYE};
	double until = zero_seconds();
	useconds_t pause = 20;

	pthread_mutex_lock(&control->lock);
	control->closing = true;
	for (struct zero_link *link = control->links; link; link = link->next)
		zero_link_send(link, &goodbye, NULL);
	pthread_mutex_unlock(&control->lock);
	until += atomic_load(&control->failed) ? 1 : 5;
	while (!all_delivered(control) && zero_seconds() < until) {
		usleep(pause);
		pause = pause < 1000 ? 2 * pause : 1000;
	}
}

static void stop_reader(struct zero_control *control)
{
	pthread_mutex_lock(&control->lock);
	control->stopping = true;
	zero_control_wake_reader(control);
	pthread_mutex_unlock(&control->lock);
	pthread_join(control->reader, NULL);
}

void zero_control_close(struct zero_control *control)
{
	if (!control)
		return;
	if (control->reading && !control->forked) {
		send_goodbye(control);
		stop_reader(control);
	}
	zero_control_unregister(control);
	zero_control_close_fd(&control->listener);
	zero_control_close_fd(&control->wakeup);
	zero_control_close_fd(&control->connecting);
	zero_control_reject_pending(control, INFINITY);
	while (control->links) {
		struct zero_link *link = control->links;

		control->links = link->next;
		zero_link_free(link);
	}
	while (control->teams) {
		struct zero_control_team *team = control->teams;

		control->teams = team->next;
		zero_control_team_free(team);
	}
	/* In a forked process threads that no longer exist may seem to wait for it. */
	if (!control->forked)
		pthread_cond_destroy(&control->changed);
	pthread_mutex_destroy(&control->lock);
	free(control);
}
