/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watchdog. Without it a dead or stopped rank lets the others wait for ever, since neither MPI
 * nor a launcher's PMIx reports one. Each rank watches its neighbours in a ring, in the thread and
 * by the connections of the network. A connection that ends without a goodbye means a process that
 * is gone; a connection without heartbeats means a stopped process or a node that is down. The rank
 * that finds a lost peer asks all others what they are doing, prints one line and ends the job.
 */
#ifndef ZERO_WATCH_H
#define ZERO_WATCH_H

#include "job/job.h"

extern const struct zero_hooks zero_watch_hooks;

/* COLLECTIVE, once the options are agreed on. From now on lost ranks are found. */
zero_status zero_watch_start(zero_job *job);

/* The timeout of zero_open, while there is no watchdog yet: a thread ends the process when it
   expires. Local. It is set in job->open_timeout, where there is a launcher. */
void zero_open_timeout_start(zero_job *job);
/* Begins the time anew. NULL is a no-op. */
void zero_open_timeout_restart(struct zero_open_timeout *timeout);
/* Stops the thread and frees the timeout. NULL is a no-op. */
void zero_open_timeout_stop(struct zero_open_timeout *timeout);

/* Records which fatal signals have the default disposition; only those get handlers later.
   zero_open calls it before any other code of the job can install handlers. */
void zero_ring_record_default_signals(void);

#endif
