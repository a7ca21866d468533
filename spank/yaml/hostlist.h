/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slurm hostlists: "login,n[1-3,07],r[1-2]c[0-9]". Matched, never expanded: a range is not memory.
 */
#ifndef ZERO_HOSTLIST_H
#define ZERO_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the list is well formed; if not, *why is a clause that quotes what is wrong. */
bool zero_hostlist_check(const char *list, char *why, size_t size);
/* Whether `host` is in a well-formed list. Digits count as in Slurm: n[01-03] has n02, not n2. */
bool zero_hostlist_has(const char *list, const char *host);
/* The list's first host. False if the list is empty or malformed, or the name is cut. */
bool zero_hostlist_first(const char *list, char *host, size_t size);

#endif
