/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --inspect: prints what is in a checkpoint, and verifies each byte of it. Errors name all damaged
 * files and tensors, not only the first.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "checkpoint/checkpoint.h"
#include "core/error.h"
#include "core/module.h"
#include "core/text.h"
#include "launcher/inspect/inspect.h"
#include "launcher/plan/model.h"
#include "launcher/text.h"

#ifdef HAVE_FILES

struct inspection {
	FILE *out;
	const struct zero_files_ops *files;
	const char *folder;
	struct zero_manifest *manifest;
	uint64_t verified; /* bytes */
	unsigned errors;
};

static void add_error(struct inspection *in)
{
	in->errors++;
	print_error("%s", zero_last_error());
}

static void print_bytes(FILE *out, uint64_t bytes)
{
	fputs(zero_size_text(bytes).text, out);
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static void print_named_states(const struct inspection *in)
{
	const struct zero_manifest *m = in->manifest;
	uint64_t bytes = 0;
	size_t count = 0;

	for (size_t i = 0; i < m->tensor_count; i++)
		for (size_t s = 0; s < m->tensors[i].state_count; s++, count++) {
			const struct zero_manifest_state *state = &m->tensors[i].states[s];

			bytes += zero_state_kept(state->block, 0,
						 zero_manifest_elements(&m->tensors[i]))
					 .count *
				 zero_dtype_size(state->dtype);
		}
	if (!count)
		return;
	fprintf(in->out, "  named       %zu states of the program, ", count);
	print_bytes(in->out, bytes);
	fputs("\n", in->out);
}

static void print_tensors(const struct inspection *in)
{
	const struct zero_manifest *m = in->manifest;
	uint64_t elements = 0, values = 0, moments = 0, masters = 0;

	for (size_t i = 0; i < m->tensor_count; i++) {
		const struct zero_manifest_tensor *tensor = &m->tensors[i];
		uint64_t count = zero_manifest_elements(tensor);

		elements += count;
		values += count * zero_dtype_size(tensor->dtype);
		if (zero_tensor_has(m, tensor, ZERO_SAVED_EXP_AVG))
			moments += 2 * count * sizeof(float);
		if (zero_tensor_has(m, tensor, ZERO_SAVED_MASTER))
			masters += count * sizeof(float);
	}
	fprintf(in->out, "  parameters  %zu of %" PRIu64 " elements, ", m->tensor_count, elements);
	print_bytes(in->out, values);
	fprintf(in->out, "\n  states      ");
	if (m->states || m->masters) {
		print_bytes(in->out, moments);
		fputs(" of moments, ", in->out);
		print_bytes(in->out, masters);
		fputs(" of f32 masters\n", in->out);
	} else {
		fputs("none: zero_step has taken no step\n", in->out);
	}
	print_named_states(in);
}

static void print_manifest(const struct inspection *in)
{
	const struct zero_manifest *m = in->manifest;

	print_in_line(in->out, in->folder, 0);
	fprintf(in->out, "\n  step        %" PRIu64 "\n", m->step);
	fprintf(in->out, "  ranks       %d, stage %d, allgather=", m->world, m->stage);
	print_in_line(in->out, m->allgather, 0);
	fputs(", bucket ", in->out);
	print_bytes(in->out, m->bucket);
	if (m->team_count)
		fprintf(in->out, ", %zu teams", m->team_count);
	fputs("\n  library     ", in->out);
	print_in_line(in->out, m->library, 0);
	fputs("\n", in->out);
	print_tensors(in);
	if (m->has_adamw)
		fprintf(in->out,
			"  optimizer   lr %g, beta1 %g, beta2 %g, eps %g, weight_decay %g, "
			"clip %g\n",
			m->lr, m->beta1, m->beta2, m->eps, m->weight_decay, m->clip);
	fputs("  user        ", in->out);
	if (m->has_user)
		print_bytes(in->out, m->user_bytes);
	else
		fputs("none", in->out);
	fputs("\n", in->out);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Checks the header, which other programs read, against the manifest. */
static zero_status compare_header(const struct inspection *in,
				  const struct zero_shard_reader *reader, struct zero_file *file)
{
	const struct zero_shard_layout *layout = &reader->layout;
	zero_status status = ZERO_OK;

	if (in->files->count(file) != layout->count + 1)
		return zero_fail(ZERO_E_FORMAT, "%s: has %zu tensors; the manifest says %zu",
				 reader->path, in->files->count(file), layout->count + 1);
	for (size_t i = 0; !status && i < layout->count; i++) {
		const struct zero_shard_slice *slice = &layout->slices[i];
		const char *state = zero_slice_state(in->manifest, slice);
		char *name =
			format_text("%s%s%s%s", zero_saved_prefix(slice->kind), state ? state : "",
				    state ? "/" : "", in->manifest->tensors[slice->tensor].name);
		const zero_tensor *tensor = in->files->find(file, name);

		if (!tensor)
			status = zero_fail(ZERO_E_FORMAT, "%s: has no tensor \"%.200s\"",
					   reader->path, name);
		else if (tensor->dtype != slice->dtype || tensor->ndim != 1 ||
			 tensor->shape[0] != slice->count ||
			 tensor->offset != reader->data + slice->at)
			status = zero_fail(ZERO_E_FORMAT,
					   "%s: tensor \"%.200s\" has another type, size or place "
					   "than the manifest says",
					   reader->path, name);
		free(name);
	}
	return status;
}

static zero_status check_header(const struct inspection *in, struct zero_shard_reader *reader)
{
	struct zero_file *file = NULL;
	zero_status status = zero_shard_check_header(reader);

	if (!status)
		status = in->files->open(reader->path, &file);
	if (!status)
		status = compare_header(in, reader, file);
	in->files->close(file);
	return status;
}

static void check_file(struct inspection *in, int rank)
{
	const struct zero_manifest_file *file = &in->manifest->files[rank];
	struct zero_shard_reader reader;
	unsigned before = in->errors;
	zero_status status = zero_shard_plan(&reader, in->files, in->manifest, in->folder, rank);

	if (!status)
		status = zero_shard_open_file(&reader);
	if (status) {
		add_error(in);
		goto out;
	}
	if (check_header(in, &reader))
		add_error(in);
	status = zero_shard_check_checksums(&reader);
	if (status)
		add_error(in);
	for (size_t i = 0; !status && i < reader.layout.count; i++)
		if (zero_shard_read(&reader, &reader.layout.slices[i], 0, NULL,
				    reader.layout.slices[i].bytes))
			add_error(in);
	in->verified += reader.read;
out:
	zero_shard_close(&reader);
	fprintf(in->out, "  %s  ", file->name);
	print_bytes(in->out, file->bytes);
	fputs(in->errors > before ? "  DAMAGED\n" : "\n", in->out);
}

static void check_user(struct inspection *in)
{
	void *user = NULL;

	if (!in->manifest->has_user)
		return;
	if (zero_checkpoint_user(in->files, in->manifest, in->folder, &user))
		add_error(in);
	else
		in->verified += in->manifest->user_bytes;
	free(user);
}

static int inspect_one(struct inspection *in)
{
	char *path = format_text("%s/manifest.json", in->folder);
	unsigned before = in->errors;
	zero_status status = in->files->manifest_read(path, &in->manifest);

	free(path);
	if (status) {
		add_error(in);
		return EXIT_FAILURE;
	}
	print_manifest(in);
	for (int rank = 0; rank < in->manifest->world; rank++)
		check_file(in, rank);
	check_user(in);
	if (in->errors > before) {
		fprintf(in->out, "  DAMAGED: %u errors\n", in->errors - before);
	} else {
		fputs("  not damaged: ", in->out);
		print_bytes(in->out, in->verified);
		fputs(" verified\n", in->out);
	}
	in->files->manifest_free(in->manifest);
	return in->errors ? EXIT_FAILURE : 0;
}

/* ---- a folder of checkpoints ----------------------------------------------------------------- */

static int by_name(const struct dirent **a, const struct dirent **b)
{
	size_t x = strlen((*a)->d_name), y = strlen((*b)->d_name);

	/* A step of more digits is later. */
	if (x != y && !strchr((*a)->d_name, '.') && !strchr((*b)->d_name, '.'))
		return x < y ? -1 : 1;
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_step(const struct dirent *entry)
{
	return strncmp(entry->d_name, "step-", 5) == 0;
}

static void list_one(struct inspection *in, const char *folder, const char *name)
{
	char *path = format_text("%s/%s/manifest.json", folder, name);
	struct zero_manifest *manifest;
	uint64_t step;

	fputs("  ", in->out);
	print_in_line(in->out, name, 0);
	if (!zero_checkpoint_name(name, &step)) {
		fputs("  partial: being written, or left by a job that was killed\n", in->out);
	} else if (access(path, F_OK) != 0) {
		fputs("  partial: has no manifest\n", in->out);
	} else if (in->files->manifest_read(path, &manifest)) {
		fputs("  DAMAGED\n", in->out);
		add_error(in);
	} else {
		uint64_t bytes = manifest->user_bytes;

		for (int i = 0; i < manifest->world; i++)
			bytes += manifest->files[i].bytes;
		fprintf(in->out, "  complete: %d ranks, ", manifest->world);
		print_bytes(in->out, bytes);
		fputs("\n", in->out);
		in->files->manifest_free(manifest);
	}
	free(path);
}

static void list_all(struct inspection *in, const char *folder)
{
	char *latest = format_text("%s/latest", folder), target[256];
	ssize_t length = readlink(latest, target, sizeof target - 1);
	struct dirent **entries = NULL;
	int count = scandir(folder, &entries, is_step, by_name);

	print_in_line(in->out, folder, 0);
	fputs("\n", in->out);
	for (int i = 0; i < count; i++) {
		list_one(in, folder, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	if (length > 0) {
		target[length] = '\0';
		fputs("  latest -> ", in->out);
		print_in_line(in->out, target, 0);
		fputs("\n", in->out);
		if (!zero_checkpoint_exists(latest)) {
			in->errors++;
			print_error("%s: is a link to '%s', where there is no checkpoint", latest,
				    target);
		}
	}
	free(latest);
}

int inspect(FILE *out, const char *path)
{
	struct inspection in = {.out = out, .files = model_files()};
	char *folder = NULL;
	int status = EXIT_FAILURE;

	if (zero_checkpoint_find(path, &folder)) {
		print_error("%s", zero_last_error());
		return EXIT_FAILURE;
	}
	if (!zero_checkpoint_exists(path) && access(path, F_OK) == 0)
		list_all(&in, path);
	if (folder) {
		in.folder = folder;
		status = inspect_one(&in);
	} else {
		print_error("%s: there is no checkpoint here: a folder with a manifest.json, or a "
			    "folder of such folders",
			    path);
	}
	free(folder);
	return in.errors ? EXIT_FAILURE : status;
}

#else

int inspect(FILE *out, const char *path)
{
	(void)out;
	print_error("%s cannot be read: zerorun was built without Jansson and xxHash, which "
		    "checkpoints need",
		    path);
	return EXIT_FAILURE;
}

#endif
