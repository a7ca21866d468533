/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One safetensors file: 8 bytes with the header's length (little-endian), the header (a JSON
 * object, padded with spaces), and the tensors' bytes without a hole or an overlap.
 * https://github.com/huggingface/safetensors#format
 */
#include "files/safetensors.h"
#include "files/input.h"
#include "files/json_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct header {
	const char *path;
	char *text;
	size_t bytes;
	uint64_t data;       /* where the data begin: bytes of the file */
	uint64_t data_bytes; /* how many there are */
};

struct entries {
	struct entry *all; /* own their names */
	size_t count, room;
};

static zero_status load_header(const char *path, struct header *header)
{
	uint64_t file_bytes, bytes = 0;
	unsigned char length[8];
	zero_status status;
	int fd;

	status = files_open_regular(path, &fd, &file_bytes);
	if (status)
		return status;
	if (file_bytes < sizeof(length)) {
		status = files_core()->fail(ZERO_E_FORMAT,
					    "%s: has %" PRIu64 " bytes; a safetensors file begins "
					    "with 8 bytes that give its header's length",
					    path, file_bytes);
		goto out;
	}
	status = files_read(fd, path, 0, sizeof(length), (char *)length);
	if (status)
		goto out;
	for (size_t i = 0; i < sizeof(length); i++)
		bytes |= (uint64_t)length[i] << 8 * i;
	if (bytes > file_bytes - sizeof(length)) {
		status = files_core()->fail(ZERO_E_FORMAT,
					    "%s: its first 8 bytes give a header of %" PRIu64
					    " bytes, but only %" PRIu64 " follow; it is cut short "
					    "or no safetensors file",
					    path, bytes, file_bytes - sizeof(length));
		goto out;
	}
	if (bytes > FILES_JSON_MAX) {
		status = files_core()->fail(ZERO_E_FORMAT,
					    "%s: its first 8 bytes give a header of %" PRIu64
					    " bytes; at most %u are allowed",
					    path, bytes, FILES_JSON_MAX);
		goto out;
	}
	header->text = malloc(bytes ? bytes : 1);
	if (!header->text) {
		status = files_no_memory(path);
		goto out;
	}
	status = files_read(fd, path, sizeof(length), bytes, header->text);
	header->path = path;
	header->bytes = bytes;
	header->data = sizeof(length) + bytes;
	header->data_bytes = file_bytes - header->data;
out:
	close(fd);
	return status;
}

static zero_status check_metadata(struct walk *outer)
{
	struct walk walk;
	const char *name;
	zero_status status;
	json_t *value;

	status = walk_into(outer, &walk);
	while (!status) {
		size_t at;

		status = walk_next(&walk, &name);
		if (status || !name)
			break;
		at = walk.at;
		status = walk_value(&walk, &value);
		if (status)
			break;
		if (!json_is_string(value))
			status = walk_fail(&walk, at,
					   "\"%s\" in __metadata__ is not a string; all of its "
					   "values must be",
					   files_words(name).text);
		json_decref(value);
	}
	walk_out(outer, &walk);
	return status;
}

static zero_status add_entry(struct entries *entries, const struct entry *entry)
{
	if (entries->count == entries->room) {
		size_t room = entries->room ? 2 * entries->room : 64;
		struct entry *all = realloc(entries->all, room * sizeof(*all));

		if (!all)
			return files_no_memory(entry->tensor.path);
		entries->all = all;
		entries->room = room;
	}
	entries->all[entries->count] = *entry;
	entries->all[entries->count].tensor.name = strdup(entry->tensor.name);
	if (!entries->all[entries->count].tensor.name)
		return files_no_memory(entry->tensor.path);
	entries->count++;
	return ZERO_OK;
}

static zero_status read_member(const struct header *header, struct walk *walk, const char *name,
			       struct entries *entries)
{
	struct entry entry = {.tensor = {.name = name, .path = header->path}};
	zero_status status;
	json_t *json;

	entry.at = walk->base + walk->names[walk->count - 1].at;
	if (!*name)
		return entry_fail(&entry, "has an empty name; a tensor must have one");
	status = walk_value(walk, &json);
	if (status)
		return status;
	status = entry_read(json, header->data_bytes, &entry);
	json_decref(json);
	if (status)
		return status;
	entry.tensor.offset = header->data + entry.begin;
	return add_entry(entries, &entry);
}

static zero_status read_members(const struct header *header, struct entries *entries)
{
	struct walk walk = {.path = header->path,
			    .text = header->text,
			    .bytes = header->bytes,
			    .base = header->data - header->bytes};
	const char *name;
	zero_status status;

	/* The format wants '{' as the very first byte, so that it tells the file's type. */
	if (!walk.bytes || walk.text[0] != '{')
		return walk_fail(&walk, 0, "the header does not begin with '{'");
	status = walk_begin(&walk);
	while (!status) {
		status = walk_next(&walk, &name);
		if (status || !name)
			break;
		if (strcmp(name, "__metadata__") == 0)
			status = check_metadata(&walk);
		else
			status = read_member(header, &walk, name, entries);
	}
	if (!status)
		status = walk_end(&walk);
	walk_free(&walk);
	return status;
}

static int by_bytes(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return (x->at > y->at) - (x->at < y->at);
}

/* Sorts the tensors by their bytes, of which each must belong to exactly one. */
static zero_status check_extents(const struct header *header, struct entries *entries)
{
	const struct entry *last = NULL; /* the one that ends at `end` */
	uint64_t end = 0;

	if (entries->count)
		qsort(entries->all, entries->count, sizeof(*entries->all), by_bytes);
	for (size_t i = 0; i < entries->count; i++) {
		const struct entry *entry = &entries->all[i];

		if (entry->begin < end)
			return entry_fail(entry,
					  "has the data_offsets [%" PRIu64 ",%" PRIu64
					  "], which overlap [%" PRIu64 ",%" PRIu64
					  "] of \"%s\"; no two tensors may share bytes",
					  entry->begin, entry->end, last->begin, last->end,
					  files_words(last->tensor.name).text);
		if (entry->begin > end)
			return entry_fail(entry,
					  "has the data_offsets [%" PRIu64 ",%" PRIu64
					  "], but the tensors before it end at %" PRIu64
					  "; the format allows no holes",
					  entry->begin, entry->end, end);
		end = entry->end;
		last = entry;
	}
	if (end < header->data_bytes)
		return files_core()->fail(ZERO_E_FORMAT,
					  "%s: has %" PRIu64 " bytes from byte %" PRIu64
					  " on that belong to no tensor; the format allows none",
					  header->path, header->data_bytes - end,
					  header->data + end);
	return ZERO_OK;
}

zero_status files_read_safetensors(struct zero_file *file, const char *path)
{
	struct header header = {.text = NULL};
	struct entries entries = {.all = NULL};
	zero_status status;

	status = load_header(path, &header);
	if (!status)
		status = files_add_path(file, path, &header.path);
	if (!status)
		status = read_members(&header, &entries);
	if (!status)
		status = check_extents(&header, &entries);
	for (size_t i = 0; i < entries.count && !status; i++) {
		status = files_add_tensor(file, &entries.all[i].tensor);
		if (!status)
			entries.all[i].tensor.name = NULL;
	}
	for (size_t i = 0; i < entries.count; i++)
		free((char *)entries.all[i].tensor.name);
	free(entries.all);
	free(header.text);
	return status;
}
