/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of test_watch share: a clock that stands still until the test advances it. */
#ifndef ZERO_WATCH_TEST_H
#define ZERO_WATCH_TEST_H

#include "net/net_internal.h"
#include "watch/watch_internal.h"
#include "unit.h"

/* Nanoseconds, which forked processes share. The library and the C library's clock_gettime() get
   them; a test on a busy machine has all the time that it needs. */
extern _Atomic uint64_t *watch_time;

void advance_clock(double seconds);
/* A ring of processes, with threads and real connections. */
void add_process_tests(TCase *tcase);

#endif
