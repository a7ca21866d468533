/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ZERORUN_SHOW_CONFIG_H
#define ZERORUN_SHOW_CONFIG_H

#include <stdio.h>

#include "core/options.h"

/* What the command line asks about a zero.yaml; nothing is owned. */
struct config_query {
	const char *check; /* the file of --check-config, or NULL */
	const char *show;  /* the file of --show-config, or NULL */
	const char *node, *partition, *account, *qos, *gpu;
};

/* Checks the site's file. Returns 0, or the exit status after an error. */
int config_check(FILE *out, const char *path);
/* Prints what its options resolve to. `user` has a NULL origin where the user sets nothing; options
   of the user's file are added to it. */
int config_show(FILE *out, const struct config_query *query, struct zero_settings *user);

#endif
