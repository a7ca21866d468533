/* SPDX-License-Identifier: Apache-2.0 */
#include "sizing.h"

#include "backend/exchange.h"
#include "core/options.h"

static uint64_t pages(uint64_t bytes)
{
	const uint64_t page = 4096;

	return zero_add_saturated(bytes, page - 1) / page * page;
}

static size_t at_least_1(size_t count)
{
	return count ? count : 1;
}

/* The ranks that store a copy between them, and those of them that share memory. */
size_t zero_sizing_ranks(const struct zero_sizing *sizing)
{
	return sizing->team ? sizing->team : sizing->world;
}

static size_t sharing(const struct zero_sizing *sizing)
{
	return at_least_1(sizing->team ? sizing->team_share : sizing->share);
}

bool zero_sizing_in_place(const struct zero_sizing *sizing)
{
	return zero_sizing_ranks(sizing) <= sharing(sizing);
}

/* ---- grids ----------------------------------------------------------------------------------- */

static bool is_grid_size(const size_t *ranks, size_t nodes, size_t world, size_t size)
{
	bool divides = true, alike = true;

	for (size_t n = 0; n < nodes; n++) {
		divides = divides && ranks[n] % size == 0;
		alike = alike && ranks[n] == ranks[0];
	}
	return divides || (alike && size % ranks[0] == 0 && world % size == 0);
}

size_t zero_grid_size_above(const size_t *ranks, size_t nodes, size_t size)
{
	size_t world = 0;

	for (size_t n = 0; n < nodes; n++)
		world += ranks[n];
	do
		size++;
	while (size < world && !is_grid_size(ranks, nodes, world, size));
	return size < world ? size : world;
}

void zero_sizing_set_team(struct zero_sizing *sizing, size_t size)
{
	size_t share = at_least_1(sizing->share);

	sizing->team = size < sizing->world ? size : 0;
	sizing->team_share = share % size == 0 ? size : size % share == 0 ? share : 1;
	sizing->replica_share = share % size == 0 ? share / size : 1;
}

/* ---- groups ---------------------------------------------------------------------------------- */

uint64_t zero_sizing_part(const struct zero_sizing *sizing, uint64_t bytes)
{
	return pages(bytes / sharing(sizing) + (bytes % sharing(sizing) != 0));
}

/* The bytes of one flat buffer. */
struct flat_bytes {
	uint64_t all;
	uint64_t stored;          /* by a rank, or by all ranks that share memory */
	uint64_t gradient, state; /* elements */
	bool needs_master;
};

/* Whether each rank steps all of every segment. */
static bool steps_replicated(const struct zero_sizing *sizing)
{
	return sizing->world == 1 || sizing->stage == 0;
}

bool zero_sizing_replicated(const struct zero_sizing *sizing)
{
	return steps_replicated(sizing) || zero_sizing_ranks(sizing) == 1 ||
	       (sizing->stage < 3 && sharing(sizing) < sizing->world);
}

static void add_segment(const struct zero_sizing *sizing, const struct zero_layout_segment *segment,
			struct flat_bytes *flat)
{
	size_t shard = segment->count / sizing->world;
	size_t stored = zero_sizing_replicated(sizing)
				? segment->count
				: segment->count / zero_sizing_ranks(sizing) * sharing(sizing);

	flat->all += pages(segment->count * zero_dtype_size(segment->dtype));
	flat->stored += pages(stored * zero_dtype_size(segment->dtype));
	if (!segment->trainable)
		return;
	flat->gradient += segment->count;
	flat->state += steps_replicated(sizing) ? segment->count : shard;
	flat->needs_master = flat->needs_master || segment->dtype != ZERO_F32;
}

/* A rank's part of the values, and of moments and masters. */
static uint64_t saved_bytes(const struct zero_sizing *sizing,
			    const struct zero_layout_segment *segment)
{
	uint64_t shard = segment->count / sizing->world;
	uint64_t bytes = shard * zero_dtype_size(segment->dtype);

	if (!segment->trainable || sizing->no_states)
		return bytes;
	if (segment->dtype != ZERO_F32)
		bytes += shard * sizeof(float);
	return bytes + (sizing->states_8bit ? 2 * (shard + shard / ZERO_BLOCK * sizeof(float))
					    : 2 * shard * sizeof(float));
}

static void keep_largest(uint64_t *largest, size_t count, uint64_t bytes)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t less = largest[i];

		if (bytes <= less)
			continue;
		largest[i] = bytes;
		bytes = less;
	}
}

/* Two moments, and f32 masters of 16-bit parameters. */
static void add_states(struct zero_sizing *sizing, const struct flat_bytes *flat)
{
	uint64_t master = flat->needs_master ? pages(flat->state * sizeof(float)) : 0;
	uint64_t moments = pages(2 * flat->state * sizeof(float));

	if (sizing->no_states)
		return;
	if (sizing->states_8bit)
		moments = pages(2 * flat->state) +
			  pages(2 * (flat->state / ZERO_BLOCK) * sizeof(float));
	sizing->optimizer = zero_add_saturated(sizing->optimizer, moments);
	sizing->optimizer = zero_add_saturated(sizing->optimizer, master);
}

