/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make bench: what the library's operations cost beside the bare ones, both measured in one run.
 *
 *	bench SUBJECT ROWS FOLDER        measures, and adds rows to the file ROWS
 *	bench gpt-log ROWS LOG WORLD     adds rows of a training run's log
 *	bench tokens FILE COUNT VOCAB    writes random tokens to train on
 *	bench table ROWS JSON NOTE       prints the table, and writes it as JSON
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const struct {
	const char *name;
	void (*run)(struct bench *bench);
} subjects[] = {
	{"partition", bench_partition}, {"gather", bench_gather}, {"reduce", bench_reduce},
	{"adamw", bench_adamw},         {"step", bench_step},     {"small", bench_small},
};

static void measure(void (*run)(struct bench *bench), char **argv)
{
	const char *scale = getenv("BENCH_SCALE");
	struct bench bench = {.world = 1, .scale = scale ? atof(scale) : 1, .folder = argv[3]};

	must_be(bench.scale > 0 && bench.scale <= 1, "BENCH_SCALE is more than 0 and at most 1");
	/* Every rank may write, but rank 0 alone does. */
	bench.rows = fopen(argv[2], "ae");
	must_be(bench.rows, "the file for the rows cannot be opened");
	run(&bench);
	fclose(bench.rows);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (argc == 5 && !strcmp(name, "table"))
		return print_table(argv[2], argv[3], argv[4]);
	if (argc == 5 && !strcmp(name, "tokens"))
		return write_tokens(argv[2], (size_t)atol(argv[3]), (unsigned)atoi(argv[4]));
	if (argc == 5 && !strcmp(name, "gpt-log")) {
		struct bench bench = {.world = atoi(argv[4]), .rows = fopen(argv[2], "ae")};

		must_be(bench.rows, "the file for the rows cannot be opened");
		bench_gpt_log(&bench, argv[3]);
		fclose(bench.rows);
		return EXIT_SUCCESS;
	}
	for (size_t i = 0; argc == 4 && i < sizeof(subjects) / sizeof(*subjects); i++)
		if (!strcmp(name, subjects[i].name)) {
			measure(subjects[i].run, argv);
			return EXIT_SUCCESS;
		}
	fprintf(stderr, "bench: see the begin of bench.c for its arguments\n");
	return EXIT_FAILURE;
}
