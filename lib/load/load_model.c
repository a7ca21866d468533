/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a whole checkpoint. The ranks first find and agree on the source of every parameter;
 * nothing has changed until then. Each rank then reads its own slices in the order of the files'
 * bytes, and they agree once more when all have read theirs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "core/text.h"

/* Chunks and bytes of one read of a transposed tensor, at most. */
enum { WIDE_CHUNKS = 16, WIDE_BYTES = 1 << 29 };

/* Where one parameter's values come from, and where this rank stores them. */
struct entry {
	zero_param *param; /* the alias, if only that one has a tensor */
	zero_source source;
	size_t order; /* index among the job's parameters */
	char *data;
	size_t first, count;
	bool named; /* the checkpoint is expected to have a tensor for it */
};

struct loading {
	zero_job *job;
	const char *path;
	const zero_load_model_options *how;
	const struct zero_files_ops *files;
	struct zero_file *file;
	struct entry *entries;
	const zero_tensor **used; /* sorted by address once all are found */
	const char **missing, **unexpected;
	size_t entry_count, used_count, missing_count, unexpected_count;
	uint64_t total, done; /* bytes that this rank stores */
};

static zero_status no_memory(const struct loading *load)
{
	return zero_fail(ZERO_E_MEMORY, "no memory to list the tensors of %s", load->path);
}

static zero_status check_job(zero_job *job)
{
	zero_status status = ZERO_OK;

	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_load_model must be called after zero_layout");
	for (size_t g = 0; !status && g < job->model->group_count; g++) {
		if (zero_group_is_gathered(job->model->groups[g]))
			return zero_fail(
				ZERO_E_STATE,
				"group '%s' is gathered; release it before zero_load_model",
				job->model->groups[g]->name);
		status = zero_wait_post_step_gather(job->model->groups[g]);
	}
	return status;
}

/* ---- what comes from where ------------------------------------------------------------------- */

static struct entry *entry_of(const struct loading *load, const zero_param *param)
{
	/* Searched from the end: an alias is in its target's group, most often close behind it. */
	for (size_t i = load->entry_count; i--;)
		if (load->entries[i].param == param || load->entries[i].param->alias_of == param)
			return &load->entries[i];
	return NULL;
}

/* Finds the scales of a tensor that is converted from f8. */
static zero_status add_scale(struct loading *load, struct entry *entry)
{
	const zero_tensor *tensor = entry->source.tensor;
	char *name;

	if (!tensor || !zero_is_f8(tensor->dtype) || tensor->dtype == entry->param->dtype ||
	    tensor->ndim != 2 || !entry->source.convert)
		return ZERO_OK;
	if (asprintf(&name, "%s_scale_inv", tensor->name) < 0)
		return no_memory(load);
	entry->source.scale = load->files->find(load->file, name);
	if (entry->source.scale)
		load->used[load->used_count++] = entry->source.scale;
	free(name);
	return ZERO_OK;
}

static void add_param(struct loading *load, zero_param *param)
{
	const zero_load_model_options *how = load->how;
	const char *name = param->name;
	const zero_tensor *tensor;
	bool transpose = false;
	struct entry *entry;

	if (how->tensor_name)
		name = how->tensor_name(how->context, param->name, &transpose);
	tensor = name ? load->files->find(load->file, name) : NULL;
	if (tensor)
		load->used[load->used_count++] = tensor;
	if (param->alias_of) {
		entry = entry_of(load, param->alias_of);
		if (!tensor || entry->source.tensor)
			return;
	} else {
		entry = &load->entries[load->entry_count];
		entry->order = load->entry_count++;
		entry->named = name;
	}
	entry->param = param;
	entry->source = zero_from_file(tensor);
	entry->source.transpose = transpose;
	entry->source.convert = !how->strict_dtype;
}

/* Compared as numbers: only the files module knows that they are in one array. */
static int by_address(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t) * (const zero_tensor *const *)a;
	uintptr_t y = (uintptr_t) * (const zero_tensor *const *)b;

	return (x > y) - (x < y);
}

