/* SPDX-License-Identifier: Apache-2.0 */
/* A job that is never opened; its groups and parameters are described, and not laid out. */
#ifndef ZERO_PLAN_H
#define ZERO_PLAN_H

#include "model/model.h"

struct zero_planned {
	zero_job job;
	struct zero_model groups;
	struct zero_backend_ops ops;
};

/*
 * Begins one for `world` ranks, of which `share` share memory at a time. It uses the settings,
 * which stay the caller's, until zero_planned_end. It stays where it is.
 */
void zero_planned_begin(struct zero_planned *planned, const struct zero_settings *settings,
			size_t world, size_t share);
void zero_planned_end(struct zero_planned *planned);
zero_status zero_planned_group(struct zero_planned *planned, const char *name, zero_group **group);

#endif
