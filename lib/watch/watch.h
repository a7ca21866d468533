/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watchdog. Without it a dead or stopped rank lets the others wait for ever, since neither MPI
 * nor a launcher's PMIx reports one. Each rank has a thread and two TCP connections, to its
 * neighbours in a ring. A connection that ends without a goodbye means a process that is gone; a
 * connection without heartbeats means a stopped process or a node that is down. The rank that finds
 * a lost peer asks all others what they are doing, prints one line and ends the job.
 */
#ifndef ZERO_WATCH_H
#define ZERO_WATCH_H

/* Records which fatal signals have the default disposition; only those get handlers later.
   zero_open calls it before any other code of the job can install handlers. */
void zero_ring_record_default_signals(void);

#endif