static zero_status find_tensors(struct loading *load)
{
	const zero_job *job = load->job;
	size_t tensors = load->files->count(load->file), params = 0;
	zero_status status;

	for (size_t g = 0; g < job->model->group_count; g++)
		params += job->model->groups[g]->param_count;
	load->entries = calloc(params + 1, sizeof(*load->entries));
	load->used = calloc(2 * params + 1, sizeof(*load->used)); /* with scales */
	load->missing = calloc(params + 1, sizeof(*load->missing));
	load->unexpected = calloc(tensors + 1, sizeof(*load->unexpected));
	if (!load->entries || !load->used || !load->missing || !load->unexpected)
		return no_memory(load);
	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t p = 0; p < job->model->groups[g]->param_count; p++)
			add_param(load, job->model->groups[g]->params[p]);
	for (size_t i = 0; i < load->entry_count; i++) {
		if (load->entries[i].named && !load->entries[i].source.tensor)
			load->missing[load->missing_count++] = load->entries[i].param->name;
		status = add_scale(load, &load->entries[i]);
		if (status)
			return status;
	}
	qsort(load->used, load->used_count, sizeof(*load->used), by_address);
	for (size_t i = 0; i < tensors; i++) {
		const zero_tensor *tensor = load->files->tensor(load->file, i);

		if (!bsearch(&tensor, load->used, load->used_count, sizeof(tensor), by_address))
			load->unexpected[load->unexpected_count++] = tensor->name;
	}
	return ZERO_OK;
}

/* Copies the names into one allocation, behind the array of pointers; NULL without memory. */
static const char **copy_names(const char *const *names, size_t count)
{
	size_t bytes = (count + 1) * sizeof(*names), at = bytes;
	char *copy;

	for (size_t i = 0; i < count; i++)
		bytes += strlen(names[i]) + 1;
	copy = malloc(bytes);
	for (size_t i = 0; copy && i < count; i++) {
		size_t length = strlen(names[i]) + 1;

		((const char **)(void *)copy)[i] = memcpy(copy + at, names[i], length);
		at += length;
	}
	return (const char **)(void *)copy;
}

static zero_status fill_report(const struct loading *load, zero_load_model_report *report)
{
	report->missing = copy_names(load->missing, load->missing_count);
	report->unexpected = copy_names(load->unexpected, load->unexpected_count);
	if (!report->missing || !report->unexpected) {
		zero_load_model_report_free(report);
		return no_memory(load);
	}
	report->missing_count = load->missing_count;
	report->unexpected_count = load->unexpected_count;
	return ZERO_OK;
}

void zero_load_model_report_free(zero_load_model_report *report)
{
	free(report->missing);
	free(report->unexpected);
	*report = (zero_load_model_report){0};
}

/* One message has both lists, so that names which follow another convention are seen at once. */
static zero_status check_names(const struct loading *load)
{
	bool missing = load->missing_count && !load->how->allow_missing;
	bool unexpected = load->unexpected_count && !load->how->allow_unexpected;
	char text[900] = "";
	size_t length = 0;

	if (!missing && !unexpected)
		return ZERO_OK;
	if (missing) {
		length = zero_append(text, sizeof(text), length,
				     "%zu of %zu parameters have no "
				     "tensor there",
				     load->missing_count, load->entry_count);
		length = zero_append_names(text, sizeof(text), length, load->missing,
					   load->missing_count);
	}
	if (unexpected) {
		length = zero_append(text, sizeof(text), length,
				     "%s%zu of %zu tensors there have no parameter",
				     missing ? "; " : "", load->unexpected_count,
				     load->files->count(load->file));
		zero_append_names(text, sizeof(text), length, load->unexpected,
				  load->unexpected_count);
	}
	return zero_fail(ZERO_E_FORMAT, "%s: %s", load->path, text);
}

