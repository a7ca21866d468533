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
	[ZERO_F32] = {"F32", 4}, [ZERO_F16] = {"F16", 2},   [ZERO_BF16] = {"BF16", 2},
	[ZERO_F64] = {"F64", 8}, [ZERO_I64] = {"I64", 8},   [ZERO_I32] = {"I32", 4},
	[ZERO_U8] = {"U8", 1},   [ZERO_BOOL] = {"BOOL", 1},
};

static const char allowed_dtypes[] = "F32, F16, BF16, F64, I64, I32, U8, BOOL";

/* What safetensors also knows, to tell a damaged file from a model that cannot be stored here. */
static const char *const foreign_dtypes[] = {
	"F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2",
	"F4",      "I8",      "I16",     "U16",         "U32",         "U64",     "C64",
};

static const size_t dtype_count = sizeof(dtypes) / sizeof(*dtypes);

const char *entry_dtype_name(zero_dtype dtype, size_t *size)
{
	if (dtype <= ZERO_DTYPE_PARAM || (size_t)dtype >= dtype_count)
		return NULL;
	if (size)
		*size = dtypes[dtype].size;
	return dtypes[dtype].name;
}

bool entry_bytes(const zero_tensor *tensor, uint64_t *bytes)
{
	uint64_t product = 0;
	bool empty = false;

	if (!entry_dtype_name(tensor->dtype, &product))
		return false;
	/*
	 * Of an empty tensor, too, the other dimensions must multiply to something sane: who counts
	 * strides from them need not be careful.
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

zero_status entry_fail(const struct entry *entry, const char *format, ...)
{
	char reason[512];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	return files_core()->fail(ZERO_E_FORMAT, "%s: tensor \"%s\" (named at byte %" PRIu64 ") %s",
				  entry->tensor.path, files_words(entry->tensor.name).text,
				  entry->at, reason);
}

/* A value as the file has it, for a sentence. */
static struct files_words value_words(const json_t *value)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	struct files_words words = files_words(text ? text : "?");

	free(text);
	return words;
}

static zero_status read_dtype(const json_t *json, struct entry *entry)
{
	const char *name = json_string_value(json);

	if (!name)
		return entry_fail(entry, "has the dtype %s; allowed are the strings %s",
				  value_words(json).text, allowed_dtypes);
	for (size_t i = ZERO_DTYPE_PARAM + 1; i < dtype_count; i++) {
		if (strcmp(name, dtypes[i].name) == 0) {
			entry->tensor.dtype = (zero_dtype)i;
			return ZERO_OK;
		}
	}
	for (size_t i = 0; i < sizeof(foreign_dtypes) / sizeof(*foreign_dtypes); i++)
		if (strcmp(name, foreign_dtypes[i]) == 0)
			return entry_fail(entry,
					  "has the dtype %s, which safetensors allows but this "
					  "library does not store; convert it to one of %s",
					  name, allowed_dtypes);
	return entry_fail(entry, "has the unknown dtype \"%s\"; allowed are %s",
			  files_words(name).text, allowed_dtypes);
}

static zero_status read_shape(const json_t *json, struct entry *entry)
{
	zero_tensor *tensor = &entry->tensor;
	size_t ndim = json_array_size(json);

	if (!json_is_array(json))
		return entry_fail(entry, "has the shape %s; it must be an array of integers",
				  value_words(json).text);
	if (ndim > ZERO_MAX_DIMS)
		return entry_fail(entry, "has %zu dimensions; at most %d are allowed", ndim,
				  ZERO_MAX_DIMS);
	for (size_t i = 0; i < ndim; i++) {
		const json_t *dim = json_array_get(json, i);

		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return entry_fail(entry,
					  "has %s as dimension %zu; allowed are integers from 0 to "
					  "2^63-1",
					  value_words(dim).text, i);
		tensor->shape[i] = (size_t)json_integer_value(dim);
	}
	tensor->ndim = (int)ndim;
	return ZERO_OK;
}

static zero_status read_offsets(const json_t *json, uint64_t data_bytes, struct entry *entry)
{
	uint64_t offsets[2];

	if (!json_is_array(json) || json_array_size(json) != 2)
		return entry_fail(entry, "has the data_offsets %s; they must be [begin, end]",
				  value_words(json).text);
	for (size_t i = 0; i < 2; i++) {
		const json_t *offset = json_array_get(json, i);

		if (!json_is_integer(offset) || json_integer_value(offset) < 0)
			return entry_fail(entry,
					  "has the data_offsets %s; allowed are integers from 0 to "
					  "the %" PRIu64 " bytes of data in the file",
					  value_words(json).text, data_bytes);
		offsets[i] = (uint64_t)json_integer_value(offset);
	}
	entry->begin = offsets[0];
	entry->end = offsets[1];
	if (entry->begin > entry->end)
		return entry_fail(entry, "has data_offsets that end before they begin: %s",
				  value_words(json).text);
	if (entry->end > data_bytes)
		return entry_fail(entry,
				  "has the data_offsets %s beyond the end of the file, which has "
				  "%" PRIu64 " bytes of data; is it cut short?",
				  value_words(json).text, data_bytes);
	return ZERO_OK;
}

static zero_status check_bytes(const json_t *shape, const struct entry *entry)
{
	const char *dtype = entry_dtype_name(entry->tensor.dtype, NULL);
	uint64_t bytes;

	if (!entry_bytes(&entry->tensor, &bytes))
		return entry_fail(entry, "has the shape %s of %s, which is 2^63 bytes or more",
				  value_words(shape).text, dtype);
	if (entry->end - entry->begin != bytes)
		return entry_fail(entry,
				  "has the data_offsets [%" PRIu64 ",%" PRIu64 "], %" PRIu64
				  " bytes, but the shape %s of %s takes %" PRIu64 " bytes",
				  entry->begin, entry->end, entry->end - entry->begin,
				  value_words(shape).text, dtype, bytes);
	return ZERO_OK;
}

zero_status entry_read(const json_t *json, uint64_t data_bytes, struct entry *entry)
{
	static const char *const keys[] = {"dtype", "shape", "data_offsets"};
	const char *key;
	json_t *value;
	zero_status status;

	if (!json_is_object(json))
		return entry_fail(entry,
				  "is %s; it must be an object with dtype, shape and data_offsets",
				  value_words(json).text);
	json_object_foreach((json_t *)json, key, value)
	{
		if (strcmp(key, keys[0]) != 0 && strcmp(key, keys[1]) != 0 &&
		    strcmp(key, keys[2]) != 0)
			return entry_fail(entry,
					  "has the unknown key \"%s\"; allowed are dtype, shape "
					  "and data_offsets",
					  files_words(key).text);
	}
	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (!json_object_get(json, keys[i]))
			return entry_fail(entry,
					  "has no %s; it must have dtype, shape and data_offsets",
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
