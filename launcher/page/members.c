/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/page/members.h"

#include <string.h>

const json_t *member(const json_t *object, const char *path)
{
	char key[64];

	while (object && *path) {
		size_t length = strcspn(path, ".");

		if (length >= sizeof(key))
			return NULL;
		memcpy(key, path, length);
		key[length] = '\0';
		object = json_object_get(object, key);
		path += length + (path[length] == '.');
	}
	return object;
}

double number_at(const json_t *object, const char *path)
{
	return json_number_value(member(object, path));
}

uint64_t count_at(const json_t *object, const char *path)
{
	double value = number_at(object, path);

	/* No integer of a report is beyond what a double holds exactly, except for sizes. */
	return value > 0 && value < 1.8e19 ? (uint64_t)value : 0;
}

const char *string_at(const json_t *object, const char *path)
{
	const char *text = json_string_value(member(object, path));

	return text ? text : "";
}

double item_at(const json_t *array, size_t i)
{
	return json_number_value(json_array_get(array, i));
}
