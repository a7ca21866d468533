/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads one safetensors file: 8 bytes with the header's length (little-endian), the header (a JSON
 * object, padded with spaces), and the tensors' bytes without a hole or an overlap.
 * https://github.com/huggingface/safetensors#format
 */
#include "files/json_reader.h"
#include "files/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct header {
	const char *path;
	char *text;
	size_t bytes;
	uint64_t data;       /* byte of the file where the data begin */
	uint64_t data_bytes; /* bytes of the data */
};

struct entries {
	struct tensor_entry *all; /* they own their names */
	size_t count;
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
		status = zero_core->fail(ZERO_E_FORMAT,
					 "%s: has %" PRIu64 " bytes; a safetensors file begins "
					 "with 8 bytes that give the length of its header",
					 path, file_bytes);
		goto out;
	}
	status = files_read(fd, path, 0, sizeof(length), (char *)length);
	if (status)
		goto out;
	for (size_t i = 0; i < sizeof(length); i++)
		bytes |= (uint64_t)length[i] << 8 * i;
	if (bytes > file_bytes - sizeof(length)) {
		status = zero_core->fail(ZERO_E_FORMAT,
					 "%s: its first 8 bytes give a header of %" PRIu64
					 " bytes, but only %" PRIu64 " follow; it is cut short "
					 "or not a safetensors file",
					 path, bytes, file_bytes - sizeof(length));
		goto out;
	}
	if (bytes > FILES_JSON_MAX) {
		status = zero_core->fail(ZERO_E_FORMAT,
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

static zero_status check_metadata(struct json_reader *outer)
{
	struct json_reader reader;
	const char *name;
	zero_status status;
	json_t *value;

	status = json_reader_enter(outer, &reader);
	while (!status) {
		size_t at;

		status = json_reader_member(&reader, &name);
		if (status || !name)
			break;
		at = reader.at;
		status = json_reader_value(&reader, &value);
		if (status)
			break;
		if (!json_is_string(value))
			status = json_reader_fail(
				&reader, at,
				"\"%s\" in __metadata__ is not a string, as all of its "
				"values must be",
				files_printable(name).text);
		json_decref(value);
	}
	json_reader_leave(outer, &reader);
	return status;
}

static zero_status add_entry(struct entries *entries, const struct tensor_entry *entry)
{
	struct tensor_entry *all = files_grow(entries->all, entries->count, sizeof(*all));

	if (!all)
		return files_no_memory(entry->tensor.path);
	entries->all = all;
	entries->all[entries->count] = *entry;
	entries->all[entries->count].tensor.name = strdup(entry->tensor.name);
	if (!entries->all[entries->count].tensor.name)
		return files_no_memory(entry->tensor.path);
	entries->count++;
	return ZERO_OK;
}

static zero_status read_member(const struct header *header, struct json_reader *reader,
			       const char *name, struct entries *entries)
{
	struct tensor_entry entry = {.tensor = {.name = name, .path = header->path}};
	zero_status status;
	json_t *json;

	entry.name_offset = reader->base + reader->names[reader->count - 1].at;
	if (!*name)
		return tensor_entry_fail(&entry, "has an empty name; a tensor must have one");
	status = json_reader_value(reader, &json);
	if (status)
		return status;
	status = tensor_entry_read(json, header->data_bytes, &entry);
	json_decref(json);
	if (status)
		return status;
	entry.tensor.offset = header->data + entry.begin;
	return add_entry(entries, &entry);
}

static zero_status read_members(const struct header *header, struct entries *entries)
{
	struct json_reader reader = {.path = header->path,
				     .text = header->text,
				     .bytes = header->bytes,
				     .base = header->data - header->bytes};
	const char *name;
	zero_status status;

	/* The format requires '{' as the very first byte: it identifies the file's type. */
	if (!reader.bytes || reader.text[0] != '{')
		return json_reader_fail(&reader, 0, "the header does not begin with '{'");
	status = json_reader_object(&reader);
	while (!status) {
		status = json_reader_member(&reader, &name);
		if (status || !name)
			break;
		if (strcmp(name, "__metadata__") == 0)
			status = check_metadata(&reader);
		else
			status = read_member(header, &reader, name, entries);
	}
	if (!status)
		status = json_reader_end(&reader);
	json_reader_free(&reader);
	return status;
}

static int by_bytes(const void *a, const void *b)
{
	const struct tensor_entry *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return (x->name_offset > y->name_offset) - (x->name_offset < y->name_offset);
}

/* Sorts the tensors by their bytes. Each byte must belong to exactly one tensor. */
static zero_status check_extents(const struct header *header, struct entries *entries)
{
	const struct tensor_entry *last = NULL; /* it ends at `end` */
	uint64_t end = 0;

	if (entries->count)
		qsort(entries->all, entries->count, sizeof(*entries->all), by_bytes);
	for (size_t i = 0; i < entries->count; i++) {
		const struct tensor_entry *entry = &entries->all[i];

		if (entry->begin < end)
			return tensor_entry_fail(entry,
						 "has the data_offsets [%" PRIu64 ",%" PRIu64
						 "], which overlap [%" PRIu64 ",%" PRIu64
						 "] of \"%s\"; no two tensors may share bytes",
						 entry->begin, entry->end, last->begin, last->end,
						 files_printable(last->tensor.name).text);
		if (entry->begin > end)
			return tensor_entry_fail(entry,
						 "has the data_offsets [%" PRIu64 ",%" PRIu64
						 "], but the tensors before it end at %" PRIu64
						 "; the format allows no holes",
						 entry->begin, entry->end, end);
		end = entry->end;
		last = entry;
	}
	if (end < header->data_bytes)
		return zero_core->fail(ZERO_E_FORMAT,
				       "%s: the %" PRIu64 " bytes from byte %" PRIu64
				       " belong to no tensor; the format allows no holes",
				       header->path, header->data_bytes - end, header->data + end);
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
