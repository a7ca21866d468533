/* SPDX-License-Identifier: Apache-2.0 */
/* One figure as a line of JSON, on standard output, for tests/gpu/table.awk. */
#ifndef TESTS_GPU_RECORD_H
#define TESTS_GPU_RECORD_H

#include <stdio.h>

/* `figure` is ours over bare or the other way round, as the row's goal wants it. */
static inline void record(const char *row, int ranks, double figure, double ours, double bare,
			  const char *unit)
{
	printf("{\"row\": \"%s\", \"ranks\": %d, \"figure\": %.4g, \"ours\": %.6g, \"bare\": %.6g, "
	       "\"unit\": \"%s\"}\n",
	       row, ranks, figure, ours, bare, unit);
	fflush(stdout);
}

/* Prints why there is no figure. */
static inline void record_missing(const char *row, int ranks, const char *why)
{
	printf("{\"row\": \"%s\", \"ranks\": %d, \"missing\": \"%s\"}\n", row, ranks, why);
	fflush(stdout);
}

#endif
