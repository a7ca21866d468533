/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a checkpoint's manifest, one line for each member, so that people can read it too. */
#include "files/manifest.h"
#include "files/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct manifest_writer {
	FILE *out;
	const char *not_utf8; /* a text that JSON cannot hold; NULL: none */
	bool no_memory;
};

static void write_text(struct manifest_writer *to, const char *text)
{
	json_t *json = json_string(text);
	char *quoted = json ? json_dumps(json, JSON_ENCODE_ANY) : NULL;

	if (quoted)
		fputs(quoted, to->out);
	else if (json || !text)
		to->no_memory = true;
	else
		to->not_utf8 = text;
	free(quoted);
	json_decref(json);
}

static void write_checksum(struct manifest_writer *to, uint64_t sum)
{
	fprintf(to->out, "\"%016" PRIx64 "\"", sum);
}

/* The settings are floats, which nine digits represent exactly. */
static void write_number(struct manifest_writer *to, const char *name, double value)
{
	if (isfinite(value))
		fprintf(to->out, "\"%s\": %.9g", name, value);
	else
		fprintf(to->out, "\"%s\": null", name);
}

static void write_adamw(struct manifest_writer *to, const struct zero_manifest *m)
{
	const struct {
		const char *name;
		double value;
	} settings[] = {{"lr", m->lr},
			{"beta1", m->beta1},
			{"beta2", m->beta2},
			{"eps", m->eps},
			{"weight_decay", m->weight_decay},
			{"clip", m->clip}};

	if (!m->has_adamw) {
		fputs("null", to->out);
		return;
	}
	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
		fputs(i ? ", " : "{", to->out);
		write_number(to, settings[i].name, settings[i].value);
	}
	fputs("}", to->out);
}

/* Whether it has nothing that libraries of version 1 do not know. */
static bool is_plain(const struct zero_manifest *m)
{
	for (size_t i = 0; i < m->tensor_count; i++)
		if (m->tensors[i].state_count || m->tensors[i].has_steps)
			return false;
	return !m->masters;
}

static void write_job(struct manifest_writer *to, const struct zero_manifest *m)
{
	FILE *out = to->out;

	fprintf(out, "{\n\"format\": \"%s\",\n\"version\": %d,\n\"library\": ", MANIFEST_FORMAT,
		is_plain(m) ? MANIFEST_VERSION_PLAIN : MANIFEST_VERSION);
	write_text(to, m->library);
	fprintf(out, ",\n\"step\": %" PRIu64 ",\n\"world\": %d,\n\"stage\": %d", m->step, m->world,
		m->stage);
	fputs(",\n\"allgather\": ", out);
	write_text(to, m->allgather);
	fprintf(out, ",\n\"bucket\": %" PRIu64 ",\n\"adamw\": ", m->bucket);
	write_adamw(to, m);
	fprintf(out, ",\n\"states\": %s", m->states ? "true" : "false");
	if (m->masters)
		fputs(",\n\"masters\": true", out);
	fprintf(out, ",\n\"checksum\": \"%s\",\n\"block\": %d,\n\"user\": ", MANIFEST_CHECKSUM,
		ZERO_CHECKSUM_BLOCK);
	if (m->has_user) {
		fprintf(out, "{\"bytes\": %" PRIu64 ", \"checksum\": ", m->user_bytes);
		write_checksum(to, m->user_checksum);
		fputs("}", out);
	} else {
		fputs("null", out);
	}
}

static void write_teams(struct manifest_writer *to, const struct zero_manifest *m)
{
	fputs(",\n\"teams\": [", to->out);
	for (size_t t = 0; t < m->team_count; t++) {
		fputs(t ? ",\n[" : "\n[", to->out);
		for (int i = 0; i < m->teams[t].count; i++)
			fprintf(to->out, "%s%d", i ? "," : "", m->teams[t].ranks[i]);
		fputs("]", to->out);
	}
	fputs("]", to->out);
}

static void write_states(struct manifest_writer *to, const struct zero_manifest_tensor *tensor)
{
	FILE *out = to->out;

	fputs(", \"named_states\": [", out);
	for (size_t i = 0; i < tensor->state_count; i++) {
		const struct zero_manifest_state *state = &tensor->states[i];

		fputs(i ? ", {\"name\": " : "{\"name\": ", out);
		write_text(to, state->name);
		fprintf(out, ", \"dtype\": \"%s\", \"block\": ",
			safetensors_dtype_name(state->dtype, NULL));
		if (state->block == ZERO_BLOCK_WHOLE)
			fputs("null}", out);
		else
			fprintf(out, "%" PRIu64 "}", state->block);
	}
	fputs("]", out);
}

