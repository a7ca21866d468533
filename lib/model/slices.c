/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices of an oversized parameter, which is then whole on no rank: not when it is used, and not
 * its gradient. A slice is the same part of what each rank stores, so that the layout, and all that
 * goes by it, is that of the whole. Inside it is a group of its own, which views its parent: it is
 * gathered and released as any group, and reduced into its parent's sums.
 */
#include "slices.h"

#include <stdio.h>
#include <stdlib.h>

static size_t gcd(size_t a, size_t b)
{
	return b ? gcd(b, a % b) : a;
}

/* Elements of which a rank's part has a whole number: rows, and what any layout aligns to. */
static size_t unit_of(const zero_param *param)
{
	size_t row = param->ndim > 1 ? param->shape[param->ndim - 1] : 1;

	return row ? ZERO_ALIGN / gcd(ZERO_ALIGN, row) * row : ZERO_ALIGN;
}

zero_status zero_group_set_slices(zero_group *group, size_t bytes)
{
	if (group->flats)
		return zero_fail(ZERO_E_STATE,
				 "zero_group_set_slices of group '%s' must be called before "
				 "zero_layout",
				 group->name);
	group->slice_bytes = bytes;
	return ZERO_OK;
}

zero_status zero_slices_align(const zero_group *group, struct zero_group_layout *layout)
{
	size_t unit, rest;

	if (!group->slice_bytes || group->job->stage < 3)
		return ZERO_OK;
	if (layout->item_count != 1 || group->param_count != 1)
		return zero_fail(ZERO_E_INVALID,
				 "group '%s' is to have slices and has %zu parameters: make it a "
				 "group of one",
				 group->name, group->param_count);
	unit = unit_of(layout->params[0]) * (size_t)group->team->place.world;
	rest = layout->segments[0].count % unit;
	if (rest)
		layout->segments[0].count += unit - rest;
	return ZERO_OK;
}

size_t zero_slice_part(const zero_group *group, size_t stored, size_t ranks)
{
	const zero_param *param = group->params[0];
	size_t unit = unit_of(param), part;

	part = group->slice_bytes / zero_dtype_size(param->dtype) / ranks / unit * unit;
	part = part ? part : unit;
	return part < stored ? part : stored;
}

/* The elements of a slice on all ranks; 0: the group has none. */
static size_t slice_elements(const struct zero_sizing *sizing, const zero_group *group,
			     const struct zero_group_layout *layout)
{
	size_t ranks = zero_sizing_ranks(sizing);

	if (!group->slice_bytes || sizing->stage < 3 || !layout->segment_count ||
	    !layout->segments[0].count || zero_sizing_in_place(sizing))
		return 0;
	return zero_slice_part(group, layout->segments[0].count / ranks, ranks) * ranks;
}

static void count_streamed(struct zero_streamed *streamed, const zero_param *param, size_t stored,
			   size_t slice)
{
	size_t size = zero_dtype_size(param->dtype);

	streamed->count++;
	if (param->count * size <= streamed->bytes)
		return;
	streamed->largest = param->name;
	streamed->bytes = param->count * size;
	streamed->slices = (stored + slice - 1) / slice;
	streamed->slice_bytes = slice * size;
}

void zero_sizing_add(struct zero_sizing *sizing, const zero_group *group,
		     const struct zero_group_layout *layout)
{
	size_t slice = slice_elements(sizing, group, layout);

	sizing->gradient_size = zero_dtype_size(group->gradient_dtype);
	if (slice)
		count_streamed(&sizing->streamed, group->params[0], layout->segments[0].count,
			       slice);
	if (zero_is_member(group))
		zero_sizing_group(sizing, layout->segments, layout->segment_count, slice);
}

