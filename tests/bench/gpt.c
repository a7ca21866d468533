/* SPDX-License-Identifier: Apache-2.0 */
/* A training run's step, from the log that examples/gpt writes. */
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

void bench_gpt_log(struct bench *bench, const char *log)
{
	FILE *file = fopen(log, "re");
	double ms[64], share[64];
	char line[4096];
	int steps = -1;

	must_be(file, "the run of gpt left no log");
	/* The first step meets fresh pages everywhere. */
	while (steps < 64 && fgets(line, sizeof(line), file)) {
		if (isnan(number_of(line, "\"ms\"")))
			continue;
		if (steps >= 0) {
			ms[steps] = number_of(line, "\"ms\"");
			share[steps] = number_of(line, "\"matmul_share\"");
		}
		steps++;
	}
	fclose(file);
	must_be(steps > 0, "the log of gpt has no steps");
	struct row row = {.what = "gpt, 6 layers of 384, 50304 tokens, 4 x 256: a step",
			  .figure = median(ms, steps),
			  .unit = "ms",
			  .ours = median(ms, steps),
			  .bare = median(ms, steps) * median(share, steps),
			  .in = "ms",
			  .bare_name = "in matrix products"};
	write_row(bench, &row);
	row.what = "gpt: share of matrix products";
	row.figure = 100 * median(share, steps);
	row.unit = "%";
	write_row(bench, &row);
}
