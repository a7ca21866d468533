/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the header of a safetensors file. */
#include "files/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static zero_status no_memory(void)
{
	return zero_core->fail(ZERO_E_MEMORY, "no memory for a safetensors header");
}

static zero_status check_tensor(const json_t *root, const zero_tensor *tensor, size_t i)
{
	if (!tensor->name || !*tensor->name)
		return zero_core->fail(ZERO_E_INVALID,
				       "tensor %zu has no name; a safetensors file needs one", i);
	if (strcmp(tensor->name, "__metadata__") == 0)
		return zero_core->fail(ZERO_E_INVALID,
				       "tensor %zu is named \"__metadata__\", which the "
				       "safetensors format reserves",
				       i);
	if (json_object_get(root, tensor->name))
		return zero_core->fail(ZERO_E_INVALID,
				       "two tensors are named \"%s\"; the names in a safetensors "
				       "file must differ",
				       files_printable(tensor->name).text);
	if (!safetensors_dtype_name(tensor->dtype, NULL))
		return zero_core->fail(ZERO_E_INVALID,
				       "tensor \"%s\" has %d for its type, which is not a storage "
				       "type",
				       files_printable(tensor->name).text, (int)tensor->dtype);
	if (tensor->ndim < 0 || tensor->ndim > ZERO_MAX_DIMS)
		return zero_core->fail(
			ZERO_E_INVALID, "tensor \"%s\" has %d dimensions; allowed are 0 to %d",
			files_printable(tensor->name).text, tensor->ndim, ZERO_MAX_DIMS);
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
	/* "o" takes ownership of shape, and fails on NULL. */
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype",
			 safetensors_dtype_name(tensor->dtype, NULL), "shape", shape,
			 "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* Adds the tensor at byte *end of the data, and moves *end behind it. */
static zero_status add_tensor(json_t *root, const zero_tensor *tensor, uint64_t *end)
{
	uint64_t begin = *end, bytes;
	json_t *entry;

	/* The header has less than 2^32 bytes, and offsets in the file must stay below 2^63. */
	if (!safetensors_bytes(tensor, &bytes) || bytes > (uint64_t)INT64_MAX - UINT32_MAX - begin)
		return zero_core->fail(ZERO_E_INVALID,
				       "tensor \"%s\" does not fit: it begins at byte %" PRIu64
				       " of the data, and a file has less than 2^63 bytes",
				       files_printable(tensor->name).text, begin);
	entry = describe(tensor, begin, begin + bytes);
	if (!entry)
		return no_memory();
	if (json_object_set_new(root, tensor->name, entry) != 0) {
		json_t *name = json_string(tensor->name);

		if (name) {
			json_decref(name);
			return no_memory();
		}
		return zero_core->fail(
			ZERO_E_INVALID,
			"the tensor name \"%s\" is not valid UTF-8, which JSON requires",
			files_printable(tensor->name).text);
	}
	*end = begin + bytes;
	return ZERO_OK;
}

/* Adds the length and padding to the JSON. The data begin at a multiple of 64 bytes. */
static zero_status frame(const char *json, char **header, size_t *bytes)
{
	size_t length = strlen(json);
	size_t total = (8 + length + 63) / 64 * 64;

	if (total - 8 > FILES_JSON_MAX)
		return zero_core->fail(ZERO_E_INVALID,
				       "the safetensors header would be %zu bytes; at most %u "
				       "are allowed",
				       total - 8, FILES_JSON_MAX);
	*header = malloc(total);
	if (!*header)
		return no_memory();
	for (size_t i = 0; i < 8; i++)
		(*header)[i] = (char)((uint64_t)(total - 8) >> 8 * i & 0xff);
	memcpy(*header + 8, json, length);
	memset(*header + 8 + length, ' ', total - 8 - length);
	*bytes = total;
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
	/* Transformers refuses a file without "pt" here. */
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
	/* The tensors are changed last, so that an error leaves them as they were. */
	end = *bytes;
	for (size_t i = 0; i < count; i++) {
		tensors[i].offset = end;
		safetensors_bytes(&tensors[i], &size);
		end += size;
	}
out:
	free(text);
	json_decref(root);
	return status;
}
