/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a checkpoint's manifest. The seal is checked first and detects damage. Then each member is
 * checked as in any untrusted file, because a seal can be forged.
 */
#include "files/json_reader.h"
#include "files/manifest.h"
#include "files/safetensors.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct manifest_reader {
	struct json_reader json;
	struct zero_manifest *manifest;
	json_t *job; /* the members that are not arrays, and true for those that are */
};

void manifest_free(struct zero_manifest *manifest)
{
	if (!manifest)
		return;
	for (size_t i = 0; manifest->teams && i < manifest->team_count; i++)
		free(manifest->teams[i].ranks);
	for (size_t i = 0; manifest->tensors && i < manifest->tensor_count; i++) {
		free(manifest->tensors[i].name);
		free(manifest->tensors[i].group);
		free(manifest->tensors[i].states);
	}
	for (int i = 0; manifest->files && i < manifest->world; i++)
		free(manifest->files[i].name);
	free(manifest->teams);
	free(manifest->tensors);
	free(manifest->files);
	free(manifest->library);
	free(manifest->allgather);
	free(manifest);
}

/* Checks the checksum at the end of the text, which is that of the bytes before it. */
static zero_status check_seal(const char *path, const char *text, size_t bytes, uint64_t *seal)
{
	const size_t begin = strlen(MANIFEST_SEAL), end = strlen(MANIFEST_END);
	const size_t tail = begin + MANIFEST_CHECKSUM_DIGITS + end;
	char wanted[MANIFEST_CHECKSUM_DIGITS + 1], found[MANIFEST_CHECKSUM_DIGITS + 1];

	if (bytes < tail || memcmp(text + bytes - end, MANIFEST_END, end) != 0 ||
	    memcmp(text + bytes - tail, MANIFEST_SEAL, begin) != 0)
		return zero_core->fail(ZERO_E_FORMAT,
				       "%s: its %zu bytes do not end with a \"seal\"; it is cut "
				       "short, damaged or not a manifest of a checkpoint",
				       path, bytes);
	*seal = files_checksum(text, bytes - tail);
	snprintf(wanted, sizeof(wanted), "%016" PRIx64, *seal);
	snprintf(found, sizeof(found), "%.*s", MANIFEST_CHECKSUM_DIGITS,
		 text + bytes - tail + begin);
	if (strcmp(wanted, found) != 0)
		return zero_core->fail(ZERO_E_FORMAT,
				       "%s: the manifest is damaged: its \"seal\" is \"%s\", but "
				       "the checksum of the %zu bytes before it is \"%s\"",
				       path, files_printable(found).text, bytes - tail, wanted);
	return ZERO_OK;
}

/* ---- objects --------------------------------------------------------------------------------- */

/* Fails unless it is an object without negative integers: a manifest has none. `object` is how
   messages name it: "tensor \"x\": ". */
static zero_status check_object(const char *path, const char *object, json_t *json)
{
	const char *key;
	json_t *value;

	if (!json_is_object(json))
		return zero_core->fail(ZERO_E_FORMAT, "%s: %sis %s; it must be an object", path,
				       object, files_json_printable(json).text);
	json_object_foreach(json, key, value)
	{
		if (json_is_integer(value) && json_integer_value(value) < 0)
			return zero_core->fail(
				ZERO_E_FORMAT,
				"%s: %s\"%s\" is %" JSON_INTEGER_FORMAT "; it must be at least 0",
				path, object, files_printable(key).text, json_integer_value(value));
	}
	return ZERO_OK;
}

/* Jansson could not unpack an object's members. */
static zero_status refuse_members(const char *path, const char *object, const json_error_t *error)
{
	return zero_core->fail(ZERO_E_FORMAT,
			       "%s: %shas other members than zero_checkpoint(5) says: %s", path,
			       object, files_printable(error->text).text);
}

/* A member has the right type, but not an allowed value. */
static zero_status refuse_value(const char *path, const char *object, json_t *json, const char *key,
				const char *allowed)
{
	return zero_core->fail(ZERO_E_FORMAT, "%s: %s\"%s\" is %s; it must be %s", path, object,
			       key, files_json_printable(json_object_get(json, key)).text, allowed);
}

