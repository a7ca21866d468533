/* SPDX-License-Identifier: Apache-2.0 */
#include "files/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(size_t) == 8, "a dimension in a file is a 64-bit integer");

static const struct {
	const char *name;
	size_t size;
} dtypes[] = {
	[ZERO_F32] = {"F32", 4},         [ZERO_F16] = {"F16", 2},   [ZERO_BF16] = {"BF16", 2},
	[ZERO_F64] = {"F64", 8},         [ZERO_I64] = {"I64", 8},   [ZERO_I32] = {"I32", 4},
	[ZERO_U8] = {"U8", 1},           [ZERO_BOOL] = {"BOOL", 1}, [ZERO_F8_E4M3] = {"F8_E4M3", 1},
	[ZERO_F8_E5M2] = {"F8_E5M2", 1},
};

const char safetensors_allowed_dtypes[] =
	"F32, F16, BF16, F64, I64, I32, U8, BOOL, F8_E4M3, F8_E5M2";

/* Types of the format that this library does not store. They are no damage, so the message
   differs. */
static const char *const foreign_dtypes[] = {
	"F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4",
	"I8",      "I16",         "U16",         "U32",     "U64",     "C64",
};

static const size_t dtype_count = sizeof(dtypes) / sizeof(*dtypes);

const char *safetensors_dtype_name(zero_dtype dtype, size_t *size)
{
	if (dtype <= ZERO_DTYPE_PARAM || (size_t)dtype >= dtype_count)
		return NULL;
	if (size)
		*size = dtypes[dtype].size;
	return dtypes[dtype].name;
}

bool safetensors_dtype(const char *name, zero_dtype *dtype)
{
	for (size_t i = ZERO_DTYPE_PARAM + 1; i < dtype_count; i++) {
		if (strcmp(name, dtypes[i].name) == 0) {
			*dtype = (zero_dtype)i;
			return true;
		}
	}
	return false;
}

bool safetensors_bytes(const zero_tensor *tensor, uint64_t *bytes)
{
	uint64_t product = 0;
	bool empty = false;

	if (!safetensors_dtype_name(tensor->dtype, &product))
		return false;
	/*
	 * The other dimensions of an empty tensor must not overflow either: programs compute
	 * strides from them.
	 */
	for (int i = 0; i < tensor->ndim; i++) {
		if (tensor->shape[i] == 0)
			empty = true;
		else if (__builtin_mul_overflow(product, tensor->shape[i], &product) ||
			 product > INT64_MAX)
			return false;
	}
	*bytes = empty ? 0 : product;
	return true;
}

zero_status tensor_entry_fail(const struct tensor_entry *entry, const char *format, ...)
{
	char reason[512];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	return zero_core->fail(ZERO_E_FORMAT, "%s: tensor \"%s\" (named at byte %" PRIu64 ") %s",
			       entry->tensor.path, files_printable(entry->tensor.name).text,
			       entry->name_offset, reason);
}

bool files_json_size(const json_t *json, size_t *value)
{
	*value = (size_t)json_integer_value(json);
	return json_is_integer(json) && json_integer_value(json) >= 0;
}

struct files_printable files_json_printable(const json_t *value)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	struct files_printable printable = files_printable(text ? text : "nothing");

	free(text);
	return printable;
}

static zero_status read_dtype(const json_t *json, struct tensor_entry *entry)
{
	const char *name = json_string_value(json);

	if (!name)
		return tensor_entry_fail(entry, "has the dtype %s; allowed are the strings %s",
					 files_json_printable(json).text,
					 safetensors_allowed_dtypes);
	if (safetensors_dtype(name, &entry->tensor.dtype))
		return ZERO_OK;
	for (size_t i = 0; i < sizeof(foreign_dtypes) / sizeof(*foreign_dtypes); i++)
		if (strcmp(name, foreign_dtypes[i]) == 0)
			return tensor_entry_fail(
				entry,
				"has the dtype %s, which safetensors allows but this "
				"library does not store; convert it to one of %s",
				name, safetensors_allowed_dtypes);
	return tensor_entry_fail(entry, "has the unknown dtype \"%s\"; allowed are %s",
				 files_printable(name).text, safetensors_allowed_dtypes);
}

