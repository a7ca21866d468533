/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: a save beside `dd` of as many bytes by as many processes, a save in the background
 * beside a copy of what a rank owns, and restoring at the same and at another number of ranks. The
 * folder is one in memory, if there is room, so that no disk is measured.
 */
#include <ftw.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

extern char **environ;

enum { LAYERS = 16, TURNS = 5 };

struct saving {
	struct bench *bench;
	zero_job *job;
	char folder[4000], dd[4096];
	size_t bytes; /* of what a rank owns: values and moments */
	char *copy;   /* as much memory, and what is copied there */
	char *from;
};

static const zero_adamw adamw = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at)
{
	(void)info;
	(void)type;
	(void)at;
	return remove(path);
}

static void remove_folder(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A model of which values and moments are 4 GB. */
static void open_model(struct saving *s, struct bench *bench)
{
	size_t count = scaled(bench, (size_t)20 << 20);
	zero_source source = zero_from_uniform(-1, 1, 1);
	struct layer layer[LAYERS];
	char name[32];

	*s = (struct saving){.bench = bench};
	snprintf(s->folder, sizeof(s->folder), "%s/saved", bench->folder);
	s->job = open_job(bench);
	snprintf(s->dd, sizeof(s->dd), "of=%s/dd.%d", bench->folder, bench->rank);
	for (int i = 0; i < LAYERS; i++) {
		snprintf(name, sizeof(name), "h.%d.weight", i);
		layer[i] = add_layer(s->job, name, ZERO_F32, count, true);
	}
	must(zero_layout(s->job));
	for (int i = 0; i < LAYERS; i++)
		must(zero_load(layer[i].param, &source));
	must(zero_step(s->job, &adamw, NULL));
	s->bytes = LAYERS * count * 3 * sizeof(float) / (size_t)bench->world;
}

/* ---- a save in the foreground ---------------------------------------------------------------- */

static double timed_save(void *context)
{
	struct saving *s = context;
	double start;

	if (!s->bench->rank)
		remove_folder(s->folder);
	start = clock_start(s->bench);
	must(zero_save(s->job, s->folder, NULL));
	return clock_stop(s->bench, start);
}

/* The same bytes by a process beside each rank. */
static double timed_dd(void *context)
{
	struct saving *s = context;
	char count[32];
	char *argv[] = {"dd", "if=/dev/zero", s->dd, "bs=1M", count, "status=none", NULL};
	double start;
	int status;
	pid_t pid;

	unlink(s->dd + 3);
	snprintf(count, sizeof(count), "count=%zu", (s->bytes + (1 << 20) - 1) >> 20);
	start = clock_start(s->bench);
	must_be(!posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ), "there is no dd");
	must_be(waitpid(pid, &status, 0) == pid && !status, "dd failed: is TMPDIR full?");
	start = clock_stop(s->bench, start);
	unlink(s->dd + 3);
	return start;
}

static const struct side sides[] = {{"slurm-zero", timed_save}, {"dd", timed_dd}};

static void foreground(struct saving *s)
{
	zero_memory memory;
	double seconds[2], begin;

	begin = peak_begin();
	timed_save(s);
	write_beyond(s->bench, "save: beyond what is saved, VmHWM", peak_beyond(begin, 0), 0,
		     "nothing");
	must(zero_memory_now(s->job, &memory));
	write_beyond(s->bench, "save: beyond what is saved, accounted",
		     (double)(memory.staging.peak + memory.checkpoint.peak), 0, "nothing");
	measure_sides(sides, 2, s, TURNS, seconds);
	struct row row = {"save: bandwidth over dd to the same folder",
			  seconds[1] / seconds[0],
			  "x",
			  (double)s->bytes * s->bench->world / 1e9 / seconds[0],
			  (double)s->bytes * s->bench->world / 1e9 / seconds[1],
			  "GB/s",
			  "dd"};
	write_row(s->bench, &row);
}

/* ---- a save in the background ---------------------------------------------------------------- */