static const char allowed_checksums[] = "a string of 16 hexadecimal digits";

static bool read_checksum(const char *text, uint64_t *sum)
{
	*sum = strtoull(text, NULL, 16);
	return strlen(text) == MANIFEST_CHECKSUM_DIGITS &&
	       strspn(text, "0123456789abcdef") == MANIFEST_CHECKSUM_DIGITS;
}

/* ---- items of arrays ------------------------------------------------------------------------- */

static zero_status read_ranks(const char *path, size_t i, const json_t *json,
			      struct zero_manifest_team *team)
{
	size_t count = json_array_size(json);

	if (!json_is_array(json) || count > MANIFEST_WORLD_MAX)
		return zero_core->fail(ZERO_E_FORMAT,
				       "%s: team %zu is %s; it must be an array of ranks", path, i,
				       files_json_printable(json).text);
	team->ranks = calloc(count + 1, sizeof(*team->ranks));
	if (!team->ranks)
		return files_no_memory(path);
	for (size_t j = 0; j < count; j++) {
		const json_t *item = json_array_get(json, j);
		size_t rank;

		if (!files_json_size(item, &rank) || rank >= MANIFEST_WORLD_MAX)
			return zero_core->fail(
				ZERO_E_FORMAT,
				"%s: team %zu has %s for a rank; allowed are integers "
				"from 0 to %d",
				path, i, files_json_printable(item).text, MANIFEST_WORLD_MAX - 1);
		team->ranks[j] = (int)rank;
	}
	team->count = (int)count;
	return ZERO_OK;
}

static zero_status read_team(const char *path, json_t *json, struct zero_manifest *m)
{
	size_t i = m->team_count;
	struct zero_manifest_team *teams = files_grow(m->teams, i, sizeof(*teams));

	if (!teams)
		return files_no_memory(path);
	teams[i] = (struct zero_manifest_team){0};
	m->teams = teams;
	m->team_count++;
	return read_ranks(path, i, json, &teams[i]);
}

static zero_status read_state(const char *path, const char *tensor, size_t i, json_t *json,
			      struct zero_manifest_state *state)
{
	const char *name, *dtype;
	json_t *block;
	json_error_t error;
	char object[200];
	zero_status status;
	size_t elements;

	snprintf(object, sizeof(object), "%snamed state %zu ", tensor, i);
	status = check_object(path, object, json);
	if (status)
		return status;
	if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:s, s:o}", "name", &name, "dtype",
			   &dtype, "block", &block))
		return refuse_members(path, object, &error);
	if (!*name || strlen(name) > ZERO_STATE_NAME_MAX || strchr(name, '/'))
		return refuse_value(path, object, json, "name",
				    "a string of 1 to 64 bytes without a slash");
	strcpy(state->name, name);
	if (!safetensors_dtype(dtype, &state->dtype))
		return refuse_value(path, object, json, "dtype", safetensors_allowed_dtypes);
	state->block = ZERO_BLOCK_WHOLE;
	if (json_is_null(block))
		return ZERO_OK;
	if (!files_json_size(block, &elements) || !elements || (elements & (elements - 1)))
		return refuse_value(path, object, json, "block", "a power of two, or null");
	state->block = elements;
	return ZERO_OK;
}

/* The member is left out where there are none. */
static zero_status read_states(const char *path, const char *object, json_t *json,
			       struct zero_manifest_tensor *tensor)
{
	const json_t *states = json_object_get(json, "named_states");
	size_t count = json_array_size(states);
	zero_status status = ZERO_OK;

	if (!states)
		return ZERO_OK;
	if (!count)
		return refuse_value(path, object, json, "named_states",
				    "an array that is not empty");
	tensor->states = calloc(count, sizeof(*tensor->states));
	if (!tensor->states)
		return files_no_memory(path);
	for (size_t i = 0; !status && i < count; i++)
		status = read_state(path, object, i, json_array_get(states, i), &tensor->states[i]);
	tensor->state_count = count;
	return status;
}

