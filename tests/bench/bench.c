/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make bench: the cost of the library's operations and of the bare ones, measured in one run.
 *
 *	bench SUBJECT RECORD FOLDER             measures, and adds to the file RECORD
 *	bench gpt-logs RECORD LOG LOG0 WORLD    adds rows of training runs' logs, LOG0 of stage 0
 *	bench tokens FILE COUNT VOCAB           writes random tokens to train on
 *	bench table RECORD JSON MISSES NOTE     prints the table, and writes the record as JSON
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define ROW(name) {#name, bench_##name},

static const struct {
	const char *name;
	void (*run)(struct bench *bench);
} subjects[] = {BENCH_SUBJECTS(ROW)};

static struct bench bench_new(const char *subject, const char *record)
{
	struct bench bench = {
		.world = 1, .scale = 1, .subject = subject, .path = record, .record = NULL};

	/* Every rank may write, but rank 0 alone does. */
	bench.record = fopen(record, "ae");
	must_be(bench.record, "the record cannot be opened");
	return bench;
}

static int measure(const char *name, void (*run)(struct bench *bench), char **argv)
{
	const char *scale = getenv("BENCH_SCALE");
	struct bench bench = bench_new(name, argv[2]);

	bench.scale = scale ? atof(scale) : 1;
	bench.folder = argv[3];
	must_be(bench.scale > 0 && bench.scale <= 1, "BENCH_SCALE is more than 0 and at most 1");
	run(&bench);
	fclose(bench.record);
	return EXIT_SUCCESS;
}

static int add_gpt(char **argv)
{
	struct bench bench = bench_new("gpt", argv[2]);

	bench.world = atoi(argv[5]);
	bench_gpt_logs(&bench, argv[3], argv[4]);
	fclose(bench.record);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (argc == 6 && !strcmp(name, "table"))
		return print_table(argv[2], argv[3], argv[4], argv[5]);
	if (argc == 5 && !strcmp(name, "tokens"))
		return write_tokens(argv[2], (size_t)atol(argv[3]), (unsigned)atoi(argv[4]));
	if (argc == 6 && !strcmp(name, "gpt-logs"))
		return add_gpt(argv);
	for (size_t i = 0; argc == 4 && i < sizeof(subjects) / sizeof(*subjects); i++)
		if (!strcmp(name, subjects[i].name))
			return measure(name, subjects[i].run, argv);
	fprintf(stderr, "bench: see the comment at the top of bench.c for the arguments\n");
	return EXIT_FAILURE;
}
