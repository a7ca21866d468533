/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a model in several files. The index is a JSON object whose weight_map gives each tensor's
 * file; the files are in the folder of the index.
 */
#include "files/json_reader.h"
#include "files/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* One member of the weight_map. */
struct index_entry {
	char *tensor, *file;
};

struct index {
	struct index_entry *entries;
	size_t count;
	bool has_map;
};

static void free_entries(struct index *index)
{
	for (size_t i = 0; i < index->count; i++) {
		free(index->entries[i].tensor);
		free(index->entries[i].file);
	}
	free(index->entries);
}

/* What is wrong with a file's name, which must not lead out of the folder of the index. */
static const char *name_problem(const char *name)
{
	static const char end[] = ".safetensors";

	if (strchr(name, '/'))
		return "has a '/'";
	for (const char *c = name; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return "has a control character";
	if (!files_ends_with(name, end) || strlen(name) == strlen(end))
		return "does not end in .safetensors";
	return NULL;
}

static zero_status add_entry(const char *path, struct index *index, const char *tensor,
			     const char *file)
{
	struct index_entry *entries = files_grow(index->entries, index->count, sizeof(*entries));
	struct index_entry entry;

	if (!entries)
		return files_no_memory(path);
	index->entries = entries;
	entry.tensor = strdup(tensor);
	entry.file = strdup(file);
	if (!entry.tensor || !entry.file) {
		free(entry.tensor);
		free(entry.file);
		return files_no_memory(path);
	}
	index->entries[index->count++] = entry;
	return ZERO_OK;
}

/* Reads the value of one tensor in the weight_map. */
static zero_status read_entry(struct json_reader *reader, const char *tensor, struct index *index)
{
	const char *file, *problem;
	size_t at = reader->at;
	zero_status status;
	json_t *value;

	if (!*tensor)
		return json_reader_fail(reader, reader->names[reader->count - 1].at,
					"a tensor in weight_map has an empty name");
	status = json_reader_value(reader, &value);
	if (status)
		return status;
	file = json_string_value(value);
	problem = file ? name_problem(file) : NULL;
	if (!file)
		status = json_reader_fail(reader, at,
					  "the file of tensor \"%s\" in weight_map is not a string",
					  files_printable(tensor).text);
	else if (problem)
		status = json_reader_fail(
			reader, at,
			"the file \"%s\" of tensor \"%s\" in weight_map %s; it must be the plain "
			"name of a .safetensors file in the folder of the index",
			files_printable(file).text, files_printable(tensor).text, problem);
	else
		status = add_entry(reader->path, index, tensor, file);
	json_decref(value);
	return status;
}

static zero_status read_weight_map(struct json_reader *outer, struct index *index)
{
	const char *tensor;
	struct json_reader reader;
	zero_status status;

	index->has_map = true;
	status = json_reader_enter(outer, &reader);
	while (!status) {
		status = json_reader_member(&reader, &tensor);
		if (status || !tensor)
			break;
		status = read_entry(&reader, tensor, index);
	}
	json_reader_leave(outer, &reader);
	return status;
}

static zero_status read_entries(struct json_reader *reader, struct index *index)
{
	const char *name;
	zero_status status;
	json_t *value;

	status = json_reader_object(reader);
	while (!status) {
		status = json_reader_member(reader, &name);
		if (status || !name)
			break;
		if (strcmp(name, "weight_map") == 0) {
			status = read_weight_map(reader, index);
			continue;
		}
		/* Other members, such as "metadata", do not describe the files' bytes. */
		status = json_reader_value(reader, &value);
		if (!status)
			json_decref(value);
	}
	if (!status)
		status = json_reader_end(reader);
	if (!status && !index->count)
		status = zero_core->fail(
			ZERO_E_FORMAT,
			"%s: the index has %s weight_map, which must give each tensor's file",
			reader->path, index->has_map ? "an empty" : "no");
	return status;
}

static zero_status load_entries(const char *path, struct index *index)
{
	struct json_reader reader = {.path = path};
	zero_status status;
	char *text;

	status = files_read_json(path, &text, &reader.bytes);
	if (status)
		return status;
	reader.text = text;
	status = read_entries(&reader, index);
	json_reader_free(&reader);
	free(text);
	return status;
}

static int by_file(const void *a, const void *b)
{
	const struct index_entry *x = a, *y = b;
	int order = strcmp(x->file, y->file);

	return order ? order : strcmp(x->tensor, y->tensor);
}

static int by_tensor(const void *a, const void *b)
{
	return strcmp(((const struct index_entry *)a)->tensor,
		      ((const struct index_entry *)b)->tensor);
}

static zero_status read_file(struct zero_file *set, const char *index_path, const char *folder,
			     const struct index_entry *entry)
{
	char *path = files_join(folder, entry->file);
	zero_status status;
	struct stat st;

	if (!path)
		return files_no_memory(index_path);
	if (stat(path, &st) != 0)
		status = zero_core->fail(
			ZERO_E_FILE, "%s: the file of tensor \"%s\", %s, cannot be opened: %s",
			index_path, files_printable(entry->tensor).text, path, strerror(errno));
	else
		status = files_read_safetensors(set, path);
	free(path);
	return status;
}

/* Reads each file once, in the order of their names. */
static zero_status read_files(struct zero_file *set, const char *path, struct index *index)
{
	const struct index_entry *entries = index->entries;
	const char *slash = strrchr(path, '/');
	zero_status status = ZERO_OK;
	char *folder;

	folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	if (!folder)
		return files_no_memory(path);
	qsort(index->entries, index->count, sizeof(*entries), by_file);
	for (size_t i = 0; i < index->count && !status; i++)
		if (i == 0 || strcmp(entries[i - 1].file, entries[i].file) != 0)
			status = read_file(set, path, folder, &entries[i]);
	free(folder);
	return status;
}

/* `found`: the file that has the tensor; NULL: none has it. */
static zero_status misplaced(const char *path, const struct index_entry *entry, const char *found)
{
	return zero_core->fail(ZERO_E_FORMAT,
			       "%s: the index says that tensor \"%s\" is in %s, but it is in %s; "
			       "the index and the files belong to different models, or are "
			       "damaged",
			       path, files_printable(entry->tensor).text,
			       files_printable(entry->file).text,
			       found ? files_printable(found).text : "no file");
}

/* Both lists are sorted by name, so that one pass finds what only one of them has. */
static zero_status compare(const struct zero_file *set, const char *path, struct index *index)
{
	size_t t = 0, e = 0;

	qsort(index->entries, index->count, sizeof(*index->entries), by_tensor);
	while (t < set->count || e < index->count) {
		const zero_tensor *tensor = t < set->count ? set->by_name[t] : NULL;
		const struct index_entry *entry = e < index->count ? &index->entries[e] : NULL;
		int order = !tensor ? 1 : !entry ? -1 : strcmp(tensor->name, entry->tensor);

		if (order > 0)
			return misplaced(path, entry, NULL);
		if (order < 0)
			return zero_core->fail(ZERO_E_FORMAT,
					       "%s: tensor \"%s\" is in %s, but not in the "
					       "weight_map; the index and the files belong to "
					       "different models, or are damaged",
					       path, files_printable(tensor->name).text,
					       tensor->path);
		if (strcmp(files_base_name(tensor->path), entry->file) != 0)
			return misplaced(path, entry, files_base_name(tensor->path));
		t++;
		e++;
	}
	return ZERO_OK;
}

zero_status files_read_index(struct zero_file *file, const char *path)
{
	struct index index = {.entries = NULL};
	zero_status status;

	status = load_entries(path, &index);
	if (!status)
		status = read_files(file, path, &index);
	if (!status)
		status = files_sort_names(file);
	if (!status)
		status = compare(file, path, &index);
	free_entries(&index);
	return status;
}
