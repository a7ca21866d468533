/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of one parameter that has slices: what its slices hold, put together, is the parameter,
 * and its gradients are written slice by slice. Where slices save nothing there is one, the group.
 */
#include "property.h"

/* Rows of any length, which are padded to many if it is odd. */
void slice_shape(struct model *model, struct tensor *tensor)
{
	uint64_t *random = &model->random;
	size_t wide = (1 + below(random, 3)) << below(random, 8), odd = 1 + below(random, 40);
	size_t row = below(random, 8) ? wide : odd, outer = 1 + below(random, 4);
	size_t most = (COUNT_MAX - 100) / row / outer, some = 1 + below(random, 300);
	size_t rows = below(random, 16) == 0 ? 0 : some < most ? some : most;
	size_t shapes[CASE_DIMS][CASE_DIMS] = {
		{rows * row + below(random, 100)}, {rows, row}, {outer, rows, row}};
	size_t ndim = 1 + below(random, CASE_DIMS);

	memcpy(tensor->shape, shapes[ndim - 1], sizeof(tensor->shape));
	tensor->spec.ndim = (int)ndim;
	tensor->spec.shape = tensor->shape;
	tensor->count = 1;
	for (size_t i = 0; i < ndim; i++)
		tensor->count *= tensor->shape[i];
}

size_t slice_unit(const struct tensor *tensor)
{
	size_t row = tensor->spec.ndim > 1 ? tensor->shape[tensor->spec.ndim - 1] : 1, unit = row;

	while (unit % 256)
		unit += row;
	return unit;
}

size_t part_count(const struct group *group)
{
	return group->by_slices ? zero_group_slice_count(group->handle) : 1;
}

zero_group *part_of(const struct group *group, size_t index)
{
	return group->by_slices ? zero_group_slice(group->handle, index) : group->handle;
}

zero_group *slice_by_turn(const struct group *group, uint64_t seed, size_t turn)
{
	size_t count = zero_group_slice_count(group->handle), first = (seed >> 1) % count;
	size_t at = (first + turn) % count;

	return zero_group_slice(group->handle, seed & 1 ? count - 1 - at : at);
}

void check_slice(const struct tensor *tensor, const zero_group *slice, zero_dtype as,
		 const char *want)
{
	size_t size = zero_dtype_size(as), count, end = 0, at;
	const char *data = zero_slice_data(slice);
	zero_run runs[WORLD_MAX];

	count = zero_slice_runs(slice, runs);
	check(data || !count, "a slice of '%s' has no memory", tensor->name);
	for (size_t r = 0; r < count; r++) {
		const zero_run *run = &runs[r];

		check(run->count && run->first >= end && run->first + run->count <= tensor->count,
		      "run %zu of a slice of '%s': [%zu, +%zu) of %zu", r, tensor->name, run->first,
		      run->count, tensor->count);
		end = run->first + run->count;
		at = ref_difference(as, data + run->at * size, want + run->first * size,
				    run->count);
		check(at == run->count, "'%s': element %zu of %zu, by a slice as %s", tensor->name,
		      run->first + at, tensor->count, zero_dtype_name(as));
	}
}

/* Marks each element once. */
static void check_cover(const struct tensor *tensor)
{
	zero_group *group = tensor->group->handle;
	char *seen = calloc(tensor->count + 1, 1);
	size_t sum = 0;

	check(seen, "no memory");
	for (size_t s = 0; s < zero_group_slice_count(group); s++) {
		zero_run runs[WORLD_MAX];
		size_t count = zero_slice_runs(zero_group_slice(group, s), runs);

		for (size_t r = 0; r < count; r++)
			for (size_t i = runs[r].first; i < runs[r].first + runs[r].count; i++) {
				check(!seen[i], "element %zu of '%s' is of two slices", i,
				      tensor->name);
				seen[i] = 1;
				sum++;
			}
	}
	check(sum == tensor->count, "the slices of '%s' have %zu elements of %zu", tensor->name,
	      sum, tensor->count);
	free(seen);
}

void check_slices(const struct tensor *tensor, zero_dtype as, const char *want)
{
	zero_group *group = tensor->group->handle;

	for (size_t s = 0; s < zero_group_slice_count(group); s++)
		check_slice(tensor, zero_group_slice(group, s), as, want);
	check_cover(tensor);
}

void poison_slices(const struct tensor *tensor, size_t size)
{
	zero_group *group = tensor->group->handle;

	for (size_t s = 0; s < zero_group_slice_count(group); s++) {
		zero_group *slice = zero_group_slice(group, s);
		zero_run runs[WORLD_MAX];
		size_t count = zero_slice_runs(slice, runs);
		char *data = zero_slice_data(slice);

		for (size_t r = 0; r < count; r++)
			memset(data + runs[r].at * size, 0xa5, runs[r].count * size);
	}
}

/* Between the slices' gradients and those of the whole parameter. */
static void copy_gradients(const struct tensor *tensor, char *values, bool write)
{
	zero_dtype dtype = tensor->group->gradients;
	zero_group *group = tensor->group->handle;
	size_t size = zero_dtype_size(dtype);

	for (size_t s = 0; s < zero_group_slice_count(group); s++) {
		zero_group *slice = zero_group_slice(group, s);
		zero_run runs[WORLD_MAX];
		size_t count = zero_slice_runs(slice, runs);
		char *data = zero_slice_gradient(slice, dtype);

		check(data || !count, "a slice of '%s' has no gradient: %s", tensor->name,
		      zero_last_error());
		for (size_t r = 0; r < count; r++) {
			char *in = data + runs[r].at * size, *out = values + runs[r].first * size;

			memcpy(write ? in : out, write ? out : in, runs[r].count * size);
		}
	}
}

void read_slice_gradients(const struct tensor *tensor, void *values)
{
	copy_gradients(tensor, values, false);
}

void write_slice_gradients(struct tensor *tensor, void *values)
{
	copy_gradients(tensor, values, true);
	tensor->written = true;
}