static void write_tensor(struct manifest_writer *to, const struct zero_manifest_tensor *tensor)
{
	FILE *out = to->out;

	fputs("{\"name\": ", out);
	write_text(to, tensor->name);
	fputs(", \"group\": ", out);
	write_text(to, tensor->group);
	fprintf(out, ", \"dtype\": \"%s\", \"shape\": [",
		safetensors_dtype_name(tensor->dtype, NULL));
	for (int i = 0; i < tensor->ndim; i++)
		fprintf(out, "%s%zu", i ? "," : "", tensor->shape[i]);
	fprintf(out, "], \"trainable\": %s, \"team\": ", tensor->trainable ? "true" : "false");
	if (tensor->team < 0)
		fputs("null", out);
	else
		fprintf(out, "%d", tensor->team);
	fprintf(out, ", \"first\": %" PRIu64 ", \"shard\": %" PRIu64, tensor->first, tensor->shard);
	if (tensor->has_steps)
		fprintf(out, ", \"steps\": %" PRIu64, tensor->steps);
	if (tensor->state_count)
		write_states(to, tensor);
	fputs("}", out);
}

static void write_file(struct manifest_writer *to, const struct zero_manifest_file *file)
{
	fputs("{\"name\": ", to->out);
	write_text(to, file->name);
	fprintf(to->out, ", \"bytes\": %" PRIu64 ", \"header\": ", file->bytes);
	write_checksum(to, file->header);
	fputs(", \"checksums\": ", to->out);
	write_checksum(to, file->checksums);
	fputs("}", to->out);
}

static zero_status check_types(const struct zero_manifest *m)
{
	for (size_t i = 0; i < m->tensor_count; i++)
		if (!safetensors_dtype_name(m->tensors[i].dtype, NULL))
			return files_core()->fail(
				ZERO_E_INVALID,
				"tensor \"%s\" has %d for its type, which is not a storage type",
				files_printable(m->tensors[i].name).text, (int)m->tensors[i].dtype);
	return ZERO_OK;
}

static void write_all(struct manifest_writer *to, const struct zero_manifest *m)
{
	write_job(to, m);
	write_teams(to, m);
	fputs(",\n\"tensors\": [", to->out);
	for (size_t i = 0; i < m->tensor_count; i++) {
		fputs(i ? ",\n" : "\n", to->out);
		write_tensor(to, &m->tensors[i]);
	}
	fputs("],\n\"files\": [", to->out);
	for (int i = 0; i < m->world; i++) {
		fputs(i ? ",\n" : "\n", to->out);
		write_file(to, &m->files[i]);
	}
	fputs("]", to->out);
}

static zero_status write_seal(struct manifest_writer *to, char **text, size_t *bytes)
{
	uint64_t sum;

	/* The stream's buffer may be read from here to the next write. */
	if (fflush(to->out) != 0)
		return ZERO_E_MEMORY;
	sum = files_checksum(*text, *bytes);
	fprintf(to->out, "%s%016" PRIx64 "%s", MANIFEST_SEAL, sum, MANIFEST_END);
	return ZERO_OK;
}

zero_status manifest_format(const struct zero_manifest *manifest, char **text, size_t *bytes)
{
	struct manifest_writer to = {.out = NULL};
	zero_status status = check_types(manifest);

	*text = NULL;
	*bytes = 0;
	if (status)
		return status;
	to.out = open_memstream(text, bytes);
	if (to.out) {
		write_all(&to, manifest);
		status = write_seal(&to, text, bytes);
	}
	if (!to.out || fclose(to.out) != 0 || status || to.no_memory)
		status = files_core()->fail(ZERO_E_MEMORY, "no memory for a checkpoint's manifest");
	else if (to.not_utf8)
		status = files_core()->fail(
			ZERO_E_INVALID, "the name \"%s\" is not valid UTF-8, which JSON requires",
			files_printable(to.not_utf8).text);
	if (!status)
		return ZERO_OK;
	free(*text);
	*text = NULL;
	*bytes = 0;
	return status;
}