static double timed_step(void *context)
{
	struct saving *s = context;
	double start = clock_start(s->bench);

	must(zero_step(s->job, &adamw, NULL));
	return clock_stop(s->bench, start);
}

/* Until it is written it may make steps slower; until the first one is done, it makes them wait. */
static double timed_background(void *context)
{
	struct saving *s = context;
	zero_save_options options = {.background = true, .keep_last = 1};
	double start, seconds;

	start = clock_start(s->bench);
	must(zero_save(s->job, s->folder, &options));
	must(zero_step(s->job, &adamw, NULL));
	seconds = clock_stop(s->bench, start);
	must(zero_save_wait(s->job));
	return seconds;
}

/* To pages that were not there, as the copies of a save are. */
static double timed_copy(void *context)
{
	struct saving *s = context;
	double start = clock_start(s->bench), seconds;

	s->copy = pages_new(s->bytes, false);
	memcpy(s->copy, s->from, s->bytes);
	seconds = clock_stop(s->bench, start);
	pages_free(s->copy, s->bytes);
	return seconds;
}

static const struct side background_sides[] = {
	{"step", timed_step}, {"save and step", timed_background}, {"copy", timed_copy}};

static void background(struct saving *s)
{
	zero_memory memory;
	double seconds[3];

	s->from = pages_new(s->bytes, true);
	measure_sides(background_sides, 3, s, TURNS, seconds);
	write_ratio(s->bench, "save in the background: pause over a copy of what a rank owns",
		    seconds[1] - seconds[0], seconds[2], "the copy");
	must(zero_memory_now(s->job, &memory));
	struct row row = {"save in the background: copies over what a rank owns",
			  (double)memory.checkpoint.peak / (double)s->bytes,
			  "x",
			  (double)memory.checkpoint.peak / 1e6,
			  (double)s->bytes / 1e6,
			  "MB",
			  "what it owns"};
	write_row(s->bench, &row);
	pages_free(s->from, s->bytes);
}

void bench_save(struct bench *bench)
{
	struct saving s;

	open_model(&s, bench);
	foreground(&s);
	background(&s);
	/* What the subject "restore" reads. */
	timed_save(&s);
	must(zero_close(s.job));
}

/* ---- restoring what the last run of "save" left ---------------------------------------------- */

static double timed_restore(void *context)
{
	struct saving *s = context;
	double start = clock_start(s->bench);

	must(zero_restore(s->job, s->folder, NULL));
	return clock_stop(s->bench, start);
}

static const struct side restore_side[] = {{"slurm-zero", timed_restore}};

void bench_restore(struct bench *bench)
{
	zero_checkpoint_info checkpoint = {0};
	zero_traffic before, after;
	double seconds, read, state;
	struct saving s;

	open_model(&s, bench);
	state = (double)s.bytes * bench->world;
	must(zero_traffic_now(s.job, &before));
	must(zero_restore(s.job, s.folder, &checkpoint));
	must(zero_traffic_now(s.job, &after));
	must_be(checkpoint.path, "there is no checkpoint to restore: measure \"save\" first");
	read = total(bench, (double)(after.bytes_read - before.bytes_read));
	struct row row = {"restore: bytes read in all",
			  read / state,
			  "x",
			  read / 1e6,
			  state / 1e6,
			  "MB",
			  "state"};
	write_row(bench, &row);
	measure_sides(restore_side, 1, &s, TURNS, &seconds);
	if (checkpoint.world == bench->world) {
		struct row speed = {"restore at the same number of ranks",
				    state / 1e9 / seconds,
				    "GB/s",
				    seconds,
				    state / 1e9,
				    "s, GB",
				    NULL};

		write_row(bench, &speed);
	} else {
		write_ratio(bench, "restore at another number of ranks: time over the same number",
			    seconds,
			    earlier(bench, "restore at the same number of ranks", checkpoint.world),
			    "the same number");
	}
	zero_checkpoint_info_free(&checkpoint);
	must(zero_close(s.job));
}