static bool read_shape(const json_t *shape, struct zero_manifest_tensor *tensor)
{
	bool valid = json_is_array(shape) && json_array_size(shape) <= ZERO_MAX_DIMS;

	for (size_t i = 0; valid && i < json_array_size(shape); i++)
		valid = files_json_size(json_array_get(shape, i), &tensor->shape[i]);
	tensor->ndim = (int)json_array_size(shape);
	return valid;
}

static zero_status read_tensor_members(const char *path, const char *object, json_t *json,
				       struct zero_manifest_tensor *tensor)
{
	const char *name, *group, *dtype;
	json_t *shape, *team, *states = NULL;
	json_int_t first, shard, steps = -1;
	size_t number = 0;
	json_error_t error;
	int trainable;
	zero_status status = check_object(path, object, json);

	if (status)
		return status;
	if (json_unpack_ex(json, &error, JSON_STRICT,
			   "{s:s, s:s, s:s, s:o, s:b, s:o, s:I, s:I, s?I, s?o}", "name", &name,
			   "group", &group, "dtype", &dtype, "shape", &shape, "trainable",
			   &trainable, "team", &team, "first", &first, "shard", &shard, "steps",
			   &steps, "named_states", &states))
		return refuse_members(path, object, &error);
	if (!*name)
		return refuse_value(path, object, json, "name", "a string that is not empty");
	if (!safetensors_dtype(dtype, &tensor->dtype))
		return refuse_value(path, object, json, "dtype", safetensors_allowed_dtypes);
	if (!read_shape(shape, tensor))
		return refuse_value(path, object, json, "shape",
				    "an array of up to 8 integers of at least 0");
	if (!json_is_null(team) && (!files_json_size(team, &number) || number > INT_MAX))
		return refuse_value(path, object, json, "team", "the number of a team, or null");
	tensor->team = json_is_null(team) ? -1 : (int)number;
	tensor->trainable = trainable;
	tensor->first = (uint64_t)first;
	tensor->shard = (uint64_t)shard;
	tensor->has_steps = steps >= 0;
	tensor->steps = tensor->has_steps ? (uint64_t)steps : 0;
	tensor->name = strdup(name);
	tensor->group = strdup(group);
	return tensor->name && tensor->group ? read_states(path, object, json, tensor)
					     : files_no_memory(path);
}

static zero_status read_tensor(const char *path, json_t *json, struct zero_manifest *m)
{
	const char *name = json_string_value(json_object_get(json, "name"));
	size_t i = m->tensor_count;
	struct zero_manifest_tensor *tensors = files_grow(m->tensors, i, sizeof(*tensors));
	char object[120];

	if (!tensors)
		return files_no_memory(path);
	tensors[i] = (struct zero_manifest_tensor){0};
	m->tensors = tensors;
	m->tensor_count++;
	if (name && *name)
		snprintf(object, sizeof(object), "tensor \"%s\": ", files_printable(name).text);
	else
		snprintf(object, sizeof(object), "tensor %zu ", i);
	return read_tensor_members(path, object, json, &tensors[i]);
}

/* `world` counts the files until the member of this name is read. */
static zero_status read_file(const char *path, json_t *json, struct zero_manifest *m)
{
	struct zero_manifest_file *files = files_grow(m->files, (size_t)m->world, sizeof(*files));
	const char *name, *header, *checksums;
	json_int_t bytes;
	json_error_t error;
	char object[40];
	zero_status status;

	if (!files)
		return files_no_memory(path);
	m->files = files;
	if (m->world == MANIFEST_WORLD_MAX)
		return zero_core->fail(
			ZERO_E_FORMAT,
			"%s: has more than %d \"files\", which is the largest number of ranks",
			path, MANIFEST_WORLD_MAX);
	snprintf(object, sizeof(object), "file %d ", m->world);
	status = check_object(path, object, json);
	if (status)
		return status;
	files = &files[m->world];
	if (json_unpack_ex(json, &error, JSON_STRICT, "{s:s, s:I, s:s, s:s}", "name", &name,
			   "bytes", &bytes, "header", &header, "checksums", &checksums))
		return refuse_members(path, object, &error);
	if (!read_checksum(header, &files->header))
		return refuse_value(path, object, json, "header", allowed_checksums);
	if (!read_checksum(checksums, &files->checksums))
		return refuse_value(path, object, json, "checksums", allowed_checksums);
	files->bytes = (uint64_t)bytes;
	files->name = strdup(name);
	m->world += files->name != NULL;
	return files->name ? ZERO_OK : files_no_memory(path);
}

