/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a manifest, each checked by itself: its type and its range. */
#include "files/manifest.h"
#include "files/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An object whose members are read. */
struct object {
	const char *path;
	const json_t *json;
	char name[160]; /* how messages name it: "tensor \"x\": " */
};

/* The member is missing or has the wrong value. */
static zero_status fail_member(const struct object *object, const char *key, const char *allowed)
{
	const json_t *value = json_object_get(object->json, key);

	if (!value)
		return files_core()->fail(ZERO_E_FORMAT, "%s: %shas no \"%s\"; it must be %s",
					  object->path, object->name, key, allowed);
	return files_core()->fail(ZERO_E_FORMAT, "%s: %s\"%s\" is %s; it must be %s", object->path,
				  object->name, key, files_json_printable(value).text, allowed);
}

/* Fails unless it is an object that has no other members than these. */
static zero_status check_object(const struct object *object, const char *const *keys, size_t count)
{
	const char *key;
	json_t *value;

	if (!json_is_object(object->json))
		return files_core()->fail(ZERO_E_FORMAT, "%s: %sis %s; it must be an object",
					  object->path, object->name,
					  files_json_printable(object->json).text);
	json_object_foreach((json_t *)object->json, key, value)
	{
		bool known = false;

		for (size_t i = 0; i < count; i++)
			known = known || !strcmp(key, keys[i]);
		if (!known)
			return files_core()->fail(
				ZERO_E_FORMAT, "%s: %shas the unknown member \"%s\"", object->path,
				object->name, files_printable(key).text);
	}
	return ZERO_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static zero_status read_count(const struct object *object, const char *key, uint64_t least,
			      uint64_t most, uint64_t *count)
{
	char allowed[80];
	size_t value;

	if (files_json_size(json_object_get(object->json, key), &value) && value >= least &&
	    value <= most) {
		*count = value;
		return ZERO_OK;
	}
	snprintf(allowed, sizeof(allowed), "an integer from %" PRIu64 " to %" PRIu64, least, most);
	return fail_member(object, key, allowed);
}

static zero_status read_string(const struct object *object, const char *key, char **text)
{
	const char *value = json_string_value(json_object_get(object->json, key));

	if (!value || !*value)
		return fail_member(object, key, "a string that is not empty");
	*text = strdup(value);
	return *text ? ZERO_OK : files_no_memory(object->path);
}

static zero_status read_bool(const struct object *object, const char *key, bool *flag)
{
	const json_t *value = json_object_get(object->json, key);

	*flag = json_is_true(value);
	return json_is_boolean(value) ? ZERO_OK : fail_member(object, key, "true or false");
}

static zero_status read_checksum(const struct object *object, const char *key, uint64_t *sum)
{
	const char *text = json_string_value(json_object_get(object->json, key));

	if (!text || strlen(text) != MANIFEST_CHECKSUM_DIGITS ||
	    strspn(text, "0123456789abcdef") != MANIFEST_CHECKSUM_DIGITS)
		return fail_member(object, key, "a string of 16 hexadecimal digits");
	*sum = strtoull(text, NULL, 16);
	return ZERO_OK;
}

static zero_status read_double(const struct object *object, const char *key, double *number)
{
	const json_t *value = json_object_get(object->json, key);

	*number = json_is_number(value) ? json_number_value(value) : (double)NAN;
	return json_is_number(value) || json_is_null(value)
		       ? ZERO_OK
		       : fail_member(object, key, "a number or null");
}

static zero_status expect_string(const struct object *object, const char *key, const char *wanted)
{
	const char *text = json_string_value(json_object_get(object->json, key));
	char allowed[80];

	if (text && !strcmp(text, wanted))
		return ZERO_OK;
	snprintf(allowed, sizeof(allowed), "\"%s\"", wanted);
	return fail_member(object, key, allowed);
}

/* ---- members that are not arrays -------------------------------------------------------------- */

/* The seal has been checked before; a second one fails as a name that occurs twice. */
static const char *const job_keys[] = {"format", "version", "library", "step",      "world",
				       "stage",  "bucket",  "adamw",   "allgather", "states",
				       "block",  "user",    "seal",    "checksum",  "masters"};

bool manifest_is_job_member(const char *name)
{
	for (size_t i = 0; i < sizeof(job_keys) / sizeof(*job_keys); i++)
		if (!strcmp(name, job_keys[i]))
			return true;
	return false;
}

/* Whether this library can read the rest. */
static zero_status check_format(const struct object *object)
{
	uint64_t number = 0;
	zero_status status = expect_string(object, "format", MANIFEST_FORMAT);

	if (!status)
		status = read_count(object, "version", 1, UINT32_MAX, &number);
	if (!status && number > MANIFEST_VERSION)
		return files_core()->fail(ZERO_E_UNSUPPORTED,
					  "%s: the manifest has version %" PRIu64
					  " of the format; this library reads versions 1 to %d",
					  object->path, number, MANIFEST_VERSION);
	if (!status)
		status = expect_string(object, "checksum", MANIFEST_CHECKSUM);
	if (!status)
		status = read_count(object, "block", ZERO_CHECKSUM_BLOCK, ZERO_CHECKSUM_BLOCK,
				    &number);
	return status;
}

static zero_status read_adamw(const struct object *outer, struct zero_manifest *m)
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
		return fail_member(outer, "adamw", "an object or null");
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	for (size_t i = 0; !status && i < sizeof(keys) / sizeof(*keys); i++)
		status = read_double(&object, keys[i], numbers[i]);
	m->has_adamw = true;
	return status;
}

