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

/* What this rank has put: others get it from PMIx, itself from here. */
struct wire_own {
	struct wire_own *next;
	void *data;
	size_t bytes;
	bool fenced; /* a fence has been since */
	char key[];
};

struct wire {
	bool open;
	bool joined; /* false: alone, without a server */
	struct zero_bootstrap_place place;
	pmix_proc_t self;
	int *peers;
	/* Parts of all keys, since PMIx never forgets one: it outlives close. */
	unsigned opens, fences;
	struct wire_own *own;
};

extern struct wire zero_bootstrap;
extern const struct zero_core *zero_bootstrap_core;

/* The sentence of a PMIx call that failed. */
zero_status zero_bootstrap_status(pmix_status_t status, const char *call);

/* ---- ranks.c */

/* False: nothing in the environment leads to a PMIx server. */
bool zero_bootstrap_has_server(void);
/* An error if the launcher started several ranks, and this one does not see them. */
zero_status zero_bootstrap_check_alone(void);
/* Fills zero_bootstrap's place and peers once PMIx_Init has been called. */
zero_status zero_bootstrap_find_place(void);

/* ---- fence.c */

zero_status zero_bootstrap_fence(double seconds);
/* So that this rank's server has an answer for those that will ask whether it is here. */
zero_status zero_bootstrap_announce(void);

/* ---- async_calls.c */

/*
 * Calls that PMIx answers in a thread of its own, maybe long after this module stopped waiting:
 * whoever is last to need them, PMIx or the caller, frees them.
 */
struct wire_calls;
struct wire_call {
	struct wire_calls *of;
	bool waiting;
	pmix_status_t status; /* if it was answered */
};
struct wire_calls {
	size_t users, waiting;
	/* PMIx reads both until it has answered. */
	pmix_info_t immediate;
	char key[PMIX_MAX_KEYLEN + 1];
	size_t count;
	struct wire_call call[];
};

/* NULL: no memory. */
struct wire_calls *zero_bootstrap_calls(size_t count, const char *key);
void zero_bootstrap_calls_leave(struct wire_calls *calls);
/* call[i] asks for `rank`'s key; of a rank of this node, which must have put it already. */
void zero_bootstrap_ask(struct wire_calls *calls, size_t i, int rank, bool local);
void zero_bootstrap_begin_fence(struct wire_calls *calls);
/* Until all are answered; false: not before `until`. */
bool zero_bootstrap_wait(struct wire_calls *calls, double until);
/* PMIX_ERR_WOULD_BLOCK while there is no answer. */
pmix_status_t zero_bootstrap_answer(struct wire_calls *calls, size_t i);

bool zero_bootstrap_is_local(int rank);
/* What is at hand without asking the server; the caller releases *value. */
pmix_status_t zero_bootstrap_look(pmix_rank_t rank, const char *key, pmix_value_t **value);

#endif
