/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a checkpoint's manifest. The seal is checked first and detects damage. Then each member is
 * checked as in any untrusted file, because a seal can be forged.
 */
#include "files/json_reader.h"
#include "files/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct manifest_reader {
	struct json_reader json;
	struct zero_manifest *manifest;
	json_t *job; /* the members that are not arrays */
	size_t file_count;
	bool teams, tensors, files; /* these members were read */
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

/* Checks the checksum at the end of the text, which is that of the *sealed bytes before it. */
static zero_status check_seal(const char *path, const char *text, size_t bytes, size_t *sealed)
{
	const size_t begin = strlen(MANIFEST_SEAL), end = strlen(MANIFEST_END);
	const size_t tail = begin + MANIFEST_CHECKSUM_DIGITS + end;
	const char *seal;
	char wanted[MANIFEST_CHECKSUM_DIGITS + 1], found[MANIFEST_CHECKSUM_DIGITS + 1];

	if (bytes < tail || memcmp(text + bytes - end, MANIFEST_END, end) != 0 ||
	    memcmp(text + bytes - tail, MANIFEST_SEAL, begin) != 0)
		return files_core()->fail(ZERO_E_FORMAT,
					  "%s: its %zu bytes do not end with a \"seal\"; it is cut "
					  "short, damaged or not a manifest of a checkpoint",
					  path, bytes);
	*sealed = bytes - tail;
	seal = text + *sealed + begin;
	snprintf(wanted, sizeof(wanted), "%016" PRIx64, files_checksum(text, *sealed));
	snprintf(found, sizeof(found), "%.*s", MANIFEST_CHECKSUM_DIGITS, seal);
	if (memcmp(wanted, seal, MANIFEST_CHECKSUM_DIGITS) != 0)
		return files_core()->fail(
			ZERO_E_FORMAT,
			"%s: the manifest is damaged: its \"seal\" is \"%s\", but "
			"the checksum of the %zu bytes before it is \"%s\"",
			path, files_printable(found).text, *sealed, wanted);
	return ZERO_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static zero_status read_team(struct manifest_reader *r, size_t i, const json_t *json)
{
	struct zero_manifest_team *teams = files_grow(r->manifest->teams, i, sizeof(*teams));

	if (!teams)
		return files_no_memory(r->json.path);
	teams[i] = (struct zero_manifest_team){0};
	r->manifest->teams = teams;
	r->manifest->team_count = i + 1;
	return manifest_read_team(r->json.path, i, json, &teams[i]);
}

static zero_status read_tensor(struct manifest_reader *r, size_t i, const json_t *json)
{
	struct zero_manifest_tensor *tensors =
		files_grow(r->manifest->tensors, i, sizeof(*tensors));

	if (!tensors)
		return files_no_memory(r->json.path);
	tensors[i] = (struct zero_manifest_tensor){0};
	r->manifest->tensors = tensors;
	r->manifest->tensor_count = i + 1;
	return manifest_read_tensor(r->json.path, i, json, &tensors[i]);
}

static zero_status read_file(struct manifest_reader *r, size_t i, const json_t *json)
{
	struct zero_manifest_file *files = files_grow(r->manifest->files, i, sizeof(*files));

	if (!files)
		return files_no_memory(r->json.path);
	files[i] = (struct zero_manifest_file){0};
	r->manifest->files = files;
	r->file_count = i + 1;
	/* manifest_free counts the files by `world`. */
	r->manifest->world = (int)r->file_count;
	if (r->file_count > MANIFEST_WORLD_MAX)
		return files_core()->fail(
			ZERO_E_FORMAT,
			"%s: has more than %d \"files\", which is the largest number of ranks",
			r->json.path, MANIFEST_WORLD_MAX);
	return manifest_read_file(r->json.path, i, json, &files[i]);
}

/* Reads one item after the other. */
static zero_status read_array(struct manifest_reader *r,
			      zero_status (*read)(struct manifest_reader *, size_t, const json_t *))
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
		status = read(r, i, json);
		json_decref(json);
	}
	return status;
}

/* ---- all members ----------------------------------------------------------------------------- */

static zero_status read_job_member(struct manifest_reader *r, const char *name, size_t at)
{
	zero_status status;
	json_t *json;

	if (!manifest_is_job_member(name))
		return json_reader_fail(&r->json, at,
					"\"%s\" is not a member of a manifest, or occurs twice",
					files_printable(name).text);
	status = json_reader_value(&r->json, &json);
	if (!status && json_object_set_new(r->job, name, json) != 0)
		status = files_no_memory(r->json.path);
	return status;
}

static zero_status read_members(struct manifest_reader *r)
{
	const char *name;
	zero_status status = json_reader_object(&r->json);

	while (!status) {
		status = json_reader_member(&r->json, &name);
		if (status || !name)
			break;
		/* A second array would be appended to the first. The reader itself finds other names
		   that occur twice. */
		if (!strcmp(name, "teams") && !r->teams) {
			r->teams = true;
			status = read_array(r, read_team);
		} else if (!strcmp(name, "tensors") && !r->tensors) {
			r->tensors = true;
			status = read_array(r, read_tensor);
		} else if (!strcmp(name, "files") && !r->files) {
			r->files = true;
			status = read_array(r, read_file);
		} else {
			status = read_job_member(r, name, r->json.at);
		}
	}
	return status ? status : json_reader_end(&r->json);
}

static zero_status check_complete(struct manifest_reader *r)
{
	const char *missing = !r->teams ? "teams" : !r->tensors ? "tensors" : "files";
	zero_status status;

	if (!r->teams || !r->tensors || !r->files)
		return files_core()->fail(ZERO_E_FORMAT, "%s: has no \"%s\"", r->json.path,
					  missing);
	status = manifest_read_job(r->json.path, r->job, r->file_count, r->manifest);
	return status ? status : manifest_check(r->json.path, r->manifest);
}

zero_status manifest_parse(const char *path, const char *text, size_t bytes,
			   struct zero_manifest **manifest)
{
	struct manifest_reader r = {.json = {.path = path, .text = text, .bytes = bytes}};
	zero_status status;
	size_t sealed;

	*manifest = NULL;
	status = check_seal(path, text, bytes, &sealed);
	if (status)
		return status;
	r.manifest = calloc(1, sizeof(*r.manifest));
	r.job = json_object();
	status = r.manifest && r.job ? read_members(&r) : files_no_memory(path);
	if (!status)
		status = check_complete(&r);
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
