/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process forked from a rank would hold the rank's connections open, so that neighbours would not
 * see them end with the rank. Its copies of the sockets are therefore closed, and its calls fail.
 * The handlers of pthread_atfork have no argument and find the sockets through a list.
 */
#include <math.h>
#include <stdio.h>

#include "private.h"

static struct zero_control *controls;
static pthread_mutex_t controls_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t handlers_installed = PTHREAD_ONCE_INIT;

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

static void in_child(void)
{
	for (struct zero_control *control = controls; control; control = control->next) {
		zero_control_close_fd(&control->listener);
		zero_control_close_fd(&control->wakeup);
		zero_control_close_fd(&control->connecting);
		for (struct zero_link *link = control->links; link; link = link->next)
			zero_control_close_fd(&link->fd);
		zero_control_reject_pending(control, INFINITY);
		control->forked = true;
		if (!atomic_load(&control->failed)) {
			control->failed_status = ZERO_E_COMM;
			control->failed_rank = control->config.rank;
			snprintf(control->failure_text, sizeof(control->failure_text),
				 "a process that was forked from rank %d is no rank",
				 control->config.rank);
			atomic_store(&control->failed, true);
		}
	}
	after_fork();
}

static void install_handlers(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

void zero_control_register(struct zero_control *control)
{
	pthread_once(&handlers_installed, install_handlers);
	pthread_mutex_lock(&controls_lock);
	control->next = controls;
	controls = control;
	pthread_mutex_unlock(&controls_lock);
}

void zero_control_unregister(struct zero_control *control)
{
	struct zero_control **at = &controls;

	pthread_mutex_lock(&controls_lock);
	while (*at != control)
		at = &(*at)->next;
	*at = control->next;
	pthread_mutex_unlock(&controls_lock);
}
