/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of tests/ranks/order.ranks share. */
#ifndef ZERO_TESTS_ORDER_H
#define ZERO_TESTS_ORDER_H

#include "ranks.h"

extern int world, rank, last; /* last: the last rank */

/* Every call of a job after ZERO_E_ORDER fails at once, except zero_close. */
void close_broken(zero_job *job);

/* Cases of order_job.c */
void descriptions(void);
void wrong_descriptions(void);
void other_options(void);
void origins(void);

#endif
