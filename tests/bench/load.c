/* SPDX-License-Identifier: Apache-2.0 */
/* Load of a sharded checkpoint: each byte of it read once, by the rank that owns it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

enum { FILES = 4, TENSORS_A_FILE = 8, TENSORS = FILES * TENSORS_A_FILE, PIECE = 32 << 20 };

struct checkpoint {
	struct bench *bench;
	char folder[4000];
	size_t count; /* elements of a tensor */
	double bytes; /* of all files */
	zero_param *params[TENSORS];
	zero_job *job;
	char *piece; /* of the sequential reader, warm */
};

static void path_of(const struct checkpoint *c, int file, char *path, size_t size)
{
	snprintf(path, size, "%s/model-%05d-of-%05d.safetensors", c->folder, file + 1, FILES);
}

static void name_of(int tensor, char *name, size_t size)
{
	snprintf(name, size, "h.%d.weight", tensor);
}

/* The header as the format has it: its length in eight bytes, then JSON, padded by spaces. */
static void write_header(FILE *out, const struct checkpoint *c, int file)
{
	char text[8192], name[32];
	size_t used = 0, bytes = c->count * 2;
	uint64_t length;

	for (int i = 0; i < TENSORS_A_FILE; i++) {
		name_of(file * TENSORS_A_FILE + i, name, sizeof(name));
		used += (size_t)snprintf(text + used, sizeof(text) - used,
					 "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%zu],"
					 "\"data_offsets\":[%zu,%zu]}",
					 i ? "," : "{", name, c->count, (size_t)i * bytes,
					 (size_t)(i + 1) * bytes);
	}
	used += (size_t)snprintf(text + used, sizeof(text) - used, "}");
	while (used % 8)
		text[used++] = ' ';
	length = used;
	fwrite(&length, sizeof(length), 1, out);
	fwrite(text, 1, used, out);
}

static void write_file(const struct checkpoint *c, int file, const uint16_t *values)
{
	char path[4096];
	FILE *out;

	path_of(c, file, path, sizeof(path));
	out = fopen(path, "wxe");
	must_be(out, "the checkpoint to load cannot be made");
	write_header(out, c, file);
	for (int i = 0; i < TENSORS_A_FILE; i++)
		fwrite(values, 2, c->count, out);
	fflush(out);
	/* The disk is not to be busy with it later. */
	fdatasync(fileno(out));
	must_be(!ferror(out) && !fclose(out),
		"the checkpoint to load cannot be written: is TMPDIR full?");
}

static void write_index(const struct checkpoint *c)
{
	char path[4096], name[32];
	FILE *out;

	snprintf(path, sizeof(path), "%s/model.safetensors.index.json", c->folder);
	out = fopen(path, "wxe");
	must_be(out, "the checkpoint's index cannot be made");
	fprintf(out, "{\"metadata\": {}, \"weight_map\": {");
	for (int i = 0; i < TENSORS; i++) {
		name_of(i, name, sizeof(name));
		fprintf(out, "%s\"%s\": \"model-%05d-of-%05d.safetensors\"", i ? ", " : "", name,
			i / TENSORS_A_FILE + 1, FILES);
	}
	fprintf(out, "}}\n");
	must_be(!fclose(out), "the checkpoint's index cannot be written");
}

static void write_checkpoint(const struct checkpoint *c)
{
	uint16_t *values = pages_new(c->count * 2, false);

	fill(values, 0, c->count);
	must_be(!mkdir(c->folder, 0700), "the checkpoint's folder cannot be made");
	for (int file = 0; file < FILES; file++)
		write_file(c, file, values);
	write_index(c);
	pages_free(values, c->count * 2);
}

static void remove_checkpoint(const struct checkpoint *c)
{
	char path[4096];

	for (int file = 0; file < FILES; file++) {
		path_of(c, file, path, sizeof(path));
		unlink(path);
	}
	snprintf(path, sizeof(path), "%s/model.safetensors.index.json", c->folder);
	unlink(path);
	rmdir(c->folder);
}

/* ---- sides ----------------------------------------------------------------------------------- */

static double timed_load(void *context)
{
	struct checkpoint *c = context;
	double start = clock_start(c->bench), seconds;

	must(zero_load_model(c->job, c->folder, NULL, NULL));
	seconds = clock_stop(c->bench, start);
	for (int i = 0; i < TENSORS; i++)
		check_shard(c->params[i]);
	return seconds;
}

/* Rank 0 reads all files from end to end. */
static double timed_reader(void *context)
{
	struct checkpoint *c = context;
	double start = clock_start(c->bench);
	char path[4096];

	for (int i = 0; i < FILES && !c->bench->rank; i++) {
		int fd;

		path_of(c, i, path, sizeof(path));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		must_be(fd >= 0, "the checkpoint cannot be opened");
		while (read(fd, c->piece, PIECE) > 0)
			;
		close(fd);
	}
	return clock_stop(c->bench, start);
}

static const struct side sides[] = {
	{"slurm-zero", timed_load},
	{"floor: one sequential reader, warm memory", timed_reader},
};

/* ---- the subject ----------------------------------------------------------------------------- */

/* Bytes that this process has had from read and its like. */
static double bytes_read(void)
{
	FILE *file = fopen("/proc/self/io", "re");
	char line[128];
	double bytes = 0;

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, "rchar: ", 7))
			bytes = atof(line + 7);
	if (file)
		fclose(file);
	return bytes;
}

static void count_reads(struct checkpoint *c)
{
	double read = bytes_read();

	timed_load(c);
	read = bytes_read() - read;
	MPI_Allreduce(MPI_IN_PLACE, &read, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	struct row row = {"load of a checkpoint: bytes read in all",
			  read / c->bytes,
			  "x",
			  read / 1e6,
			  c->bytes / 1e6,
			  "MB",
			  "the files"};
	write_row(c->bench, &row);
}

static void one_size(struct bench *bench, size_t count, bool full)
{
	struct checkpoint c = {
		.bench = bench, .count = count, .bytes = (double)count * 2 * TENSORS};
	double seconds[2];
	char name[32];

	snprintf(c.folder, sizeof(c.folder), "%s/checkpoint", bench->folder);
	if (!bench->rank)
		write_checkpoint(&c);
	clock_start(bench);
	c.job = open_job(bench);
	for (int i = 0; i < TENSORS; i++) {
		name_of(i, name, sizeof(name));
		c.params[i] = add_layer(c.job, name, ZERO_BF16, count, false).param;
	}
	must(zero_layout(c.job));
	c.piece = pages_new(PIECE, true);
	if (full)
		count_reads(&c);
	measure_sides(sides, 2, &c, SWEEP_REPEATS, seconds);
	write_sides(bench, "load-size", c.bytes, sides, 2, seconds);
	if (full)
		write_ratio(bench, "load of a checkpoint: time", seconds[0], seconds[1],
			    "one sequential reader");
	pages_free(c.piece, PIECE);
	must(zero_close(c.job));
	if (!bench->rank)
		remove_checkpoint(&c);
}

/* 32 tensors of 128 MB in 4 files. */
void bench_load(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)64 << 20);

	must(zero_close(open_job(bench)));
	for (int i = 0; i < SWEEP_POINTS; i++)
		one_size(bench, sweep_count(full, i), i == SWEEP_POINTS - 1);
}