static zero_status read_user(const struct object *outer, struct zero_manifest *m)
{
	static const char *const keys[] = {"bytes", "checksum"};
	struct object object = {.path = outer->path,
				.json = json_object_get(outer->json, "user"),
				.name = "\"user\" "};
	zero_status status;

	if (json_is_null(object.json))
		return ZERO_OK;
	if (!object.json)
		return fail_member(outer, "user", "an object or null");
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	if (!status)
		status = read_count(&object, "bytes", 0, INT64_MAX, &m->user_bytes);
	if (!status)
		status = read_checksum(&object, "checksum", &m->user_checksum);
	m->has_user = true;
	return status;
}

static zero_status read_world(const struct object *object, size_t file_count,
			      struct zero_manifest *m)
{
	uint64_t world = 0;
	zero_status status = read_count(object, "world", 1, MANIFEST_WORLD_MAX, &world);

	if (!status && world != file_count)
		return files_core()->fail(ZERO_E_FORMAT,
					  "%s: \"world\" is %" PRIu64
					  ", but there are %zu \"files\"; "
					  "each rank must have one",
					  object->path, world, file_count);
	if (!status)
		m->world = (int)world;
	return status;
}

static zero_status read_layout(const struct object *object, struct zero_manifest *m)
{
	static const char *const modes[] = {"auto", "single", "grouped"};
	bool known = false;
	zero_status status = read_string(object, "allgather", &m->allgather);

	for (size_t i = 0; !status && i < sizeof(modes) / sizeof(*modes); i++)
		known = known || !strcmp(m->allgather, modes[i]);
	if (!status && !known)
		status = fail_member(object, "allgather", "\"auto\", \"single\" or \"grouped\"");
	if (!status)
		status = read_count(object, "bucket", 0, INT64_MAX, &m->bucket);
	return status;
}

zero_status manifest_read_job(const char *path, const json_t *json, size_t file_count,
			      struct zero_manifest *manifest)
{
	struct object object = {.path = path, .json = json};
	uint64_t stage = 0;
	zero_status status = check_format(&object);

	if (!status)
		status = read_string(&object, "library", &manifest->library);
	if (!status)
		status = read_count(&object, "step", 0, INT64_MAX, &manifest->step);
	if (!status)
		status = read_world(&object, file_count, manifest);
	if (!status)
		status = read_count(&object, "stage", 0, 3, &stage);
	if (!status)
		manifest->stage = (int)stage;
	if (!status)
		status = read_layout(&object, manifest);
	if (!status)
		status = read_adamw(&object, manifest);
	if (!status)
		status = read_bool(&object, "states", &manifest->states);
	/* The member is left out where it is false. */
	if (!status && json_object_get(json, "masters"))
		status = read_bool(&object, "masters", &manifest->masters);
	return status ? status : read_user(&object, manifest);
}

/* ---- items of arrays ------------------------------------------------------------------------- */

zero_status manifest_read_team(const char *path, size_t i, const json_t *json,
			       struct zero_manifest_team *team)
{
	size_t count = json_array_size(json);

	if (!json_is_array(json) || count > MANIFEST_WORLD_MAX)
		return files_core()->fail(ZERO_E_FORMAT,
					  "%s: team %zu is %s; it must be an array of ranks", path,
					  i, files_json_printable(json).text);
	team->ranks = calloc(count + 1, sizeof(*team->ranks));
	if (!team->ranks)
		return files_no_memory(path);
	for (size_t j = 0; j < count; j++) {
		const json_t *item = json_array_get(json, j);
		size_t rank;

		if (!files_json_size(item, &rank) || rank >= MANIFEST_WORLD_MAX)
			return files_core()->fail(
				ZERO_E_FORMAT,
				"%s: team %zu has %s for a rank; allowed are integers "
				"from 0 to %d",
				path, i, files_json_printable(item).text, MANIFEST_WORLD_MAX - 1);
		team->ranks[j] = (int)rank;
	}
	team->count = (int)count;
	return ZERO_OK;
}

static zero_status read_dtype(const struct object *object, zero_dtype *dtype)
{
	const char *text = json_string_value(json_object_get(object->json, "dtype"));

	if (text && safetensors_dtype(text, dtype))
		return ZERO_OK;
	return fail_member(object, "dtype", safetensors_allowed_dtypes);
}