/* Chooses the source of a parameter that has no tensor. Without a source it keeps its values. */
static zero_status initial_source(const struct loading *load, struct entry *entry)
{
	const zero_load_model_options *how = load->how;
	zero_status status;

	entry->source = how->initial ? *how->initial : zero_from_file(NULL);
	if (how->initialise) {
		status = how->initialise(how->context, entry->param->name, &entry->source);
		if (status)
			return zero_fail(ZERO_E_APPLICATION,
					 "the callback that is to initialise parameter '%s' "
					 "returned %d",
					 entry->param->name, (int)status);
	}
	if (entry->source.kind == ZERO_FROM_RANK)
		return zero_fail(
			ZERO_E_INVALID,
			"parameter '%s': its initial source is ZERO_FROM_RANK; allowed are "
			"sources that each rank can read or compute",
			entry->param->name);
	return ZERO_OK;
}

/* Sorts by file, then by offset; parameters without a tensor come last. */
static int by_place(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	const zero_tensor *in = x->source.kind == ZERO_FROM_FILE ? x->source.tensor : NULL;
	const zero_tensor *of = y->source.kind == ZERO_FROM_FILE ? y->source.tensor : NULL;
	int order = !in - !of;

	if (!order && in && in->path != of->path)
		order = strcmp(in->path, of->path);
	if (!order && in)
		order = (in->offset > of->offset) - (in->offset < of->offset);
	return order ? order : (x->order > y->order) - (x->order < y->order);
}

static zero_status complete_entries(struct loading *load)
{
	size_t kept = 0;

	for (size_t i = 0; i < load->entry_count; i++) {
		struct entry *entry = &load->entries[i];
		const bool has_none = !entry->source.tensor;
		zero_status status = has_none ? initial_source(load, entry) : ZERO_OK;
		void *data;

		if (!status && has_none && !load->how->initial && !load->how->initialise)
			continue;
		if (!status)
			status = zero_source_check(entry->param, &entry->source);
		if (!status)
			status = zero_shard(entry->param, &data, &entry->first, &entry->count);
		if (status)
			return status;
		entry->data = data;
		load->total += entry->count * zero_dtype_size(entry->param->dtype);
		load->entries[kept++] = *entry;
	}
	load->entry_count = kept;
	qsort(load->entries, kept, sizeof(*load->entries), by_place);
	return ZERO_OK;
}

static zero_status make_plan(struct loading *load, zero_load_model_report *report)
{
	zero_status status = check_job(load->job);

	if (!status)
		status = zero_files_open(&load->files);
	if (!status)
		status = load->files->open(load->path, &load->file);
	if (!status)
		status = find_tensors(load);
	if (!status && report)
		status = fill_report(load, report);
	if (!status)
		status = check_names(load);
	return status ? status : complete_entries(load);
}

/* ---- agreeing on it -------------------------------------------------------------------------- */

/* A hash of everything that must be equal on all ranks; the files' paths need not be. */
static uint64_t plan_hash(const struct loading *load)
{
	uint64_t hash = zero_hash(&load->unexpected_count, sizeof(load->unexpected_count), 0);

	for (size_t i = 0; i < load->entry_count; i++) {
		const struct entry *entry = &load->entries[i];
		const zero_tensor *tensor = entry->source.tensor;
		char label[512];

		zero_source_label(entry->param, &entry->source, label, sizeof(label));
		hash = zero_hash(label, strlen(label) + 1, hash);
		hash = zero_hash(entry->param->name, strlen(entry->param->name) + 1, hash);
		if (entry->source.kind != ZERO_FROM_FILE)
			continue;
		hash = zero_hash(&tensor->dtype, sizeof(tensor->dtype), hash);
		if (tensor->name)
			hash = zero_hash(tensor->name, strlen(tensor->name) + 1, hash);
		if (entry->source.scale)
			hash = zero_hash(&entry->source.scale->dtype, sizeof(zero_dtype), hash);
	}
	return hash;
}

