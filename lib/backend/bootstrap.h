/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks exchange their addresses before they can communicate: module zero_pmix.so. The
 * launcher's own servers (slurmstepd, prted) carry the values, so no address is needed for it.
 */
#ifndef ZERO_BOOTSTRAP_H
#define ZERO_BOOTSTRAP_H

#include "core/module.h"

struct zero_bootstrap_place {
	int rank, world;             /* 0 and 1 if no launcher started this process */
	int local_rank, local_world; /* among the ranks of this node */
};

/* One thread at a time may call these, but for abort. */
struct zero_bootstrap_ops {
	int abi;          /* ZERO_MODULE_ABI */
	const char *name; /* "pmix" */

	/* Connects to the launcher's server. It may be called again after close. */
	zero_status (*open)(struct zero_bootstrap_place *place);
	void (*close)(void);
	/* Publishes a copy of data[bytes] under a key, which other ranks can get after the next
	   fence. A key can be put once between open and close. */
	zero_status (*put)(const char *key, const void *data, size_t bytes);
	/* COLLECTIVE. Waits for all ranks, but no longer than `seconds`: then the error names the
	   ranks that are missing. */
	zero_status (*fence)(double seconds);
	/* Copies what `rank` has put under a key to data[size]. *bytes becomes its length; if that
	   is more than `size`, nothing is copied and ZERO_E_INVALID is returned. */
	zero_status (*get)(int rank, const char *key, void *data, size_t size, size_t *bytes);
	/* Ends all processes of the job with that exit status, this one included. From any thread;
	   does not return. */
	void (*abort)(int status, const char *text);
	/* What is done at exit, for a process that ends otherwise. After close. */
	void (*finalise)(void);
};

#endif
