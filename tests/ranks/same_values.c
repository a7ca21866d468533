/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random initial values have the same bits at every world size, stage and chunk. Rank 0 prints a
 * hash of them, and run.sh compares the hashes of all world sizes.
 */
#include "ranks.h"

enum { COUNT = 50001 };

static uint64_t hash(const unsigned char *bytes, size_t count)
{
	uint64_t h = 0;

	for (size_t i = 0; i < count; i++)
		h = mixed(h ^ bytes[i]);
	return h;
}

static void run(const char *settings, bool print)
{
	zero_job *job = open_job("%s", settings);
	zero_group *group = new_group(job, "g");
	zero_param *params[ZERO_F64 + 1][2];
	static uint64_t first[ZERO_F64 + 1][2];

	for (int dtype = ZERO_F32; dtype <= ZERO_F64; dtype++)
		for (int normal = 0; normal < 2; normal++) {
			char name[32];

			snprintf(name, sizeof(name), "%s.%d", zero_dtype_name((zero_dtype)dtype),
				 normal);
			params[dtype][normal] =
				new_param(group, name, (zero_dtype)dtype, COUNT, false);
		}
	ok(zero_layout(job));
	for (int dtype = ZERO_F32; dtype <= ZERO_F64; dtype++)
		for (int normal = 0; normal < 2; normal++) {
			zero_source source = normal ? zero_from_normal(0, 0.02, 1234)
						    : zero_from_uniform(-3, 5, 1234);

			ok(zero_load(params[dtype][normal], &source));
		}
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	for (int dtype = ZERO_F32; dtype <= ZERO_F64; dtype++)
		for (int normal = 0; normal < 2; normal++) {
			uint64_t h = hash(zero_data(params[dtype][normal]),
					  COUNT * zero_dtype_size((zero_dtype)dtype));

			if (print && zero_rank(job) == 0)
				printf("same %s: %016llx\n", zero_param_name(params[dtype][normal]),
				       (unsigned long long)h);
			if (print)
				first[dtype][normal] = h;
			check(h == first[dtype][normal], "%s: %s", settings,
			      zero_param_name(params[dtype][normal]));
		}
	/* Parameters of different names must not have the same random values. */
	check(first[ZERO_F32][0] != first[ZERO_F32][1], "equal values");
	ok(zero_close(job));
}

int main(void)
{
	run("stage=3 stream_chunk=1000 stream_threshold=1", true);
	run("stage=3 allgather=single stream_chunk=999", false);
	run("stage=0", false);
	run("stage=2 isa=scalar", false);
	return 0;
}
