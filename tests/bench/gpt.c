/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of training runs, from the logs that examples/gpt writes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

int write_tokens(const char *path, size_t count, unsigned vocabulary)
{
	FILE *file = fopen(path, "wxe");
	uint32_t random = 1;

	must_be(file, "the file of tokens cannot be made");
	for (size_t i = 0; i < count; i++) {
		uint16_t token;

		random = random * 1664525 + 1013904223;
		token = (uint16_t)((uint64_t)random * vocabulary >> 32);
		fwrite(&token, sizeof(token), 1, file);
	}
	return fclose(file) ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* The number behind "key" in a line of JSON; NaN if there is none. */
static double number_of(const char *line, const char *key)
{
	const char *at = strstr(line, key);

	return at ? atof(at + strlen(key) + strspn(at + strlen(key), "\": ")) : NAN;
}

/* Median of the steps' milliseconds, and of the share of matrix products in them. */
struct steps {
	double ms, share;
};

static struct steps steps_of(const char *log)
{
	FILE *file = fopen(log, "re");
	double ms[64], share[64];
	char line[4096];
	int steps = 0;

	must_be(file, "the run of gpt left no log");
	for (; steps < 64 && fgets(line, sizeof(line), file); steps++) {
		ms[steps] = number_of(line, "\"ms\"");
		share[steps] = number_of(line, "\"matmul_share\"");
	}
	fclose(file);
	must_be(steps > 0, "the log of gpt has no steps");
	return (struct steps){median(ms, steps), median(share, steps)};
}

void bench_gpt_logs(struct bench *bench, const char *log, const char *unsharded)
{
	struct steps sharded = steps_of(log), whole = steps_of(unsharded);
	struct row step = {"gpt, 6 layers of 384, 50304 tokens, 4 x 256: a step",
			   sharded.ms,
			   "ms",
			   sharded.ms,
			   sharded.ms * sharded.share,
			   "ms",
			   "in matrix products"};
	struct row over = {"gpt: step at stage 3 over stage 0",
			   sharded.ms / whole.ms,
			   "x",
			   sharded.ms,
			   whole.ms,
			   "ms",
			   "stage 0"};

	write_row(bench, &step);
	write_row(bench, &over);
}