static zero_status read_shape(const json_t *json, struct tensor_entry *entry)
{
	zero_tensor *tensor = &entry->tensor;
	size_t ndim = json_array_size(json);

	if (!json_is_array(json))
		return tensor_entry_fail(entry, "has the shape %s; it must be an array of integers",
					 files_json_printable(json).text);
	if (ndim > ZERO_MAX_DIMS)
		return tensor_entry_fail(entry, "has %zu dimensions; at most %d are allowed", ndim,
					 ZERO_MAX_DIMS);
	for (size_t i = 0; i < ndim; i++) {
		const json_t *dim = json_array_get(json, i);

		if (!files_json_size(dim, &tensor->shape[i]))
			return tensor_entry_fail(
				entry,
				"has %s as dimension %zu; allowed are integers from 0 to "
				"2^63-1",
				files_json_printable(dim).text, i);
	}
	tensor->ndim = (int)ndim;
	return ZERO_OK;
}

static zero_status read_offsets(const json_t *json, uint64_t data_bytes, struct tensor_entry *entry)
{
	size_t offsets[2];

	if (!json_is_array(json) || json_array_size(json) != 2)
		return tensor_entry_fail(entry,
					 "has the data_offsets %s; they must be [begin, end]",
					 files_json_printable(json).text);
	for (size_t i = 0; i < 2; i++) {
		if (!files_json_size(json_array_get(json, i), &offsets[i]))
			return tensor_entry_fail(
				entry,
				"has the data_offsets %s; allowed are integers from 0 to "
				"the %" PRIu64 " bytes of data in the file",
				files_json_printable(json).text, data_bytes);
	}
	entry->begin = offsets[0];
	entry->end = offsets[1];
	if (entry->begin > entry->end)
		return tensor_entry_fail(entry, "has data_offsets that end before they begin: %s",
					 files_json_printable(json).text);
	if (entry->end > data_bytes)
		return tensor_entry_fail(
			entry,
			"has the data_offsets %s beyond the end of the file, which has "
			"%" PRIu64 " bytes of data; the file may be cut short",
			files_json_printable(json).text, data_bytes);
	return ZERO_OK;
}

static zero_status check_bytes(const json_t *shape, const struct tensor_entry *entry)
{
	const char *dtype = safetensors_dtype_name(entry->tensor.dtype, NULL);
	uint64_t bytes;

	if (!safetensors_bytes(&entry->tensor, &bytes))
		return tensor_entry_fail(entry,
					 "has the shape %s of %s, which is 2^63 bytes or more",
					 files_json_printable(shape).text, dtype);
	if (entry->end - entry->begin != bytes)
		return tensor_entry_fail(entry,
					 "has the data_offsets [%" PRIu64 ",%" PRIu64 "], %" PRIu64
					 " bytes, but the shape %s of %s takes %" PRIu64 " bytes",
					 entry->begin, entry->end, entry->end - entry->begin,
					 files_json_printable(shape).text, dtype, bytes);
	return ZERO_OK;
}

zero_status tensor_entry_read(const json_t *json, uint64_t data_bytes, struct tensor_entry *entry)
{
	static const char *const keys[] = {"dtype", "shape", "data_offsets"};
	const char *key;
	json_t *value;
	zero_status status;

	if (!json_is_object(json))
		return tensor_entry_fail(
			entry, "is %s; it must be an object with dtype, shape and data_offsets",
			files_json_printable(json).text);
	json_object_foreach((json_t *)json, key, value)
	{
		if (strcmp(key, keys[0]) != 0 && strcmp(key, keys[1]) != 0 &&
		    strcmp(key, keys[2]) != 0)
			return tensor_entry_fail(
				entry,
				"has the unknown key \"%s\"; allowed are dtype, shape "
				"and data_offsets",
				files_printable(key).text);
	}
	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (!json_object_get(json, keys[i]))
			return tensor_entry_fail(
				entry, "has no %s; it must have dtype, shape and data_offsets",
				keys[i]);
	status = read_dtype(json_object_get(json, "dtype"), entry);
	if (!status)
		status = read_shape(json_object_get(json, "shape"), entry);
	if (!status)
		status = read_offsets(json_object_get(json, "data_offsets"), data_bytes, entry);
	if (!status)
		status = check_bytes(json_object_get(json, "shape"), entry);
	return status;
}
