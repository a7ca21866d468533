/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of a group of one parameter: see slices.c. */
#ifndef ZERO_SLICES_H
#define ZERO_SLICES_H

#include "model.h"

/* Pads the segment of a group that is to have slices, so that each rank stores whole rows. */
zero_status zero_slices_align(const zero_group *group, struct zero_group_layout *layout);
/* The elements that each of `ranks`, which store so many, has of a slice. */
size_t zero_slice_part(const zero_group *group, size_t stored, size_t ranks);
/* Adds a group from its layout, by slices if it has some with as many ranks as `sizing` says. */
void zero_sizing_add(struct zero_sizing *sizing, const zero_group *group,
		     const struct zero_group_layout *layout);
/* Makes the slices of a group that is laid out, where it is not read in place. */
zero_status zero_slices_make(zero_group *group);
void zero_slices_free(zero_group *group);
/* What a slice has of the part that this rank of shard_team stores; returns its elements. */
size_t zero_slice_run(const zero_group *slice, size_t rank, zero_run *run);

#endif