/* Reads one item after the other. */
static zero_status read_array(struct manifest_reader *r,
			      zero_status (*read)(const char *, json_t *, struct zero_manifest *))
{
	zero_status status = json_reader_array(&r->json);
	bool more = true;

	for (size_t i = 0; !status; i++) {
		json_t *json;

		status = json_reader_item(&r->json, i, &more);
		if (status || !more)
			break;
		status = json_reader_value(&r->json, &json);
		if (status)
			break;
		status = read(r->json.path, json, r->manifest);
		json_decref(json);
	}
	return status;
}

/* ---- all members ----------------------------------------------------------------------------- */

static zero_status read_members(struct manifest_reader *r)
{
	enum { MEMBERS_MAX = 19 }; /* more are not read, so that their memory is bounded */
	const char *name;
	zero_status status = json_reader_object(&r->json);

	while (!status) {
		json_t *json = NULL;

		status = json_reader_member(&r->json, &name);
		if (status || !name)
			break;
		if (r->json.count > MEMBERS_MAX)
			return json_reader_fail(&r->json, r->json.at,
						"\"%s\" is not a member of a manifest, or one "
						"occurs twice",
						files_printable(name).text);
		if (!strcmp(name, "teams"))
			status = read_array(r, read_team);
		else if (!strcmp(name, "tensors"))
			status = read_array(r, read_tensor);
		else if (!strcmp(name, "files"))
			status = read_array(r, read_file);
		else
			status = json_reader_value(&r->json, &json);
		if (!status && json_object_set_new(r->job, name, json ? json : json_true()) != 0)
			status = files_no_memory(r->json.path);
	}
	return status ? status : json_reader_end(&r->json);
}

static zero_status read_adamw(const char *path, json_t *json, struct zero_manifest *m)
{
	static const char *const keys[] = {"lr", "beta1", "beta2", "eps", "weight_decay", "clip"};
	double *numbers[] = {&m->lr, &m->beta1, &m->beta2, &m->eps, &m->weight_decay, &m->clip};
	const size_t count = sizeof(keys) / sizeof(*keys);

	if (json_is_null(json))
		return ZERO_OK;
	m->has_adamw = true;
	for (size_t i = 0; i < count; i++) {
		json_t *value = json_object_get(json, keys[i]);

		if (!json_is_number(value) && !json_is_null(value))
			return zero_core->fail(
				ZERO_E_FORMAT,
				"%s: \"adamw\" has %s for \"%s\"; it must be a number or null",
				path, files_json_printable(value).text, keys[i]);
		*numbers[i] = json_is_null(value) ? (double)NAN : json_number_value(value);
	}
	return json_object_size(json) == count
		       ? ZERO_OK
		       : zero_core->fail(ZERO_E_FORMAT,
					 "%s: \"adamw\" has %zu members; it must have %zu", path,
					 json_object_size(json), count);
}

static zero_status read_user(const char *path, json_t *json, struct zero_manifest *m)
{
	static const char object[] = "\"user\": ";
	const char *checksum;
	json_error_t error;
	json_int_t bytes;
	zero_status status;

	if (json_is_null(json))
		return ZERO_OK;
	status = check_object(path, object, json);
	if (status)
		return status;
	if (json_unpack_ex(json, &error, JSON_STRICT, "{s:I, s:s}", "bytes", &bytes, "checksum",
			   &checksum))
		return refuse_members(path, object, &error);
	m->has_user = true;
	m->user_bytes = (uint64_t)bytes;
	return read_checksum(checksum, &m->user_checksum)
		       ? ZERO_OK
		       : refuse_value(path, object, json, "checksum", allowed_checksums);
}

