/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's manifest as text: one line for each thing, so that people can read it too. */
#include "files/safetensors.h"
#include "files/input.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct writing {
	FILE *out;
	const char *bad; /* a text that is not UTF-8 */
	bool no_memory;
};

static void put_text(struct writing *to, const char *text)
{
	json_t *json = json_string(text);
	char *quoted = json ? json_dumps(json, JSON_ENCODE_ANY) : NULL;

	if (quoted)
		fputs(quoted, to->out);
	else if (json || !text)
		to->no_memory = true;
	else
		to->bad = text;
	free(quoted);
	json_decref(json);
}

static void put_sum(struct writing *to, uint64_t sum)
{
	fprintf(to->out, "\"%016" PRIx64 "\"", sum);
}

/* Settings are floats, which nine digits tell apart. */
static void put_number(struct writing *to, const char *name, double value)
{
	if (isfinite(value))
		fprintf(to->out, "\"%s\": %.9g", name, value);
	else
		fprintf(to->out, "\"%s\": null", name);
}

static void put_adamw(struct writing *to, const struct zero_manifest *m)
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
		put_number(to, settings[i].name, settings[i].value);
	}
	fputs("}", to->out);
}

static void put_job(struct writing *to, const struct zero_manifest *m)
{
	FILE *out = to->out;

	fprintf(out, "{\n\"format\": \"%s\",\n\"version\": %d,\n\"library\": ", MANIFEST_FORMAT,
		MANIFEST_VERSION);
	put_text(to, m->library);
	fprintf(out, ",\n\"step\": %" PRIu64 ",\n\"world\": %d,\n\"stage\": %d", m->step, m->world,
		m->stage);
	fputs(",\n\"allgather\": ", out);
	put_text(to, m->allgather);
	fprintf(out, ",\n\"bucket\": %" PRIu64 ",\n\"adamw\": ", m->bucket);
	put_adamw(to, m);
	fprintf(out, ",\n\"states\": %s", m->states ? "true" : "false");
	fprintf(out, ",\n\"checksum\": \"%s\",\n\"block\": %d,\n\"user\": ", MANIFEST_SUM,
		ZERO_SUM_BLOCK);
	if (m->has_user) {
		fprintf(out, "{\"bytes\": %" PRIu64 ", \"checksum\": ", m->user_bytes);
		put_sum(to, m->user_sum);
		fputs("}", out);
	} else {
		fputs("null", out);
	}
}

static void put_teams(struct writing *to, const struct zero_manifest *m)
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

static void put_tensor(struct writing *to, const struct zero_manifest_tensor *tensor)
{
	FILE *out = to->out;

	fputs("{\"name\": ", out);
	put_text(to, tensor->name);
	fputs(", \"group\": ", out);
	put_text(to, tensor->group);
	fprintf(out, ", \"dtype\": \"%s\", \"shape\": [", entry_dtype_name(tensor->dtype, NULL));
	for (int i = 0; i < tensor->ndim; i++)
		fprintf(out, "%s%zu", i ? "," : "", tensor->shape[i]);
	fprintf(out, "], \"trainable\": %s, \"team\": ", tensor->trainable ? "true" : "false");
	if (tensor->team < 0)
		fputs("null", out);
	else
		fprintf(out, "%d", tensor->team);
	fprintf(out, ", \"first\": %" PRIu64 ", \"shard\": %" PRIu64 "}", tensor->first,
		tensor->shard);
}

static void put_file(struct writing *to, const struct zero_manifest_file *file)
{
	fputs("{\"name\": ", to->out);
	put_text(to, file->name);
	fprintf(to->out, ", \"bytes\": %" PRIu64 ", \"header\": ", file->bytes);
	put_sum(to, file->header);
	fputs(", \"checksums\": ", to->out);
	put_sum(to, file->checksums);
	fputs("}", to->out);
}

static zero_status check_types(const struct zero_manifest *m)
{
	for (size_t i = 0; i < m->tensor_count; i++)
		if (!entry_dtype_name(m->tensors[i].dtype, NULL))
			return files_core()->fail(
				ZERO_E_INVALID,
				"tensor \"%s\" has %d for its type, which is no storage type",
				files_words(m->tensors[i].name).text, (int)m->tensors[i].dtype);
	return ZERO_OK;
}

static void put_all(struct writing *to, const struct zero_manifest *m)
{
	put_job(to, m);
	put_teams(to, m);
	fputs(",\n\"tensors\": [", to->out);
	for (size_t i = 0; i < m->tensor_count; i++) {
		fputs(i ? ",\n" : "\n", to->out);
		put_tensor(to, &m->tensors[i]);
	}
	fputs("],\n\"files\": [", to->out);
	for (int i = 0; i < m->world; i++) {
		fputs(i ? ",\n" : "\n", to->out);
		put_file(to, &m->files[i]);
	}
	fputs("]", to->out);
}

static zero_status seal(struct writing *to, char **text, size_t *bytes)
{
	uint64_t sum;

	/* The stream's buffer is ours to read from here to the next write. */
	if (fflush(to->out) != 0)
		return ZERO_E_MEMORY;
	sum = files_sum(*text, *bytes);
	fprintf(to->out, "%s%016" PRIx64 "%s", MANIFEST_SEAL, sum, MANIFEST_END);
	return ZERO_OK;
}

zero_status manifest_write(const struct zero_manifest *manifest, char **text, size_t *bytes)
{
	struct writing to = {.out = NULL};
	zero_status status = check_types(manifest);

	*text = NULL;
	*bytes = 0;
	if (status)
		return status;
	to.out = open_memstream(text, bytes);
	if (to.out) {
		put_all(&to, manifest);
		status = seal(&to, text, bytes);
	}
	if (!to.out || fclose(to.out) != 0 || status || to.no_memory)
		status = files_core()->fail(ZERO_E_MEMORY, "no memory for a checkpoint's manifest");
	else if (to.bad)
		status = files_core()->fail(ZERO_E_INVALID,
					    "the name \"%s\" is not valid UTF-8, as JSON wants it",
					    files_words(to.bad).text);
	if (!status)
		return ZERO_OK;
	free(*text);
	*text = NULL;
	*bytes = 0;
	return status;
}