/* COLLECTIVE. Compares the plans. */
static zero_status agree_plan(struct loading *load, zero_status status)
{
	size_t world = (size_t)load->job->place.world;
	uint64_t hash = status ? 0 : plan_hash(load), *all = calloc(world, sizeof(*all));
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = &hash, .recv = all, .count = sizeof(hash)};

	if (!all && !status)
		status = no_memory(load);
	status = zero_submit_wait(&load->job->all, status, &op, 1, ZERO_WORK_LOAD,
				  "load of model %s", load->path);
	for (size_t rank = 0; !status && rank < world; rank++) {
		if (all[rank] != all[0]) {
			zero_fail(
				ZERO_E_FORMAT,
				"%s: the tensors, or the results of the callbacks, differ between "
				"ranks 0 and %zu: names, types and initial values must be the "
				"same on all ranks",
				load->path, rank);
			status = zero_fail_on((int)rank, ZERO_E_FORMAT, zero_last_error());
		}
	}
	free(all);
	return status;
}

/* ---- filling --------------------------------------------------------------------------------- */

static zero_status report_progress(const struct loading *load, const char *param)
{
	const zero_load_model_options *how = load->how;
	zero_status status = ZERO_OK;

	if (how->progress)
		status = how->progress(how->context, param, load->done, load->total);
	if (!status)
		return ZERO_OK;
	return zero_fail(ZERO_E_APPLICATION,
			 "the progress callback ended the load of %s: it returned %d at %llu of "
			 "%llu bytes",
			 load->path, (int)status, (unsigned long long)load->done,
			 (unsigned long long)load->total);
}

/* Elements of one read. Transposed tensors are read in larger pieces, since a wider slice has
   longer contiguous stretches. */
static size_t piece_elements(const struct loading *load, const struct entry *entry)
{
	size_t bytes = load->job->stream_chunk, size = zero_dtype_size(entry->param->dtype);

	if (entry->source.transpose)
		bytes = bytes < WIDE_BYTES / WIDE_CHUNKS ? bytes * WIDE_CHUNKS : WIDE_BYTES;
	return bytes > size ? bytes / size : 1;
}

static zero_status fill_entry(struct loading *load, const struct entry *entry)
{
	size_t size = zero_dtype_size(entry->param->dtype), most = piece_elements(load, entry);
	zero_status status = ZERO_OK;

	for (size_t at = 0, count; !status && at < entry->count; at += count) {
		count = entry->count - at < most ? entry->count - at : most;
		status = zero_source_read(entry->param, &entry->source, entry->data + at * size,
					  entry->first + at, count);
		load->done += count * size;
		if (!status)
			status = report_progress(load, entry->param->name);
	}
	return status;
}

/* COLLECTIVE. Ranks are at different parameters, since a parameter is stored on some of them. */
static zero_status fill(struct loading *load)
{
	zero_status status = report_progress(load, NULL);

	zero_hooks_before_change(load->job, NULL, false);
	for (size_t i = 0; !status && i < load->entry_count; i++)
		status = fill_entry(load, &load->entries[i]);
	status = zero_submit_wait(&load->job->all, status, NULL, 0, ZERO_WORK_LOAD,
				  "load of model: values of %s", load->path);
	if (status)
		return status;
	for (size_t i = 0; i < load->entry_count; i++)
		zero_param_update_masters(load->entries[i].param);
	return zero_device_sync(load->job);
}

zero_status zero_load_model(zero_job *job, const char *path, const zero_load_model_options *how,
			    zero_load_model_report *report)
{
	static const zero_load_model_options plain;
	struct loading load = {.job = job, .path = path, .how = how ? how : &plain};
	const char *before = zero_set_current_call(job, "zero_load_model");
	zero_status status;

	if (report)
		*report = (zero_load_model_report){0};
	status = make_plan(&load, report);
	status = agree_plan(&load, status);
	if (!status)
		status = fill(&load);
	if (load.file)
		load.files->close(load.file);
	free(load.entries);
	free(load.used);
	free(load.missing);
	free(load.unexpected);
	zero_set_current_call(job, before);
	return status;
}
