/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the property test, and how often each is done. */
#include <fcntl.h>
#include <math.h>

#include "property.h"

void run_random(struct model *model, const struct operation *table)
{
	unsigned sum = 0, drawn;

	for (size_t i = 0; table[i].name; i++)
		sum += table[i].weight;
	drawn = (unsigned)below(&model->random, sum);
	for (; drawn >= table->weight; table++)
		drawn -= table->weight;
	if (model->told)
		printf("%s\n", table->name);
	table->run(model);
}

/* ---- load, shard, export --------------------------------------------------------------------- */

static void load_any(struct model *model)
{
	struct tensor *tensor = any_tensor(model);

	if (tensor && !tensor->tied && !tensor->group->begun)
		load(model, tensor);
}

/* Of all ranks, or one looks alone. */
static void check_shard(struct model *model)
{
	struct tensor *tensor = any_tensor(model);
	size_t alone = below(&model->random, 2 * (size_t)model->world);
	size_t first, count, at, want_first, want_count;
	void *data;

	if (!tensor || (alone < (size_t)model->world && alone != (size_t)model->rank))
		return;
	ok(zero_shard(tensor->param, &data, &first, &count));
	stored(model, tensor, &want_first, &want_count);
	check(first == want_first && count == want_count && !data == !count,
	      "'%s': [%zu, +%zu) at %p, not [%zu, +%zu)", tensor->name, first, count, data,
	      want_first, want_count);
	at = ref_difference(tensor->spec.dtype, data,
			    ref_of(tensor)->values + first * zero_dtype_size(tensor->spec.dtype),
			    count);
	check(at == count, "'%s': element %zu of the shard at %zu", tensor->name, at, first);
}

/* A tensor of a file holds the reference's values. */
static void check_file(const struct tensor *tensor, const zero_tensor *in)
{
	size_t bytes = tensor->count * zero_dtype_size(tensor->spec.dtype), at;
	unsigned char *got = malloc(bytes + 1);
	int fd = open(in->path, O_RDONLY);

	check(got && fd >= 0, "%s", in->path);
	check(pread(fd, got, bytes, (off_t)in->offset) == (ssize_t)bytes, "%s", in->path);
	at = ref_difference(tensor->spec.dtype, got, tensor->ref.values, tensor->count);
	check(at == tensor->count, "'%s': element %zu in the file", tensor->name, at);
	close(fd);
	free(got);
}

static void export_and_load(struct model *model)
{
	struct tensor *reloaded = any_tensor(model);
	char path[1024];
	size_t tensors = 0;
	zero_source source;
	zero_file *file;

	snprintf(path, sizeof(path), "%s", file_path("export.safetensors"));
	ok(zero_export(model->job, path));
	ok(zero_file_open(model->job, path, &file));
	for (size_t g = 0; g < model->group_count; g++)
		for (size_t i = 0; i < model->groups[g].count; i++) {
			struct tensor *tensor = &model->groups[g].tensors[i];
			const zero_tensor *in = zero_file_find(file, tensor->name);

			check(!in == !!tensor->tied, "'%s' in the file", tensor->name);
			if (in)
				memcpy(tensor->ref.exported, tensor->ref.values,
				       tensor->count * zero_dtype_size(tensor->ref.dtype));
			if (in && tensors++ % 2 == (size_t)model->rank % 2 && tensor->group->member)
				check_file(tensor, in);
		}
	check(zero_file_count(file) == tensors, "%zu tensors, not %zu", zero_file_count(file),
	      tensors);
	if (reloaded && !reloaded->tied && !reloaded->group->begun) {
		source = zero_from_file(zero_file_find(file, reloaded->name));
		ok(zero_load(reloaded->param, &source));
		ref_loaded(&reloaded->ref);
	}
	zero_file_close(file);
	model->exported = true;
}

static void load_model(struct model *model)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s", file_path("export.safetensors"));
	if (model->exported)
		load_export(model, path);
}

/* ---- small things ---------------------------------------------------------------------------- */

static void mean(struct model *model)
{
	uint64_t seed = draw(&model->random);
	double values[3], weight = 0, want[3] = {0}, weights = 0;

	for (int from = 0; from < model->world; from++) {
		/* The last rank always has samples. */
		double its =
			(double)(mixed(seed + (uint64_t)from) % 4) + (from == model->world - 1);

		weights += its;
		for (uint64_t i = 0; i < 3; i++) {
			double value = (double)gradient(seed, from, i) / 7;

			want[i] += its * value;
			if (from == model->rank)
				values[i] = value;
		}
		weight = from == model->rank ? its : weight;
	}
	ok(zero_mean(model->job, values, 3, weight));
	for (int i = 0; i < 3; i++)
		check(values[i] == want[i] / weights, "mean %a, not %a", values[i],
		      want[i] / weights);
}

static void check_memory(struct model *model)
{
	bool gathered = false;
	zero_memory memory;

	for (size_t g = 0; g < model->group_count; g++)
		gathered = gathered || model->groups[g].begun;
	ok(zero_memory_now(model->job, &memory));
	check(gathered || memory.gathered.now == 0, "%zu bytes are gathered", memory.gathered.now);
	check(memory.total.now <= memory.total.peak, "%zu > %zu", memory.total.now,
	      memory.total.peak);
}

static void refuse(struct model *model)
{
	run_random(model, refusals);
}

