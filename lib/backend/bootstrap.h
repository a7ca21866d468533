/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other before they can communicate: module zero_pmix.so. It needs no address
 * of anybody, since the launcher's own servers (slurmstepd, prted) carry it.
 */
#ifndef ZERO_BOOTSTRAP_H
#define ZERO_BOOTSTRAP_H

#include "core/module.h"

struct zero_bootstrap_place {
	int rank, world;             /* 0 of 1 if no launcher started this process */
	int local_rank, local_world; /* among those of this node */
};

struct zero_bootstrap_ops {
	int abi;
	const char *name; /* "pmix" */

	/* Joins the ranks that the launcher started. May be opened again after a close. */
	zero_status (*open)(struct zero_bootstrap_place *place);
	void (*close)(void);
	/* What other ranks may get after the next fence; copied. A key is put once. */
	zero_status (*put)(const char *key, const void *data, size_t bytes);
	/* COLLECTIVE. Waits until all ranks are here, `seconds` at most; the error names those that
	   are not. */
	zero_status (*fence)(double seconds);
	/* What `rank` has put: *bytes of it, at most `size`, which it must have room for. */
	zero_status (*get)(int rank, const char *key, void *data, size_t size, size_t *bytes);
	/* Ends all processes of the job. */
	void (*abort)(int status, const char *text);
};

#endif
