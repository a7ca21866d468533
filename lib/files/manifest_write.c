/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a checkpoint's manifest, one line for each member, so that people can read it too. */
#include "files/manifest.h"
#include "files/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Whether it has nothing that libraries of version 1 do not know. */
static bool is_plain(const struct zero_manifest *m)
{
	for (size_t i = 0; i < m->tensor_count; i++)
		if (m->tensors[i].state_count || m->tensors[i].has_steps)
			return false;
	return true;
}

/* The settings are floats, which nine digits represent exactly. */
static zero_status write_value(FILE *out, const json_t *json)
{
	return json && !json_dumpf(json, out, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9))
		       ? ZERO_OK
		       : zero_core->fail(ZERO_E_MEMORY, "no memory for a checkpoint's manifest");
}

static json_t *make_checksum(uint64_t sum)
{
	char text[MANIFEST_CHECKSUM_DIGITS + 1];

	snprintf(text, sizeof(text), "%016" PRIx64, sum);
	return json_string(text);
}

static json_t *make_number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *make_job(const struct zero_manifest *m)
{
	json_t *adamw = json_null(), *user = json_null();

	if (m->has_adamw)
		adamw = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "lr", make_number(m->lr),
				  "beta1", make_number(m->beta1), "beta2", make_number(m->beta2),
				  "eps", make_number(m->eps), "weight_decay",
				  make_number(m->weight_decay), "clip", make_number(m->clip));
	if (m->has_user)
		user = json_pack("{s:I, s:o}", "bytes", (json_int_t)m->user_bytes, "checksum",
				 make_checksum(m->user_checksum));
	return json_pack("{s:s, s:i, s:s, s:I, s:i, s:i, s:s, s:I, s:o, s:b, s:s, s:i, s:o}",
			 "format", MANIFEST_FORMAT, "version",
			 is_plain(m) ? MANIFEST_VERSION_PLAIN : MANIFEST_VERSION, "library",
			 m->library, "step", (json_int_t)m->step, "world", m->world, "stage",
			 m->stage, "allgather", m->allgather, "bucket", (json_int_t)m->bucket,
			 "adamw", adamw, "states", m->states, "checksum", MANIFEST_CHECKSUM,
			 "block", ZERO_CHECKSUM_BLOCK, "user", user);
}

static zero_status write_job(FILE *out, const struct zero_manifest *m)
{
	json_t *json = make_job(m), *value;
	zero_status status = ZERO_OK;
	const char *key;

	if (!json)
		return write_value(out, NULL);
	json_object_foreach(json, key, value)
	{
		fprintf(out, "%s\n\"%s\": ", ftell(out) ? "," : "{", key);
		status = status ? status : write_value(out, value);
	}
	json_decref(json);
	return status;
}

/* ---- items of arrays ------------------------------------------------------------------------- */

static json_t *make_team(const struct zero_manifest *m, size_t t)
{
	json_t *ranks = json_array();

	for (int i = 0; i < m->teams[t].count; i++)
		json_array_append_new(ranks, json_integer(m->teams[t].ranks[i]));
	return ranks;
}

static json_t *make_state(const struct zero_manifest_state *state)
{
	return json_pack("{s:s, s:s, s:o}", "name", state->name, "dtype",
			 safetensors_dtype_name(state->dtype, NULL), "block",
			 state->block == ZERO_BLOCK_WHOLE ? json_null()
							  : json_integer((json_int_t)state->block));
}

static json_t *make_tensor(const struct zero_manifest *m, size_t i)
{
	const struct zero_manifest_tensor *tensor = &m->tensors[i];
	json_t *shape = json_array(), *states = json_array(), *json = NULL;

	for (int d = 0; d < tensor->ndim; d++)
		json_array_append_new(shape, json_integer((json_int_t)tensor->shape[d]));
	for (size_t s = 0; s < tensor->state_count; s++)
		json_array_append_new(states, make_state(&tensor->states[s]));
	if (json_array_size(shape) == (size_t)tensor->ndim &&
	    json_array_size(states) == tensor->state_count)
		json = json_pack("{s:s, s:s, s:s, s:O, s:b, s:o, s:I, s:I, s:o*, s:O*}", "name",
				 tensor->name, "group", tensor->group, "dtype",
				 safetensors_dtype_name(tensor->dtype, NULL), "shape", shape,
				 "trainable", tensor->trainable, "team",
				 tensor->team < 0 ? json_null() : json_integer(tensor->team),
				 "first", (json_int_t)tensor->first, "shard",
				 (json_int_t)tensor->shard, "steps",
				 tensor->has_steps ? json_integer((json_int_t)tensor->steps) : NULL,
				 "named_states", tensor->state_count ? states : NULL);
	json_decref(shape);
	json_decref(states);
	return json;
}

static json_t *make_file(const struct zero_manifest *m, size_t i)
{
	const struct zero_manifest_file *file = &m->files[i];

	return json_pack("{s:s, s:I, s:o, s:o}", "name", file->name, "bytes",
			 (json_int_t)file->bytes, "header", make_checksum(file->header),
			 "checksums", make_checksum(file->checksums));
}

static zero_status write_array(FILE *out, const char *name, const struct zero_manifest *m,
			       size_t count, json_t *(*make)(const struct zero_manifest *, size_t))
{
	zero_status status = ZERO_OK;

	fprintf(out, ",\n\"%s\": [", name);
	for (size_t i = 0; !status && i < count; i++) {
		json_t *json = make(m, i);

		if (!json)
			return zero_core->fail(
				ZERO_E_INVALID,
				"item %zu of a manifest's \"%s\" cannot be written: a name is not "
				"valid UTF-8, which JSON requires, or there is no memory",
				i, name);
		fputs(i ? ",\n" : "\n", out);
		status = write_value(out, json);
		json_decref(json);
	}
	fputs("]", out);
	return status;
}

zero_status manifest_format(const struct zero_manifest *manifest, char **text, size_t *bytes)
{
	FILE *out = open_memstream(text, bytes);
	zero_status status;

	if (!out) {
		*text = NULL;
		return write_value(NULL, NULL);
	}
	status = write_job(out, manifest);
	if (!status)
		status = write_array(out, "teams", manifest, manifest->team_count, make_team);
	if (!status)
		status = write_array(out, "tensors", manifest, manifest->tensor_count, make_tensor);
	if (!status)
		status = write_array(out, "files", manifest, (size_t)manifest->world, make_file);
	/* The stream's buffer may be read after fflush, to the next write. */
	if (!status && !fflush(out))
		fprintf(out, "%s%016" PRIx64 "%s", MANIFEST_SEAL, files_checksum(*text, *bytes),
			MANIFEST_END);
	/* Without memory for the end, fclose may succeed and leave NULL. */
	if (((ferror(out) | fclose(out)) || !*text) && !status)
		status = write_value(NULL, NULL);
	if (!status)
		return ZERO_OK;
	free(*text);
	*text = NULL;
	*bytes = 0;
	return status;
}
