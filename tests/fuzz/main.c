/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a target over files: what fuzzing has found, and where it begins, without libFuzzer. */
#include "fuzz.h"

static void run_file(const char *path)
{
	FILE *in = fopen(path, "rb");
	uint8_t *data;
	size_t size;
	long end;

	must(in && !fseek(in, 0, SEEK_END) && (end = ftell(in)) >= 0 && !fseek(in, 0, SEEK_SET),
	     "%s cannot be read", path);
	data = malloc(end ? (size_t)end : 1);
	must(data, "no memory for %s", path);
	size = fread(data, 1, (size_t)end, in);
	must(size == (size_t)end, "%s cannot be read", path);
	fclose(in);
	printf("%s\n", path);
	fflush(stdout);
	LLVMFuzzerTestOneInput(data, size);
	free(data);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		run_file(argv[i]);
	return argc > 1 ? EXIT_SUCCESS : EXIT_FAILURE;
}