static zero_status read_shape(const struct object *object, struct zero_manifest_tensor *tensor)
{
	const json_t *shape = json_object_get(object->json, "shape");
	size_t ndim = json_array_size(shape);
	bool valid = json_is_array(shape) && ndim <= ZERO_MAX_DIMS;

	for (size_t i = 0; valid && i < ndim; i++)
		valid = files_json_size(json_array_get(shape, i), &tensor->shape[i]);
	tensor->ndim = (int)ndim;
	return valid ? ZERO_OK
		     : fail_member(object, "shape", "an array of up to 8 integers of at least 0");
}

static zero_status read_tensor_team(const struct object *object,
				    struct zero_manifest_tensor *tensor)
{
	uint64_t team = 0;
	zero_status status;

	tensor->team = -1;
	if (json_is_null(json_object_get(object->json, "team")))
		return ZERO_OK;
	status = read_count(object, "team", 0, INT32_MAX, &team);
	if (!status)
		tensor->team = (int)team;
	return status;
}

/* ---- named states ---------------------------------------------------------------------------- */

static zero_status read_block(const struct object *object, uint64_t *block)
{
	size_t value;

	*block = ZERO_BLOCK_WHOLE;
	if (json_is_null(json_object_get(object->json, "block")))
		return ZERO_OK;
	if (files_json_size(json_object_get(object->json, "block"), &value) && value &&
	    !(value & (value - 1))) {
		*block = value;
		return ZERO_OK;
	}
	return fail_member(object, "block", "a power of two, or null");
}

static zero_status read_state(const struct object *outer, size_t i, const json_t *json,
			      struct zero_manifest_state *state)
{
	static const char *const keys[] = {"name", "dtype", "block"};
	struct object object = {.path = outer->path, .json = json};
	const char *name = json_string_value(json_object_get(json, "name"));
	zero_status status;

	snprintf(object.name, sizeof(object.name), "%.120snamed state %zu ", outer->name, i);
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	if (!status && (!name || !*name || strlen(name) > ZERO_STATE_NAME_MAX || strchr(name, '/')))
		status = fail_member(&object, "name", "a string of 1 to 64 bytes without a slash");
	if (status)
		return status;
	snprintf(state->name, sizeof(state->name), "%s", name);
	status = read_dtype(&object, &state->dtype);
	return status ? status : read_block(&object, &state->block);
}

/* The member is left out where there are none. */
static zero_status read_states(const struct object *object, struct zero_manifest_tensor *tensor)
{
	const json_t *states = json_object_get(object->json, "named_states");
	size_t count = json_array_size(states);
	zero_status status = ZERO_OK;

	if (!states)
		return ZERO_OK;
	if (!json_is_array(states) || !count)
		return fail_member(object, "named_states", "an array that is not empty");
	tensor->states = calloc(count, sizeof(*tensor->states));
	if (!tensor->states)
		return files_no_memory(object->path);
	for (size_t i = 0; !status && i < count; i++)
		status = read_state(object, i, json_array_get(states, i), &tensor->states[i]);
	tensor->state_count = count;
	return status;
}

/* ---- tensors and files ----------------------------------------------------------------------- */

zero_status manifest_read_tensor(const char *path, size_t i, const json_t *json,
				 struct zero_manifest_tensor *tensor)
{
	static const char *const keys[] = {"name", "group", "dtype", "shape",        "trainable",
					   "team", "first", "shard", "named_states", "steps"};
	struct object object = {.path = path, .json = json};
	zero_status status;

	snprintf(object.name, sizeof(object.name), "tensor %zu ", i);
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	if (!status)
		status = read_string(&object, "name", &tensor->name);
	if (status)
		return status;
	snprintf(object.name, sizeof(object.name),
		 "tensor \"%s\": ", files_printable(tensor->name).text);
	status = read_string(&object, "group", &tensor->group);
	if (!status)
		status = read_dtype(&object, &tensor->dtype);
	if (!status)
		status = read_shape(&object, tensor);
	if (!status)
		status = read_bool(&object, "trainable", &tensor->trainable);
	if (!status)
		status = read_tensor_team(&object, tensor);
	if (!status)
		status = read_count(&object, "first", 0, INT64_MAX, &tensor->first);
	if (!status)
		status = read_count(&object, "shard", 0, INT64_MAX, &tensor->shard);
	tensor->has_steps = json_object_get(json, "steps") != NULL;
	if (!status && tensor->has_steps)
		status = read_count(&object, "steps", 0, INT64_MAX, &tensor->steps);
	return status ? status : read_states(&object, tensor);
}

zero_status manifest_read_file(const char *path, size_t i, const json_t *json,
			       struct zero_manifest_file *file)
{
	static const char *const keys[] = {"name", "bytes", "header", "checksums"};
	struct object object = {.path = path, .json = json};
	zero_status status;

	snprintf(object.name, sizeof(object.name), "file %zu ", i);
	status = check_object(&object, keys, sizeof(keys) / sizeof(*keys));
	if (!status)
		status = read_string(&object, "name", &file->name);
	if (!status)
		status = read_count(&object, "bytes", 0, INT64_MAX, &file->bytes);
	if (!status)
		status = read_checksum(&object, "header", &file->header);
	if (!status)
		status = read_checksum(&object, "checksums", &file->checksums);
	return status;
}
