/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of more than 2^31 and 2^32 elements, and shards beyond what MPI counts in an int. */
#include "ranks.h"

static unsigned char value(size_t i)
{
	return (unsigned char)(mixed(i / 4096) + i);
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	(void)context;
	for (size_t i = 0; i < count; i++)
		((unsigned char *)elements)[i] = value(first + i);
	return ZERO_OK;
}

static void run(size_t count, int root, bool whole)
{
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_U8, count, false);
	unsigned char *values = NULL, *data;
	zero_source source = zero_from_callback(fill, NULL);
	zero_traffic traffic;
	size_t first, stored;
	void *shard;

	if (root >= 0) {
		if (zero_rank(job) == root) {
			values = malloc(count);
			check(values, "no memory for %zu bytes", count);
			fill(NULL, values, 0, count);
		}
		source = zero_from_rank(root, values);
	}
	ok(zero_layout(job));
	ok(zero_load(param, &source));
	free(values);
	ok(zero_shard(param, &shard, &first, &stored));
	data = shard;
	for (size_t i = 0; i < stored; i++)
		check(data[i] == value(first + i), "shard: element %zu", first + i);
	ok(zero_traffic_now(job, &traffic));
	check(traffic.bytes_sent == (zero_rank(job) == root ? count - stored : 0), "%llu",
	      (unsigned long long)traffic.bytes_sent);
	if (whole) {
		ok(zero_gather(group, ZERO_DTYPE_PARAM));
		data = zero_data(param);
		for (size_t i = 0; i < count; i++)
			check(data[i] == value(i), "gathered: element %zu", i);
	}
	ok(zero_close(job));
}

int main(void)
{
	run(((size_t)1 << 31) + 77, -1, true);
	run(4300000000, 1, false);
	return 0;
}
