/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file that is to be written. */
#include "files/safetensors.h"
#include "files/input.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static zero_status no_memory(void)
{
	return files_core()->fail(ZERO_E_MEMORY, "no memory for a safetensors header");
}

static zero_status check_tensor(const json_t *root, const zero_tensor *tensor, size_t i)
{
	if (!tensor->name || !*tensor->name)
		return files_core()->fail(ZERO_E_INVALID,
					  "tensor %zu has no name, and cannot be in a safetensors "
					  "file without one",
					  i);
	if (strcmp(tensor->name, "__metadata__") == 0)
		return files_core()->fail(ZERO_E_INVALID,
					  "tensor %zu is named \"__metadata__\", which safetensors "
					  "keeps for itself",
					  i);
	if (json_object_get(root, tensor->name))
		return files_core()->fail(ZERO_E_INVALID,
					  "two tensors are named \"%s\"; each name may be in a "
					  "safetensors file once",
					  files_words(tensor->name).text);
	if (!entry_dtype_name(tensor->dtype, NULL))
		return files_core()->fail(ZERO_E_INVALID,
					  "tensor \"%s\" has %d for its type, which is no storage "
					  "type",
					  files_words(tensor->name).text, (int)tensor->dtype);
	if (tensor->ndim < 0 || tensor->ndim > ZERO_MAX_DIMS)
		return files_core()->fail(
			ZERO_E_INVALID, "tensor \"%s\" has %d dimensions; allowed are 0 to %d",
			files_words(tensor->name).text, tensor->ndim, ZERO_MAX_DIMS);
	return ZERO_OK;
}

static json_t *describe(const zero_tensor *tensor, uint64_t begin, uint64_t end)
{
	json_t *shape = json_array();

	for (int i = 0; shape && i < tensor->ndim; i++) {
		if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i])) != 0) {
			json_decref(shape);
			shape = NULL;
		}
	}
	/* "o" takes over shape, and fails on NULL. */
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", entry_dtype_name(tensor->dtype, NULL),
			 "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* Adds the tensor behind the `*end` bytes that are taken. */
static zero_status add_tensor(json_t *root, const zero_tensor *tensor, uint64_t *end)
{
	uint64_t begin = *end, bytes;
	json_t *entry;

	/* A header is far below 2^32 bytes, and offsets in the file are to stay below 2^63. */
	if (!entry_bytes(tensor, &bytes) || bytes > (uint64_t)INT64_MAX - UINT32_MAX - begin)
		return files_core()->fail(ZERO_E_INVALID,
					  "tensor \"%s\" does not fit: it begins at byte %" PRIu64
					  " of the data, which may be up to 2^63 bytes",
					  files_words(tensor->name).text, begin);
	entry = describe(tensor, begin, begin + bytes);
	if (!entry)
		return no_memory();
	if (json_object_set_new(root, tensor->name, entry) != 0) {
		json_t *name = json_string(tensor->name);

		if (name) {
			json_decref(name);
			return no_memory();
		}
		return files_core()->fail(
			ZERO_E_INVALID,
			"the tensor name \"%s\" is not valid UTF-8, as JSON wants "
			"it",
			files_words(tensor->name).text);
	}
	*end = begin + bytes;
	return ZERO_OK;
}

/* Puts length and padding around the JSON, so that the data begin at a multiple of 64 bytes. */
static zero_status frame(const char *json, char **header, size_t *bytes)
{
	size_t length = strlen(json);
	size_t whole = (8 + length + 63) / 64 * 64;

	if (whole - 8 > FILES_JSON_MAX)
		return files_core()->fail(ZERO_E_INVALID,
					  "the safetensors header would be %zu bytes; at most %u "
					  "are allowed",
					  whole - 8, FILES_JSON_MAX);
	*header = malloc(whole);
	if (!*header)
		return no_memory();
	for (size_t i = 0; i < 8; i++)
		(*header)[i] = (char)((uint64_t)(whole - 8) >> 8 * i & 0xff);
	memcpy(*header + 8, json, length);
	memset(*header + 8 + length, ' ', whole - 8 - length);
	*bytes = whole;
	return ZERO_OK;
}

zero_status files_header(zero_tensor *tensors, size_t count, char **header, size_t *bytes)
{
	zero_status status = ZERO_OK;
	uint64_t end = 0, size;
	char *text = NULL;
	json_t *root;

	*header = NULL;
	*bytes = 0;
	/* Transformers refuses a file that does not say "pt" here. */
	root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	if (!root)
		return no_memory();
	for (size_t i = 0; i < count && !status; i++) {
		status = check_tensor(root, &tensors[i], i);
		if (!status)
			status = add_tensor(root, &tensors[i], &end);
	}
	if (status)
		goto out;
	text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
	status = text ? frame(text, header, bytes) : no_memory();
	if (status)
		goto out;
	/* Only now, so that an error has changed nothing. */
	end = *bytes;
	for (size_t i = 0; i < count; i++) {
		tensors[i].offset = end;
		entry_bytes(&tensors[i], &size);
		end += size;
	}
out:
	free(text);
	json_decref(root);
	return status;
}
