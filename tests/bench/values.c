/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

static uint16_t value(size_t i)
{
	return (uint16_t)(i ^ i >> 16);
}

void fill(uint16_t *out, size_t first, size_t count)
{
	for (size_t i = 0; i < count; i++)
		out[i] = value(first + i);
}

void check_values(const uint16_t *values, size_t first, size_t count)
{
	if (!count)
		return;
	for (size_t i = 0; i < count; i += 4999)
		must_be(values[i] == value(first + i), "a loaded value is wrong");
	must_be(values[count - 1] == value(first + count - 1), "the last value loaded is wrong");
}

void check_shard(zero_param *param)
{
	size_t first, count;
	void *data;

	must(zero_shard(param, &data, &first, &count));
	check_values(data, first, count);
}
