/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what the program asks of the driver, for tests of how often it does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { COUNTS = 128 };

static struct {
	const char *name;
	unsigned long long value;
} counts[COUNTS];

static size_t find(const char *name)
{
	size_t i = 0;

	while (i < COUNTS && counts[i].name && strcmp(counts[i].name, name))
		i++;
	return i;
}

void double_count(const char *name)
{
	size_t i = find(name);

	if (double_is_quiet())
		return;
	if (i == COUNTS)
		double_die("more than %d functions are called", COUNTS);
	counts[i].name = name;
	counts[i].value++;
}

unsigned long long double_cuda_count(const char *name)
{
	unsigned long long value;
	size_t i;

	double_lock();
	i = find(name);
	value = i < COUNTS && counts[i].name ? counts[i].value : 0;
	double_unlock();
	return value;
}

void double_counts_write(void)
{
	const char *folder = getenv("DOUBLE_COUNTS"), *rank = getenv("PMIX_RANK");
	char path[4096];
	FILE *file;

	if (!folder || !*folder || !counts[0].name)
		return;
	snprintf(path, sizeof(path), "%s/cuda.%s", folder, rank ? rank : "0");
	file = fopen(path, "w");
	if (!file)
		double_die("DOUBLE_COUNTS: %s cannot be written", path);
	for (size_t i = 0; i < COUNTS && counts[i].name; i++)
		fprintf(file, "%s %llu\n", counts[i].name, counts[i].value);
	fclose(file);
}
