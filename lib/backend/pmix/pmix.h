/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of zero_pmix.so share. */
#ifndef ZERO_PMIX_PMIX_H
#define ZERO_PMIX_PMIX_H

/* PMIx 4 has functions in its header, with conversions that ours would not make. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <pmix.h>
#pragma GCC diagnostic pop
#include <stdbool.h>

#include "backend/bootstrap.h"
#include "core/clock.h"

/* A value that this rank has put. Other ranks get it from PMIx, this rank from here. */
struct zero_pmix_value {
	struct zero_pmix_value *next;
	void *data;
	size_t bytes;
	bool fenced; /* there was a fence since */
	char key[];
};

/* The module's state; one for the process. */
struct zero_pmix_state {
	bool open;
	bool has_server; /* false: this rank is alone */
	struct zero_bootstrap_place place;
	pmix_proc_t self;
	int *local_ranks; /* [place.local_world], ascending */
	/* Both are part of every key, since PMIx never forgets one. They are not reset by close. */
	unsigned opens, fences;
	struct zero_pmix_value *values;
};

extern struct zero_pmix_state zero_pmix;
extern const struct zero_core *zero_pmix_core;

/* ---- pmix.c: the table of struct zero_bootstrap_ops ------------------------------------------ */

/* Fails with a sentence for a PMIx call; ZERO_OK for PMIX_SUCCESS. */
zero_status zero_pmix_status(pmix_status_t status, const char *call);

/* ---- ranks.c: how many ranks there are, and which are on this node --------------------------- */

/* Whether the environment names a PMIx server. */
bool zero_pmix_has_server(void);
/* Fails if the launcher started several ranks but this one sees no other. */
zero_status zero_pmix_check_alone(void);
/* Reads zero_pmix.place and local_ranks from PMIx. */
zero_status zero_pmix_read_place(void);
bool zero_pmix_is_local(int rank);

/* ---- fence.c --------------------------------------------------------------------------------- */

/* See fence in bootstrap.h. */
zero_status zero_pmix_fence(double seconds);
/* Puts the key by which other ranks ask whether this one has come to the current fence. */
zero_status zero_pmix_announce(void);

/* ---- async_calls.c: calls of PMIx with a deadline -------------------------------------------- */

struct zero_pmix_calls;
struct zero_pmix_call {
	struct zero_pmix_calls *of;
	bool waiting;
	pmix_status_t status; /* once PMIx has replied */
};

/*
 * Non-blocking calls that belong together. PMIx replies in a thread of its own, maybe long after
 * the caller gave up, so `users` counts the caller and each call under way; the last one frees it.
 */
struct zero_pmix_calls {
	size_t users, waiting;
	/* PMIx reads both until it has replied. */
	pmix_info_t immediate;
	char key[PMIX_MAX_KEYLEN + 1];
	size_t count;
	struct zero_pmix_call call[];
};

/* NULL: no memory. */
struct zero_pmix_calls *zero_pmix_calls_new(size_t count, const char *key);
/* Drops the caller's reference. NULL is a no-op. */
void zero_pmix_calls_release(struct zero_pmix_calls *calls);
/* call[i] gets the key of `rank`. With `local`, for ranks of this node, it fails if the rank has not
   put the key; else it waits until the rank does. */
void zero_pmix_begin_get(struct zero_pmix_calls *calls, size_t i, int rank, bool local);
/* call[0] is a fence of all ranks. */
void zero_pmix_begin_fence(struct zero_pmix_calls *calls);
/* Waits for all calls; false if some are still under way at the time `until`. */
bool zero_pmix_wait(struct zero_pmix_calls *calls, double until);
/* PMIX_ERR_WOULD_BLOCK while call[i] is under way. */
pmix_status_t zero_pmix_call_status(struct zero_pmix_calls *calls, size_t i);
/* Gets a value that this process has already, without asking the server. The caller releases
   *value. */
pmix_status_t zero_pmix_get_cached(pmix_rank_t rank, const char *key, pmix_value_t **value);

#endif
