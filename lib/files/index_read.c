/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model in several files. The index is a JSON object whose weight_map gives each tensor's file;
 * the files lie beside it.
 */
#include "files/input.h"
#include "files/json_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One line of the weight_map. */
struct claim {
	char *tensor, *shard;
};

struct claims {
	struct claim *all;
	size_t count, room;
	bool found; /* the index has a weight_map */
};

static void free_claims(struct claims *claims)
{
	for (size_t i = 0; i < claims->count; i++) {
		free(claims->all[i].tensor);
		free(claims->all[i].shard);
	}
	free(claims->all);
}

/* A shard is a file beside the index: a name that leads elsewhere is refused. */
static const char *wrong_with_shard(const char *shard)
{
	size_t length = strlen(shard);
	const size_t end = strlen(".safetensors");

	if (strchr(shard, '/'))
		return "has a '/'";
	for (const char *c = shard; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return "has a control character";
	if (length <= end || strcmp(shard + length - end, ".safetensors") != 0)
		return "does not end in .safetensors";
	return NULL;
}

static zero_status add_claim(const char *path, struct claims *claims, const char *tensor,
			     const char *shard)
{
	struct claim claim;

	if (claims->count == claims->room) {
		size_t room = claims->room ? 2 * claims->room : 64;
		struct claim *all = realloc(claims->all, room * sizeof(*all));

		if (!all)
			return files_no_memory(path);
		claims->all = all;
		claims->room = room;
	}
	claim.tensor = strdup(tensor);
	claim.shard = strdup(shard);
	if (!claim.tensor || !claim.shard) {
		free(claim.tensor);
		free(claim.shard);
		return files_no_memory(path);
	}
	claims->all[claims->count++] = claim;
	return ZERO_OK;
}

/* The value of one tensor in the weight_map. */
static zero_status read_claim(struct walk *walk, const char *tensor, struct claims *claims)
{
	const char *shard, *wrong;
	size_t at = walk->at;
	zero_status status;
	json_t *value;

	if (!*tensor)
		return walk_fail(walk, walk->names[walk->count - 1].at,
				 "a tensor in weight_map has an empty name");
	status = walk_value(walk, &value);
	if (status)
		return status;
	shard = json_string_value(value);
	if (!shard) {
		status = walk_fail(walk, at,
				   "the file of tensor \"%s\" in weight_map is not a string",
				   files_words(tensor).text);
		goto out;
	}
	wrong = wrong_with_shard(shard);
	if (wrong)
		status = walk_fail(walk, at,
				   "the file \"%s\" of tensor \"%s\" in weight_map %s; it must be "
				   "the plain name of a .safetensors file beside the index",
				   files_words(shard).text, files_words(tensor).text, wrong);
	else
		status = add_claim(walk->path, claims, tensor, shard);
out:
	json_decref(value);
	return status;
}

static zero_status read_weight_map(struct walk *outer, struct claims *claims)
{
	const char *tensor;
	struct walk walk;
	zero_status status;

	claims->found = true;
	status = walk_into(outer, &walk);
	while (!status) {
		status = walk_next(&walk, &tensor);
		if (status || !tensor)
			break;
		status = read_claim(&walk, tensor, claims);
	}
	walk_out(outer, &walk);
	return status;
}

static zero_status read_claims(struct walk *walk, struct claims *claims)
{
	const char *name;
	zero_status status;
	json_t *value;

	status = walk_begin(walk);
	while (!status) {
		status = walk_next(walk, &name);
		if (status || !name)
			break;
		if (strcmp(name, "weight_map") == 0) {
			status = read_weight_map(walk, claims);
			continue;
		}
		/* "metadata" and whatever else tools put here says nothing of the bytes. */
		status = walk_value(walk, &value);
		if (!status)
			json_decref(value);
	}
	if (!status)
		status = walk_end(walk);
	if (!status && !claims->count)
		status = files_core()->fail(
			ZERO_E_FORMAT, "%s: %s; an index gives each tensor's file there",
			walk->path,
			claims->found ? "its weight_map is empty" : "has no weight_map");
	return status;
}

static zero_status load_claims(const char *path, struct claims *claims)
{
	struct walk walk = {.path = path};
	zero_status status;
	char *text = NULL;
	uint64_t bytes;
	int fd;

	status = files_open_regular(path, &fd, &bytes);
	if (status)
		return status;
	if (bytes > FILES_JSON_MAX) {
		status = files_core()->fail(ZERO_E_FORMAT,
					    "%s: is an index of %" PRIu64
					    " bytes; at most %u are allowed",
					    path, bytes, FILES_JSON_MAX);
		goto out;
	}
	text = malloc(bytes ? bytes : 1);
	if (!text) {
		status = files_no_memory(path);
		goto out;
	}
	status = files_read(fd, path, 0, bytes, text);
	if (status)
		goto out;
	walk.text = text;
	walk.bytes = bytes;
	status = read_claims(&walk, claims);
out:
	walk_free(&walk);
	free(text);
	close(fd);
	return status;
}

static int by_shard(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;
	int order = strcmp(x->shard, y->shard);

	return order ? order : strcmp(x->tensor, y->tensor);
}

static int by_tensor(const void *a, const void *b)
{
	return strcmp(((const struct claim *)a)->tensor, ((const struct claim *)b)->tensor);
}

static zero_status read_shard(struct zero_file *file, const char *index, const char *folder,
			      const struct claim *claim)
{
	char *path = files_join(folder, claim->shard);
	zero_status status;
	struct stat st;

	if (!path)
		return files_no_memory(index);
	if (stat(path, &st) != 0)
		status = files_core()->fail(ZERO_E_FILE,
					    "%s: tensor \"%s\" is to be in %s, which cannot be "
					    "opened: %s",
					    index, files_words(claim->tensor).text, path,
					    strerror(errno));
	else
		status = files_read_safetensors(file, path);
	free(path);
	return status;
}

/* Reads each shard once, in the order of their names. */
static zero_status read_shards(struct zero_file *file, const char *index, struct claims *claims)
{
	const char *slash = strrchr(index, '/');
	zero_status status = ZERO_OK;
	char *folder;

	folder = slash ? strndup(index, (size_t)(slash - index) + 1) : strdup(".");
	if (!folder)
		return files_no_memory(index);
	qsort(claims->all, claims->count, sizeof(*claims->all), by_shard);
	for (size_t i = 0; i < claims->count && !status; i++)
		if (i == 0 || strcmp(claims->all[i - 1].shard, claims->all[i].shard) != 0)
			status = read_shard(file, index, folder, &claims->all[i]);
	free(folder);
	return status;
}

static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static zero_status misplaced(const char *index, const struct claim *claim, const char *truth)
{
	return files_core()->fail(ZERO_E_FORMAT,
				  "%s: tensor \"%s\" is to be in %s, but is %s%s; index and files "
				  "are not of one model, or damaged",
				  index, files_words(claim->tensor).text,
				  files_words(claim->shard).text, truth ? "in " : "nowhere",
				  truth ? files_words(truth).text : "");
}

/* Both lists are sorted by name, so that one pass finds what only one of them has. */
static zero_status compare(const struct zero_file *file, const char *index, struct claims *claims)
{
	size_t t = 0, c = 0;

	qsort(claims->all, claims->count, sizeof(*claims->all), by_tensor);
	while (t < file->count || c < claims->count) {
		const zero_tensor *tensor = t < file->count ? file->by_name[t] : NULL;
		const struct claim *claim = c < claims->count ? &claims->all[c] : NULL;
		int order = !tensor ? 1 : !claim ? -1 : strcmp(tensor->name, claim->tensor);

		if (order > 0)
			return misplaced(index, claim, NULL);
		if (order < 0)
			return files_core()->fail(ZERO_E_FORMAT,
						  "%s: tensor \"%s\" is in %s, but not in the "
						  "weight_map; index and files are not of one "
						  "model, or damaged",
						  index, files_words(tensor->name).text,
						  tensor->path);
		if (strcmp(file_name(tensor->path), claim->shard) != 0)
			return misplaced(index, claim, file_name(tensor->path));
		t++;
		c++;
	}
	return ZERO_OK;
}

zero_status files_read_index(struct zero_file *file, const char *path)
{
	struct claims claims = {.all = NULL};
	zero_status status;

	status = load_claims(path, &claims);
	if (!status)
		status = read_shards(file, path, &claims);
	if (!status)
		status = files_sort_names(file);
	if (!status)
		status = compare(file, path, &claims);
	free_claims(&claims);
	return status;
}