static zero_status make_slice(zero_group *parent, size_t index, size_t part, size_t stored)
{
	zero_group *slice = &parent->slices[index];
	const struct zero_segment *whole = &parent->flats[0].segments[0];
	size_t first = index * part, ranks = (size_t)parent->shard_team->place.world;
	struct zero_segment *segment = calloc(1, sizeof(*segment));
	struct zero_flat *flat = calloc(1, sizeof(*flat));

	*slice = (zero_group){
		.job = parent->job,
		.team = parent->team,
		.shard_team = parent->shard_team,
		.own_shard = parent->own_shard,
		.flats = flat,
		.flat_count = flat != NULL,
		.trainable = parent->trainable,
		.gradient_dtype = parent->gradient_dtype,
		.index = parent->index,
		.state = ZERO_IDLE,
		.parent = parent,
		.slice_first = first,
	};
	if (asprintf(&slice->name, "%s slice %zu", parent->name, index) < 0)
		slice->name = NULL;
	if (!slice->name || !segment || !flat) {
		free(segment);
		return zero_fail(ZERO_E_MEMORY, "no memory for the slices of group '%s'",
				 parent->name);
	}
	*segment = (struct zero_segment){
		.dtype = whole->dtype,
		.trainable = whole->trainable,
		.shard = stored - first < part ? stored - first : part,
	};
	segment->count = segment->shard * ranks;
	*flat = (struct zero_flat){
		.group = slice,
		.segments = segment,
		.segment_count = 1,
		.gradient_count = whole->trainable ? segment->count : 0,
	};
	return ZERO_OK;
}

zero_status zero_slices_make(zero_group *group)
{
	zero_status status = ZERO_OK;
	size_t stored, part;

	if (!group->slice_bytes || group->in_place || !zero_is_member(group) ||
	    !group->flats[0].segments[0].count)
		return ZERO_OK;
	stored = group->flats[0].segments[0].shard * zero_replicas(group);
	part = zero_slice_part(group, stored, (size_t)group->shard_team->place.world);
	group->slices = calloc((stored + part - 1) / part, sizeof(*group->slices));
	if (!group->slices)
		return zero_fail(ZERO_E_MEMORY, "no memory for the slices of group '%s'",
				 group->name);
	while (!status && group->slice_count < (stored + part - 1) / part)
		status = make_slice(group, group->slice_count++, part, stored);
	return status;
}

void zero_slices_free(zero_group *group)
{
	for (size_t s = 0; s < group->slice_count; s++)
		free(group->slices[s].name);
	free(group->slices);
	group->slices = NULL;
	group->slice_count = 0;
}

zero_group *zero_group_after(const struct zero_model *model, const zero_group *group)
{
	const zero_group *parent = group;
	size_t next = 0;

	if (!group)
		return model->group_count ? model->groups[0] : NULL;
	if (group->parent) {
		parent = group->parent;
		next = (size_t)(group - parent->slices) + 1;
	}
	if (next < parent->slice_count)
		return &parent->slices[next];
	return parent->index + 1 < model->group_count ? model->groups[parent->index + 1] : NULL;
}

bool zero_group_is_gathered(const zero_group *group)
{
	bool gathered = group->gather != NULL;

	for (size_t s = 0; s < group->slice_count; s++)
		gathered = gathered || group->slices[s].gather;
	return gathered;
}

size_t zero_slice_run(const zero_group *slice, size_t rank, zero_run *run)
{
	const struct zero_segment *segment = &slice->flats[0].segments[0];
	const struct zero_segment *whole = &slice->parent->flats[0].segments[0];
	size_t stored = whole->shard * zero_replicas(slice->parent);
	size_t count = slice->parent->params[0]->count;
	size_t first = rank * stored + slice->slice_first;

	*run = (zero_run){.first = first, .at = rank * segment->shard};
	if (first < count)
		run->count = count - first < segment->shard ? count - first : segment->shard;
	return run->count;
}

/* ---- the interface --------------------------------------------------------------------------- */

size_t zero_group_slice_count(const zero_group *group)
{
	return group->slice_count ? group->slice_count : 1;
}

zero_group *zero_group_slice(zero_group *group, size_t index)
{
	if (!group->slice_count)
		return index ? NULL : group;
	return index < group->slice_count ? &group->slices[index] : NULL;
}

size_t zero_slice_runs(const zero_group *slice, zero_run *runs)
{
	size_t count = 0;

	if (!slice->parent) {
		*runs = (zero_run){.count = slice->param_count ? slice->params[0]->count : 0};
		return runs->count > 0;
	}
	for (int rank = 0; rank < slice->shard_team->place.world; rank++)
		count += zero_slice_run(slice, (size_t)rank, &runs[count]) > 0;
	return count;
}
