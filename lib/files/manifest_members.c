/* SPDX-License-Identifier: Apache-2.0 */
#include "files/manifest.h"

#include "files/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An object whose members are taken, and how a sentence names it. */
struct object {
	const char *path;
	const json_t *json;
	char name[160]; /* "tensor \"x\": " */
};

static struct files_words words_of(const json_t *value)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	struct files_words words = files_words(text ? text : "?");

	free(text);
	return words;
}

static zero_status refuse(const struct object *object, const char *key, const char *allowed)
{
	const json_t *value = json_object_get(object->json, key);

	if (!value)
		return files_core()->fail(ZERO_E_FORMAT, "%s: %shas no \"%s\"; allowed are %s",
					  object->path, object->name, key, allowed);
	return files_core()->fail(ZERO_E_FORMAT, "%s: %s\"%s\" is %s; allowed are %s", object->path,
				  object->name, key, words_of(value).text, allowed);
}

/* An object with just these members. */
static zero_status check_object(const struct object *object, const char *const *keys, size_t count)
{
	const char *key;
	json_t *value;

	if (!json_is_object(object->json))
		return files_core()->fail(ZERO_E_FORMAT, "%s: %sis %s; it must be an object",
					  object->path, object->name, words_of(object->json).text);
	json_object_foreach((json_t *)object->json, key, value)
	{
		bool known = false;

		for (size_t i = 0; i < count; i++)
			known = known || !strcmp(key, keys[i]);
		if (!known)
			return files_core()->fail(
				ZERO_E_FORMAT, "%s: %shas the unknown member \"%s\"", object->path,
				object->name, files_words(key).text);
	}
	return ZERO_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static zero_status take_count(const struct object *object, const char *key, uint64_t least,
			      uint64_t most, uint64_t *count)
{
	const json_t *value = json_object_get(object->json, key);
	char allowed[80];

	if (json_is_integer(value) && json_integer_value(value) >= 0) {
		*count = (uint64_t)json_integer_value(value);
		if (*count >= least && *count <= most)
			return ZERO_OK;
	}
	snprintf(allowed, sizeof(allowed), "whole numbers from %" PRIu64 " to %" PRIu64, least,
		 most);
	return refuse(object, key, allowed);
}

static zero_status take_text(const struct object *object, const char *key, char **text)
{
	const char *value = json_string_value(json_object_get(object->json, key));

	if (!value || !*value)
		return refuse(object, key, "strings that are not empty");
	*text = strdup(value);
	return *text ? ZERO_OK : files_no_memory(object->path);
}

static zero_status take_flag(const struct object *object, const char *key, bool *flag)
{
	const json_t *value = json_object_get(object->json, key);

	*flag = json_is_true(value);
	return json_is_boolean(value) ? ZERO_OK : refuse(object, key, "true and false");
}

static zero_status take_sum(const struct object *object, const char *key, uint64_t *sum)
{
	const char *text = json_string_value(json_object_get(object->json, key));

	if (!text || strlen(text) != MANIFEST_SUM_DIGITS ||
	    strspn(text, "0123456789abcdef") != MANIFEST_SUM_DIGITS)
		return refuse(object, key, "strings of 16 digits, 0 to 9 and a to f");
	*sum = strtoull(text, NULL, 16);
	return ZERO_OK;
}

static zero_status take_number(const struct object *object, const char *key, double *number)
{
	const json_t *value = json_object_get(object->json, key);

	*number = json_is_number(value) ? json_number_value(value) : (double)NAN;
	return json_is_number(value) || json_is_null(value)
		       ? ZERO_OK
		       : refuse(object, key, "numbers and null");
}

static zero_status expect_text(const struct object *object, const char *key, const char *wanted)
{
	const char *text = json_string_value(json_object_get(object->json, key));
	char allowed[80];

	if (text && !strcmp(text, wanted))
		return ZERO_OK;
	snprintf(allowed, sizeof(allowed), "\"%s\" alone", wanted);
	return refuse(object, key, allowed);
}

/* ---- the manifest's own ---------------------------------------------------------------------- */

/* The seal has been read before; a second one is refused as a name that comes twice. */
static const char *const small_keys[] = {"format", "version", "library", "step",      "world",
					 "stage",  "bucket",  "adamw",   "allgather", "states",
					 "block",  "user",    "seal",    "checksum"};

bool members_known(const char *name)
{
	for (size_t i = 0; i < sizeof(small_keys) / sizeof(*small_keys); i++)
		if (!strcmp(name, small_keys[i]))
			return true;
	return false;
}

/* What tells whether the rest can be understood at all. */
static zero_status check_format(const struct object *object)
{
	uint64_t number = 0;
	zero_status status = expect_text(object, "format", MANIFEST_FORMAT);

	if (!status)
		status = take_count(object, "version", 1, UINT32_MAX, &number);
	if (!status && number != MANIFEST_VERSION)
		return files_core()->fail(ZERO_E_UNSUPPORTED,
					  "%s: is of version %" PRIu64
					  " of the format; this library reads version %d",
					  object->path, number, MANIFEST_VERSION);
	if (!status)
		status = expect_text(object, "checksum", MANIFEST_SUM);
	if (!status)
		status = take_count(object, "block", ZERO_SUM_BLOCK, ZERO_SUM_BLOCK, &number);
	return status;
}

static zero_status take_adamw(const struct object *outer, struct zero_manifest *m)
{
	static const char *const keys[] = {"lr", "beta1", "beta2", "eps", "weight_decay", "clip"};
	double *numbers[] = {&m->lr, &m->beta1, &m->beta2, &m->eps, &m->weight_decay, &m->clip};
	struct object object = {.path = outer->path,
				.json = json_object_get(outer->json, "adamw"),
				.name = "\"adamw\" "};
	zero_status status;

	if (json_is_null(object.json))
		return ZERO_OK;
	if (!object.json)
		return refuse(outer, "adamw", "an object and null");
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	for (size_t i = 0; !status && i < sizeof(keys) / sizeof(*keys); i++)
		status = take_number(&object, keys[i], numbers[i]);
	m->has_adamw = true;
	return status;
}

static zero_status take_user(const struct object *outer, struct zero_manifest *m)
{
	static const char *const keys[] = {"bytes", "checksum"};
	struct object object = {.path = outer->path,
				.json = json_object_get(outer->json, "user"),
				.name = "\"user\" "};
	zero_status status;

	if (json_is_null(object.json))
		return ZERO_OK;
	if (!object.json)
		return refuse(outer, "user", "an object and null");
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	if (!status)
		status = take_count(&object, "bytes", 0, INT64_MAX, &m->user_bytes);
	if (!status)
		status = take_sum(&object, "checksum", &m->user_sum);
	m->has_user = true;
	return status;
}

/* `world` so that there is one file for each rank. */
static zero_status take_world(const struct object *object, size_t file_count,
			      struct zero_manifest *m)
{
	uint64_t world = 0;
	zero_status status = take_count(object, "world", 1, MEMBERS_WORLD_MOST, &world);

	if (!status && world != file_count)
		return files_core()->fail(ZERO_E_FORMAT,
					  "%s: \"world\" is %" PRIu64
					  ", but there are %zu \"files\"; "
					  "each rank has one",
					  object->path, world, file_count);
	if (!status)
		m->world = (int)world;
	return status;
}

static zero_status take_layout(const struct object *object, struct zero_manifest *m)
{
	static const char *const modes[] = {"auto", "single", "grouped"};
	bool known = false;
	zero_status status = take_text(object, "allgather", &m->allgather);

	for (size_t i = 0; !status && i < sizeof(modes) / sizeof(*modes); i++)
		known = known || !strcmp(m->allgather, modes[i]);
	if (!status && !known)
		status = refuse(object, "allgather", "\"auto\", \"single\" and \"grouped\"");
	if (!status)
		status = take_count(object, "bucket", 0, INT64_MAX, &m->bucket);
	return status;
}

zero_status members_small(const char *path, const json_t *json, size_t file_count,
			  struct zero_manifest *manifest)
{
	struct object object = {.path = path, .json = json};
	uint64_t stage = 0;
	zero_status status = check_format(&object);

	if (!status)
		status = take_text(&object, "library", &manifest->library);
	if (!status)
		status = take_count(&object, "step", 0, INT64_MAX, &manifest->step);
	if (!status)
		status = take_world(&object, file_count, manifest);
	if (!status)
		status = take_count(&object, "stage", 0, 3, &stage);
	if (!status)
		manifest->stage = (int)stage;
	if (!status)
		status = take_layout(&object, manifest);
	if (!status)
		status = take_adamw(&object, manifest);
	if (!status)
		status = take_flag(&object, "states", &manifest->states);
	return status ? status : take_user(&object, manifest);
}

/* ---- items of arrays ------------------------------------------------------------------------- */

zero_status members_team(const char *path, size_t i, const json_t *json,
			 struct zero_manifest_team *team)
{
	size_t count = json_array_size(json);

	if (!json_is_array(json) || count > MEMBERS_WORLD_MOST)
		return files_core()->fail(ZERO_E_FORMAT,
					  "%s: team %zu is %s; it must be an array of ranks", path,
					  i, words_of(json).text);
	team->ranks = calloc(count + 1, sizeof(*team->ranks));
	if (!team->ranks)
		return files_no_memory(path);
	for (size_t j = 0; j < count; j++) {
		const json_t *rank = json_array_get(json, j);

		if (!json_is_integer(rank) || json_integer_value(rank) < 0 ||
		    json_integer_value(rank) >= MEMBERS_WORLD_MOST)
			return files_core()->fail(
				ZERO_E_FORMAT,
				"%s: team %zu has %s for a rank; allowed are whole "
				"numbers from 0 to %d",
				path, i, words_of(rank).text, MEMBERS_WORLD_MOST - 1);
		team->ranks[j] = (int)json_integer_value(rank);
	}
	team->count = (int)count;
	return ZERO_OK;
}

static zero_status take_dtype(const struct object *object, zero_dtype *dtype)
{
	const char *text = json_string_value(json_object_get(object->json, "dtype"));

	for (int i = ZERO_DTYPE_PARAM + 1; text && entry_dtype_name((zero_dtype)i, NULL); i++)
		if (!strcmp(text, entry_dtype_name((zero_dtype)i, NULL))) {
			*dtype = (zero_dtype)i;
			return ZERO_OK;
		}
	return refuse(object, "dtype",
		      "\"F32\", \"F16\", \"BF16\", \"F64\", \"I64\", \"I32\", "
		      "\"U8\" and \"BOOL\"");
}

static zero_status take_shape(const struct object *object, struct zero_manifest_tensor *tensor)
{
	const json_t *shape = json_object_get(object->json, "shape");
	size_t ndim = json_array_size(shape);

	if (!json_is_array(shape) || ndim > ZERO_MAX_DIMS)
		return refuse(object, "shape", "arrays of up to 8 whole numbers from 0 on");
	for (size_t i = 0; i < ndim; i++) {
		const json_t *dim = json_array_get(shape, i);

		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return refuse(object, "shape", "arrays of up to 8 whole numbers from 0 on");
		tensor->shape[i] = (size_t)json_integer_value(dim);
	}
	tensor->ndim = (int)ndim;
	return ZERO_OK;
}

static zero_status take_team(const struct object *object, struct zero_manifest_tensor *tensor)
{
	uint64_t team = 0;
	zero_status status;

	tensor->team = -1;
	if (json_is_null(json_object_get(object->json, "team")))
		return ZERO_OK;
	status = take_count(object, "team", 0, INT32_MAX, &team);
	if (!status)
		tensor->team = (int)team;
	return status;
}

zero_status members_tensor(const char *path, size_t i, const json_t *json,
			   struct zero_manifest_tensor *tensor)
{
	static const char *const keys[] = {"name",      "group", "dtype", "shape",
					   "trainable", "team",  "first", "shard"};
	struct object object = {.path = path, .json = json};
	zero_status status;

	snprintf(object.name, sizeof(object.name), "tensor %zu ", i);
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	if (!status)
		status = take_text(&object, "name", &tensor->name);
	if (status)
		return status;
	snprintf(object.name, sizeof(object.name),
		 "tensor \"%s\": ", files_words(tensor->name).text);
	status = take_text(&object, "group", &tensor->group);
	if (!status)
		status = take_dtype(&object, &tensor->dtype);
	if (!status)
		status = take_shape(&object, tensor);
	if (!status)
		status = take_flag(&object, "trainable", &tensor->trainable);
	if (!status)
		status = take_team(&object, tensor);
	if (!status)
		status = take_count(&object, "first", 0, INT64_MAX, &tensor->first);
	if (!status)
		status = take_count(&object, "shard", 0, INT64_MAX, &tensor->shard);
	return status;
}

zero_status members_file(const char *path, size_t i, const json_t *json,
			 struct zero_manifest_file *file)
{
	static const char *const keys[] = {"name", "bytes", "header", "checksums"};
	struct object object = {.path = path, .json = json};
	zero_status status;

	snprintf(object.name, sizeof(object.name), "file %zu ", i);
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	if (!status)
		status = take_text(&object, "name", &file->name);
	if (!status)
		status = take_count(&object, "bytes", 0, INT64_MAX, &file->bytes);
	if (!status)
		status = take_sum(&object, "header", &file->header);
	if (!status)
		status = take_sum(&object, "checksums", &file->checksums);
	return status;
}
