/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matches hosts against Slurm hostlists such as "login,n[1-3,07],r[1-2]c[0-9]". A list is never
 * expanded, so that a large range takes no memory.
 */
#ifndef ZERO_HOSTLIST_H
#define ZERO_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>

/* Returns whether the list is well formed; if not, *why is a clause that quotes the mistake. */
bool zero_hostlist_check(const char *list, char *why, size_t size);
/* Returns whether `host` is in a well-formed list. As in Slurm, n[01-03] has n02 but not n2. */
bool zero_hostlist_has(const char *list, const char *host);

#endif