/* Whether this library can read the rest. */
static zero_status check_format(const char *path, json_t *json)
{
	const char *format = json_string_value(json_object_get(json, "format"));
	const json_t *version = json_object_get(json, "version");

	if (!format || strcmp(format, MANIFEST_FORMAT) != 0)
		return refuse_value(path, "", json, "format", "\"" MANIFEST_FORMAT "\"");
	if (!json_is_integer(version) || json_integer_value(version) < 1)
		return refuse_value(path, "", json, "version", "an integer of at least 1");
	if (json_integer_value(version) > MANIFEST_VERSION)
		return zero_core->fail(ZERO_E_UNSUPPORTED,
				       "%s: the manifest has version %" JSON_INTEGER_FORMAT
				       " of the format; this library reads versions 1 to %d",
				       path, json_integer_value(version), MANIFEST_VERSION);
	return ZERO_OK;
}

static zero_status read_job(struct manifest_reader *r)
{
	const char *path = r->json.path, *library, *allgather, *checksum;
	struct zero_manifest *m = r->manifest;
	json_int_t step, world, stage, bucket, block;
	json_t *adamw, *user, *checked; /* by themselves */
	json_error_t error;
	int states, masters = 0;
	zero_status status = check_format(path, r->job);

	if (!status)
		status = check_object(path, "", r->job);
	if (status)
		return status;
	if (json_unpack_ex(r->job, &error, JSON_STRICT,
			   "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s?b, s:o, s:o, s:s, s:o, s:o, "
			   "s:o, s:o, s:o, s:o}",
			   "library", &library, "allgather", &allgather, "step", &step, "world",
			   &world, "stage", &stage, "bucket", &bucket, "block", &block, "states",
			   &states, "masters", &masters, "adamw", &adamw, "user", &user, "checksum",
			   &checksum, "format", &checked, "version", &checked, "seal", &checked,
			   "teams", &checked, "tensors", &checked, "files", &checked))
		return refuse_members(path, "", &error);
	if (strcmp(checksum, MANIFEST_CHECKSUM) != 0)
		return refuse_value(path, "", r->job, "checksum", "\"" MANIFEST_CHECKSUM "\"");
	if (block != ZERO_CHECKSUM_BLOCK)
		return refuse_value(path, "", r->job, "block", "65536");
	if (stage > 3)
		return refuse_value(path, "", r->job, "stage", "an integer from 0 to 3");
	if (!world || world != m->world)
		return zero_core->fail(ZERO_E_FORMAT,
				       "%s: \"world\" is %" JSON_INTEGER_FORMAT
				       ", but there are %d \"files\"; each rank must have one",
				       path, world, m->world);
	m->step = (uint64_t)step;
	m->stage = (int)stage;
	m->bucket = (uint64_t)bucket;
	m->states = states;
	m->masters = masters;
	m->library = strdup(library);
	m->allgather = strdup(allgather);
	if (!m->library || !m->allgather)
		return files_no_memory(path);
	status = read_adamw(path, adamw, m);
	if (!status)
		status = read_user(path, user, m);
	return status ? status : manifest_check(path, m);
}

zero_status manifest_parse(const char *path, const char *text, size_t bytes,
			   struct zero_manifest **manifest)
{
	struct manifest_reader r = {.json = {.path = path, .text = text, .bytes = bytes}};
	zero_status status;
	uint64_t seal = 0;

	*manifest = NULL;
	status = check_seal(path, text, bytes, &seal);
	if (status)
		return status;
	r.manifest = calloc(1, sizeof(*r.manifest));
	r.job = json_object();
	status = r.manifest && r.job ? read_members(&r) : files_no_memory(path);
	if (!status)
		status = read_job(&r);
	if (!status)
		r.manifest->seal = seal;
	json_reader_free(&r.json);
	json_decref(r.job);
	if (status)
		manifest_free(r.manifest);
	else
		*manifest = r.manifest;
	return status;
}

zero_status manifest_read(const char *path, struct zero_manifest **manifest)
{
	zero_status status;
	size_t bytes;
	char *text;

	*manifest = NULL;
	status = files_read_json(path, &text, &bytes);
	if (!status)
		status = manifest_parse(path, text, bytes, manifest);
	free(text);
	return status;
}
