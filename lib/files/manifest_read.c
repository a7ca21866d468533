/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint's manifest from its text. Nothing of it is believed before its seal fits, which
 * tells damage; then each member is checked as if somebody had made it up, seal and all.
 */
#include "files/input.h"
#include "files/manifest.h"
#include "files/json_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct reading {
	struct walk walk;
	struct zero_manifest *manifest;
	json_t *small; /* the members that are no arrays */
	size_t file_count;
	bool teams, tensors, files; /* were there */
};

/* ---- bytes ----------------------------------------------------------------------------------- */

zero_status manifest_load(const char *path, char **text, size_t *bytes)
{
	zero_status status;
	uint64_t size;
	int fd;

	*text = NULL;
	*bytes = 0;
	status = files_open_regular(path, &fd, &size);
	if (status)
		return status;
	if (size > FILES_JSON_MAX)
		status = files_core()->fail(ZERO_E_FORMAT,
					    "%s: has %" PRIu64 " bytes; a manifest has at most %u",
					    path, size, FILES_JSON_MAX);
	if (!status) {
		*text = malloc(size ? size : 1);
		status = *text ? files_read(fd, path, 0, size, *text) : files_no_memory(path);
	}
	close(fd);
	if (status) {
		free(*text);
		*text = NULL;
		return status;
	}
	*bytes = size;
	return ZERO_OK;
}

/* Of the bytes before it; *sealed of them. */
static zero_status check_seal(const char *path, const char *text, size_t bytes, size_t *sealed)
{
	const size_t begin = strlen(MANIFEST_SEAL), end = strlen(MANIFEST_END);
	const size_t tail = begin + MANIFEST_SUM_DIGITS + end;
	const char *seal;
	char wanted[MANIFEST_SUM_DIGITS + 1], found[MANIFEST_SUM_DIGITS + 1];

	if (bytes < tail || memcmp(text + bytes - end, MANIFEST_END, end) != 0 ||
	    memcmp(text + bytes - tail, MANIFEST_SEAL, begin) != 0)
		return files_core()->fail(ZERO_E_FORMAT,
					  "%s: its %zu bytes do not end with a \"seal\"; it is cut "
					  "short, damaged or no manifest of a checkpoint",
					  path, bytes);
	*sealed = bytes - tail;
	seal = text + *sealed + begin;
	snprintf(wanted, sizeof(wanted), "%016" PRIx64, files_sum(text, *sealed));
	snprintf(found, sizeof(found), "%.*s", MANIFEST_SUM_DIGITS, seal);
	if (memcmp(wanted, seal, MANIFEST_SUM_DIGITS) != 0)
		return files_core()->fail(
			ZERO_E_FORMAT,
			"%s: the manifest is damaged: its \"seal\" is \"%s\", but "
			"the %zu bytes before that come to \"%s\"",
			path, files_words(found).text, *sealed, wanted);
	return ZERO_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Room for one more of `size` bytes behind `count`, all zero. */
static void *one_more(void **array, size_t count, size_t size)
{
	/* Doubled whenever the count is a power of two. */
	if (!(count & (count - 1))) {
		void *grown = realloc(*array, (count ? 2 * count : 1) * size);

		if (!grown)
			return NULL;
		*array = grown;
	}
	return memset((char *)*array + count * size, 0, size);
}

static zero_status read_team(struct reading *r, size_t i, const json_t *json)
{
	struct zero_manifest_team *team = one_more((void **)&r->manifest->teams, i, sizeof(*team));

	if (!team)
		return files_no_memory(r->walk.path);
	r->manifest->team_count = i + 1;
	return members_team(r->walk.path, i, json, team);
}

static zero_status read_tensor(struct reading *r, size_t i, const json_t *json)
{
	struct zero_manifest_tensor *tensor =
		one_more((void **)&r->manifest->tensors, i, sizeof(*tensor));

	if (!tensor)
		return files_no_memory(r->walk.path);
	r->manifest->tensor_count = i + 1;
	return members_tensor(r->walk.path, i, json, tensor);
}

static zero_status read_file(struct reading *r, size_t i, const json_t *json)
{
	struct zero_manifest_file *file = one_more((void **)&r->manifest->files, i, sizeof(*file));

	if (!file)
		return files_no_memory(r->walk.path);
	r->file_count = i + 1;
	/* Until "world" is known to be as many, for who frees them. */
	r->manifest->world = (int)r->file_count;
	if (r->file_count > MEMBERS_WORLD_MOST)
		return files_core()->fail(
			ZERO_E_FORMAT, "%s: has more than %d \"files\", of which each rank has one",
			r->walk.path, MEMBERS_WORLD_MOST);
	return members_file(r->walk.path, i, json, file);
}

/* One item after the other, each a tree of its own. */
static zero_status read_array(struct reading *r,
			      zero_status (*read)(struct reading *, size_t, const json_t *))
{
	zero_status status = walk_array(&r->walk);
	bool more = true;

	for (size_t i = 0; !status; i++) {
		json_t *json;

		status = walk_item(&r->walk, i, &more);
		if (status || !more)
			break;
		status = walk_value(&r->walk, &json);
		if (status)
			break;
		status = read(r, i, json);
		json_decref(json);
	}
	return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static zero_status read_small(struct reading *r, const char *name, size_t at)
{
	zero_status status;
	json_t *json;

	if (!members_known(name))
		return walk_fail(&r->walk, at,
				 "\"%s\" is no member of a manifest, or there already",
				 files_words(name).text);
	status = walk_value(&r->walk, &json);
	if (!status && json_object_set_new(r->small, name, json) != 0)
		status = files_no_memory(r->walk.path);
	return status;
}

static zero_status read_members(struct reading *r)
{
	const char *name;
	zero_status status = walk_begin(&r->walk);

	while (!status) {
		status = walk_next(&r->walk, &name);
		if (status || !name)
			break;
		/* A second one would be added to the first; the walk finds others at its end. */
		if (!strcmp(name, "teams") && !r->teams)
			r->teams = true, status = read_array(r, read_team);
		else if (!strcmp(name, "tensors") && !r->tensors)
			r->tensors = true, status = read_array(r, read_tensor);
		else if (!strcmp(name, "files") && !r->files)
			r->files = true, status = read_array(r, read_file);
		else
			status = read_small(r, name, r->walk.at);
	}
	return status ? status : walk_end(&r->walk);
}

static zero_status complete(struct reading *r)
{
	const char *missing = !r->teams ? "teams" : !r->tensors ? "tensors" : "files";
	zero_status status;

	if (!r->teams || !r->tensors || !r->files)
		return files_core()->fail(ZERO_E_FORMAT, "%s: has no \"%s\"", r->walk.path,
					  missing);
	status = members_small(r->walk.path, r->small, r->file_count, r->manifest);
	return status ? status : manifest_check(r->walk.path, r->manifest);
}

zero_status manifest_parse(const char *path, const char *text, size_t bytes,
			   struct zero_manifest **manifest)
{
	struct reading r = {.walk = {.path = path, .text = text, .bytes = bytes}};
	zero_status status;
	size_t sealed;

	*manifest = NULL;
	status = check_seal(path, text, bytes, &sealed);
	if (status)
		return status;
	r.manifest = calloc(1, sizeof(*r.manifest));
	r.small = json_object();
	status = r.manifest && r.small ? read_members(&r) : files_no_memory(path);
	if (!status)
		status = complete(&r);
	walk_free(&r.walk);
	json_decref(r.small);
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
	status = manifest_load(path, &text, &bytes);
	if (!status)
		status = manifest_parse(path, text, bytes, manifest);
	free(text);
	return status;
}