/* clang-format off */
const struct operation operations[] = {
	{"load", 4, load_any},
	{"shard", 3, check_shard},
	{"export", 1, export_and_load},
	{"load_model", 2, load_model},
	{"gather", 8, gather_any},
	{"prefetch", 5, prefetch_any},
	{"walk", 3, walk_any},
	{"release", 8, release_any},
	{"update", 4, update_any},
	{"write", 4, write_any},
	{"backward", 16, backward},
	{"overflow", 1, overflow},
	{"reduce", 8, reduce_any},
	{"step", 8, step},
	{"mean", 2, mean},
	{"memory", 2, check_memory},
	{"refuse", 4, refuse},
	{NULL, 0, NULL},
};
/* clang-format on */

/* ---- calls that do not fit: an error on all ranks, and nothing changes ----------------------- */

static void refuse_type(struct model *model)
{
	fails(zero_gather(any_group(model)->handle, ZERO_I32), ZERO_E_INVALID);
}

static void refuse_other_type(struct model *model)
{
	struct group *group = any_group(model);
	zero_dtype as = choose_as(model, 1U << (group - model->groups));

	if (group->begun && group->as != as && group->member)
		fails(zero_gather(part_of(group, 0), as), ZERO_E_STATE);
}

static void refuse_release(struct model *model)
{
	struct group *group = any_group(model);

	if (!group->begun && group->member)
		fails(zero_release(part_of(group, 0)), ZERO_E_STATE);
}

static void refuse_gradient(struct model *model)
{
	struct tensor *tensor = any_tensor(model);

	if (tensor && !(tensor->spec.trainable && tensor->group->member))
		check(!zero_gradient_as(tensor->param, tensor->group->gradients),
		      "'%s' has a gradient", tensor->name);
	if (tensor && zero_group_slice(tensor->group->handle, 0) != tensor->group->handle) {
		check(!zero_gradient_as(tensor->param, tensor->group->gradients),
		      "'%s' has slices, and a whole gradient", tensor->name);
		fails(zero_reduce(tensor->group->handle), ZERO_E_STATE);
	}
	if (tensor && tensor->group->gradients != ZERO_F32)
		check(!zero_gradient(tensor->param), "'%s' has an f32 gradient", tensor->name);
}

static void refuse_others(struct model *model)
{
	struct group *group = any_group(model);

	if (group->member)
		return;
	fails(zero_gather(group->handle, ZERO_DTYPE_PARAM), ZERO_E_INVALID);
	fails(zero_prefetch(&group->handle, 1, ZERO_DTYPE_PARAM), ZERO_E_INVALID);
	fails(zero_reduce(group->handle), ZERO_E_INVALID);
}

static void refuse_load(struct model *model)
{
	struct tensor *tensor = any_tensor(model);
	zero_source wrong_rank = zero_from_rank(model->world, NULL), zeros = zero_from_constant(0);

	if (!tensor)
		return;
	if (tensor->tied)
		refused_load(tensor, &zeros, ZERO_E_INVALID);
	else if (tensor->group->begun)
		refused_load(tensor, &zeros, ZERO_E_STATE);
	else
		refused_load(tensor, &wrong_rank, ZERO_E_INVALID);
}

static zero_status fill_nothing(void *context, void *elements, size_t first, size_t count)
{
	(void)context;
	(void)elements;
	(void)first;
	(void)count;
	return ZERO_E_FILE;
}

/* The old values may be gone, on some ranks. */
static void refuse_callback(struct model *model)
{
	struct tensor *tensor = any_tensor(model);
	zero_source source = zero_from_callback(fill_nothing, NULL);

	if (!tensor || tensor->tied || tensor->group->begun || !tensor->count)
		return;
	refused_load(tensor, &source, ZERO_E_APPLICATION);
	load(model, tensor);
}

static void refuse_agree(struct model *model)
{
	size_t from = below(&model->random, (size_t)model->world);

	fails(zero_agree(model->job, (size_t)model->rank == from ? "one rank" : NULL),
	      ZERO_E_APPLICATION);
	check(zero_last_error_rank() == (int)from, "rank %d", zero_last_error_rank());
}

static void refuse_step(struct model *model)
{
	zero_adamw adamw = random_adamw(&model->random);

	release_all(model);
	reduce_slices(model);
	adamw.beta2 = 1;
	adamw.loss_scale = &model->scale;
	fails(zero_step(model->job, &adamw, NULL), ZERO_E_INVALID);
	ref_drop_gradients(model);
}

static void refuse_gathered_step(struct model *model)
{
	zero_adamw adamw = random_adamw(&model->random);
	bool gathered = false;

	for (size_t g = 0; g < model->group_count; g++)
		gathered = gathered || model->groups[g].begun;
	if (!gathered)
		return;
	fails(zero_step(model->job, &adamw, NULL), ZERO_E_STATE);
	ref_drop_gradients(model);
}

/* A reduce that was begun fails where it is waited for. */
static void refuse_reduce(struct model *model)
{
	struct group *group = any_group(model);
	zero_adamw adamw = random_adamw(&model->random);
	zero_status status;

	if (group->trainable || group->world < model->world)
		return;
	status = zero_reduce(zero_group_slice(group->handle, 0));
	if (!status) {
		release_all(model);
		status = zero_step(model->job, &adamw, NULL);
		ref_drop_gradients(model);
	}
	fails(status, ZERO_E_STATE);
}

/* clang-format off */
const struct operation refusals[] = {
	{"type", 1, refuse_type},
	{"other type", 3, refuse_other_type},
	{"release", 1, refuse_release},
	{"reduce", 1, refuse_reduce},
	{"gradient", 1, refuse_gradient},
	{"load", 3, refuse_load},
	{"callback", 1, refuse_callback},
	{"agree", 1, refuse_agree},
	{"step", 1, refuse_step},
	{"gathered step", 2, refuse_gathered_step},
	{"others", 1, refuse_others},
	{NULL, 0, NULL},
};
/* clang-format on */
