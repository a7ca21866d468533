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
/* The bytes of a slice, of a parameter that can have slices, as `stream` says; 0: none. */
size_t zero_planned_slice(const struct zero_planned *planned, const zero_param_spec *spec);
/* Adds a parameter to *group, a new one if that is NULL; or by slices of so many bytes to a group
   of its own. */
zero_status zero_planned_param(struct zero_planned *planned, const zero_param_spec *spec,
			       size_t slice, zero_group **group, zero_param **param);

#endif