/* Two slices of a group may be there at a time, but its whole and its whole gradient never are. */
static void add_slices(struct zero_sizing *sizing, const struct zero_layout_segment *segment,
		       size_t slice, size_t gradient_size)
{
	uint64_t gathered = pages(slice * zero_dtype_size(segment->dtype));
	uint64_t gradient = segment->trainable ? pages(slice * gradient_size) : 0;

	for (size_t i = 0; i < 2 && i * slice < segment->count; i++) {
		keep_largest(sizing->gathered, 3, zero_sizing_part(sizing, gathered));
		keep_largest(sizing->gradients, 2, gradient);
	}
}

void zero_sizing_group(struct zero_sizing *sizing, const struct zero_layout_segment *segments,
		       size_t segment_count, size_t slice)
{
	uint64_t gathered = 0, gradients = 0;
	size_t size = sizing->gradient_size ? sizing->gradient_size : sizeof(float);

	for (size_t begin = 0, end; begin < segment_count; begin = end) {
		struct flat_bytes flat = {0};
		uint64_t state;

		for (end = begin; end < segment_count && segments[end].flat == segments[begin].flat;
		     end++) {
			add_segment(sizing, &segments[end], &flat);
			sizing->saved = zero_add_saturated(sizing->saved,
							   saved_bytes(sizing, &segments[end]));
		}
		state = pages(flat.state * sizeof(float));
		sizing->shards = zero_add_saturated(
			sizing->shards, zero_sizing_replicated(sizing)
						? flat.stored
						: zero_sizing_part(sizing, flat.stored));
		add_states(sizing, &flat);
		sizing->sums = zero_add_saturated(sizing->sums, state);
		if (sizing->team)
			sizing->team_sums = zero_add_saturated(
				sizing->team_sums,
				pages(flat.state * (sizing->world / sizing->team) * sizeof(float)));
		if (flat.all > sizing->largest_flat)
			sizing->largest_flat = flat.all;
		sizing->all_flats = zero_add_saturated(sizing->all_flats, flat.all);
		gathered = zero_add_saturated(gathered, zero_sizing_part(sizing, flat.all));
		/* f32 gradients of replicated segments are summed in place */
		if (!(steps_replicated(sizing) || zero_sizing_ranks(sizing) == 1) ||
		    size != sizeof(float))
			gradients = zero_add_saturated(gradients, pages(flat.gradient * size));
	}
	sizing->groups++;
	if (slice) {
		add_slices(sizing, segments, slice, size);
		return;
	}
	keep_largest(sizing->gathered, 3, gathered);
	keep_largest(sizing->gradients, 2, gradients);
}

/* Bytes for the reduces of so many ranks on the host, of which `share` share memory. */
static uint64_t exchange_bytes(size_t ranks, size_t share)
{
	size_t apart = ranks - at_least_1(share);

	return apart ? 2 * pages(zero_exchange_piece(apart) * apart) : 0;
}

static uint64_t staging_bytes(const struct zero_sizing *sizing)
{
	uint64_t bytes;

	if (sizing->device)
		return sizing->world > 1 ? ZERO_REDUCE_WINDOW : 0;
	bytes = exchange_bytes(sizing->world, sizing->share);
	if (sizing->team)
		bytes += exchange_bytes(sizing->team, sizing->team_share) +
			 exchange_bytes(sizing->world / sizing->team, sizing->replica_share);
	return bytes;
}

void zero_sizing_bytes(const struct zero_sizing *sizing, uint64_t bytes[ZERO_MEM_KINDS])
{
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		bytes[kind] = 0;
	bytes[ZERO_MEM_SHARDS] = sizing->shards;
	bytes[sizing->offload ? ZERO_MEM_OFFLOAD : ZERO_MEM_OPTIMIZER] = sizing->optimizer;
	bytes[ZERO_MEM_GRADIENTS] = zero_add_saturated(sizing->gradients[0], sizing->gradients[1]);
	if (sizing->team && sizing->sums > bytes[ZERO_MEM_GRADIENTS])
		bytes[ZERO_MEM_GRADIENTS] = sizing->sums;
	bytes[ZERO_MEM_GRADIENTS] = zero_add_saturated(
		bytes[ZERO_MEM_GRADIENTS], sizing->team ? sizing->team_sums : sizing->sums);
	/* replicated parameters are read where they are stored, and so are those of a single node
	   */
	for (int i = 0;
	     sizing->stage == 3 && !zero_sizing_in_place(sizing) && i < 2 + sizing->one_stays; i++)
		bytes[ZERO_MEM_GATHERED] =
			zero_add_saturated(bytes[ZERO_MEM_GATHERED], sizing->gathered[i]);
	bytes[ZERO_MEM_STAGING] = staging_bytes(sizing);
	if (sizing->device)
		bytes[ZERO_MEM_STAGING] += zero_step_state_bytes(sizing->world);
	/* each group has a state of its steps; with offloaded states it is on the host */
	if (sizing->device && !sizing->offload)
		bytes[ZERO_MEM_STAGING] += pages(sizing->groups * sizeof(struct zero_step_state));
}

uint64_t zero_sizing_total(const struct zero_sizing *sizing)
{
	uint64_t bytes[ZERO_MEM_KINDS], total = 0;

	zero_sizing_bytes(sizing, bytes);
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		if (zero_on_device((enum zero_memory_kind)kind))
			total = zero_add_saturated(total, bytes[kind]);
	return total;
}
