/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/model.h"

#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "files/files.h"
#include "model/model.h"
#include "model/muon_owners.h"

size_t model_group_length(const char *name)
{
	for (const char *part = name; *part;) {
		size_t length = strcspn(part, ".");

		if (part[length] && length && strspn(part, "0123456789") == length)
			return (size_t)(part - name) + length + 1;
		part += length + (part[length] == '.');
	}
	return strlen(name);
}

/* A tensor and its index, to be sorted by group. */
struct member {
	const zero_tensor *tensor;
	size_t length; /* of the group's name */
	size_t at;
};

static bool is_same_group(const struct member *a, const struct member *b)
{
	return a->length == b->length && !memcmp(a->tensor->name, b->tensor->name, a->length);
}

/* Tensors of a group follow each other, in the order of the file. */
static int by_group(const void *left, const void *right)
{
	const struct member *a = left, *b = right;
	size_t length = a->length < b->length ? a->length : b->length;
	int order = memcmp(a->tensor->name, b->tensor->name, length);

	if (order)
		return order;
	if (a->length != b->length)
		return a->length < b->length ? -1 : 1;
	return a->at < b->at ? -1 : a->at > b->at;
}

static size_t element_count(const zero_tensor *tensor)
{
	size_t count = 1;

	/* an empty tensor is empty however large its other dimensions are */
	for (int i = 0; i < tensor->ndim; i++)
		if (!tensor->shape[i])
			return 0;
	/* the header was checked against the file's size: no product overflows */
	for (int i = 0; i < tensor->ndim; i++)
		count *= tensor->shape[i];
	return count;
}

static int by_falling(const void *left, const void *right)
{
	const double a = *(const double *)left, b = *(const double *)right;

	return (a < b) - (a > b);
}

/* The embedding and the head have no number, and are AdamW's. */
static bool is_for_muon(const struct member *member)
{
	const zero_tensor *tensor = member->tensor;

	return member->length < strlen(tensor->name) && tensor->ndim >= 2 &&
	       (tensor->dtype == ZERO_F32 || tensor->dtype == ZERO_F16 ||
		tensor->dtype == ZERO_BF16) &&
	       element_count(tensor);
}

/* Adds the costs of a tensor's matrices: stacked ones are matrices of their own. */
static size_t add_costs(const zero_tensor *tensor, double *costs)
{
	size_t rows = tensor->shape[tensor->ndim - 2], columns = tensor->shape[tensor->ndim - 1];
	size_t count = element_count(tensor) / (rows * columns);

	for (size_t i = 0; costs && i < count; i++)
		costs[i] = zero_muon_cost(rows, columns);
	return count;
}

static zero_status balance_muon(const struct member *members, size_t count, size_t world,
				struct model *model)
{
	double *costs, *loads = calloc(world, sizeof *loads), sum = 0, most = 0;
	size_t at = 0;

	for (size_t i = 0; i < count; i++)
		if (is_for_muon(&members[i]))
			model->matrices += add_costs(members[i].tensor, NULL);
	costs = calloc(model->matrices + 1, sizeof *costs);
	if (!costs || !loads) {
		free(costs);
		free(loads);
		return zero_fail(ZERO_E_MEMORY, "no memory for %zu matrices", model->matrices);
	}
	for (size_t i = 0; i < count; i++)
		if (is_for_muon(&members[i]))
			at += add_costs(members[i].tensor, costs + at);
	qsort(costs, at, sizeof *costs, by_falling);
	for (size_t i = 0; i < at; i++) {
		int owner = zero_muon_owner(costs[i], loads, (int)world);

		sum += costs[i];
		most = loads[owner] > most ? loads[owner] : most;
	}
	model->balance = sum > 0 ? most / (sum / (double)world) : 1;
	free(costs);
	free(loads);
	return ZERO_OK;
}

static zero_status size_group(const struct member *members, size_t count,
			      const struct model_layout *layout, struct model *model)
{
	struct zero_layout_item *items = calloc(count, sizeof *items);
	struct zero_layout_segment *runs = NULL;
	size_t run_count, flat_count;
	zero_status status;

	if (!items)
		return zero_fail(ZERO_E_MEMORY, "no memory for a group of %zu tensors", count);
	for (size_t i = 0; i < count; i++) {
		zero_dtype dtype = members[i].tensor->dtype;

		items[i].dtype = dtype;
		items[i].trainable = dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16;
		items[i].count = element_count(members[i].tensor);
		model->elements += items[i].count;
		model->bytes += items[i].count * zero_dtype_size(dtype);
	}
	status = zero_layout_group(items, count, layout->world, layout->mode, layout->bucket, &runs,
				   &run_count, &flat_count);
	if (!status) {
		zero_sizing_group(&model->sizing, runs, run_count);
		model->groups++;
	}
	free(runs);
	free(items);
	return status;
}

zero_status model_size(const zero_tensor *const *tensors, size_t count,
		       const struct model_layout *layout, struct model *model)
{
	struct member *members = calloc(count + 1, sizeof *members);
	zero_status status = ZERO_OK;

	*model = (struct model){.tensors = count,
				.sizing = {.world = layout->world,
					   .share = layout->share,
					   .stage = layout->stage,
					   .device = layout->device,
					   .offload = layout->offload,
					   .states_8bit = layout->states_8bit}};
	if (!members)
		return zero_fail(ZERO_E_MEMORY, "no memory for %zu tensors", count);
	if (layout->team)
		zero_sizing_set_team(&model->sizing, layout->team);
	for (size_t i = 0; i < count; i++)
		members[i] = (struct member){tensors[i], model_group_length(tensors[i]->name), i};
	qsort(members, count, sizeof *members, by_group);
	for (size_t begin = 0, end; !status && begin < count; begin = end) {
		for (end = begin + 1; end < count && is_same_group(&members[begin], &members[end]);)
			end++;
		status = size_group(members + begin, end - begin, layout, model);
	}
	if (!status)
		status = balance_muon(members, count, layout->world, model);
	free(members);
	return status;
}

#ifdef HAVE_FILES

const struct zero_files_ops *model_files(void)
{
	return zero_module_files(&zero_library_core);
}

zero_status model_read(const char *path, const struct model_layout *layout, struct model *model)
{
	const struct zero_files_ops *files = model_files();
	const zero_tensor **tensors;
	struct zero_file *file;
	zero_status status = files->open(path, &file);
	size_t count;

	if (status)
		return status;
	count = files->count(file);
	tensors = calloc(count + 1, sizeof *tensors);
	if (!tensors)
		status = zero_fail(ZERO_E_MEMORY, "no memory for %zu tensors", count);
	for (size_t i = 0; !status && i < count; i++)
		tensors[i] = files->tensor(file, i);
	if (!status)
		status = model_size(tensors, count, layout, model);
	free(tensors);
	files->close(file);
	return status;
}

#else

zero_status model_read(const char *path, const struct model_layout *layout, struct model *model)
{
	(void)layout;
	(void)model;
	return zero_fail(ZERO_E_UNSUPPORTED,
			 "%s cannot be read: zerorun was built without Jansson and xxHash, "
			 "which it needs for the headers of safetensors files",
			 path);
}

#endif
