/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the index of a model in several files. */
#include "files/safetensors.h"

#include <stdlib.h>
#include <string.h>

static zero_status no_memory(void)
{
	return zero_core->fail(ZERO_E_MEMORY, "no memory for the index of a model's files");
}

/* Adds the tensor to the map and its bytes to *total. */
static zero_status add_tensor(json_t *map, const zero_tensor *tensor, uint64_t *total)
{
	uint64_t bytes;

	if (!safetensors_bytes(tensor, &bytes) || bytes > (uint64_t)INT64_MAX - *total)
		return zero_core->fail(
			ZERO_E_INVALID,
			"tensor \"%s\" does not fit: a model has less than 2^63 bytes",
			files_printable(tensor->name).text);
	*total += bytes;
	if (json_object_get(map, tensor->name))
		return zero_core->fail(ZERO_E_INVALID, "two tensors are named \"%s\"",
				       files_printable(tensor->name).text);
	if (json_object_set_new(map, tensor->name, json_string(files_base_name(tensor->path))) != 0)
		return zero_core->fail(ZERO_E_INVALID,
				       "tensor \"%s\" cannot be added to the index: its name or "
				       "its file's, \"%s\", is not valid UTF-8, or there is no "
				       "memory",
				       files_printable(tensor->name).text,
				       files_printable(tensor->path).text);
	return ZERO_OK;
}

zero_status files_index(const zero_tensor *tensors, size_t count, char **text, size_t *bytes)
{
	json_t *map = json_object(), *root = NULL;
	zero_status status = map ? ZERO_OK : no_memory();
	uint64_t total = 0;

	*text = NULL;
	*bytes = 0;
	for (size_t i = 0; i < count && !status; i++)
		status = add_tensor(map, &tensors[i], &total);
	if (status)
		goto out;
	root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total,
			 "weight_map", map);
	*text = root ? json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
	if (*text)
		*bytes = strlen(*text);
	else
		status = no_memory();
out:
	json_decref(map);
	json_decref(root);
	return status;
}
