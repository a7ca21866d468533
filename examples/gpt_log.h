/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_log.h - prints each step of gpt.c, and with --log appends it to a file as JSON. */
#ifndef GPT_LOG_H
#define GPT_LOG_H

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "zero.h"
#include "gpt_input.h"

/* The figures of a step. */
struct step {
	size_t number;
	double loss, grad_norm, lr, seconds, tokens_per_s, matmul_share;
};

/*
 * Whether a line can be overwritten. Open MPI gives its ranks terminals of their own even if mpirun
 * writes to a file, so the output of the parent process must be a terminal too.
 */
static bool on_terminal(void)
{
	char path[64];
	bool parents;
	int fd;

	snprintf(path, sizeof(path), "/proc/%ld/fd/1", (long)getppid());
	fd = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	parents = isatty(fd);
	if (fd >= 0)
		close(fd);
	return parents && isatty(STDOUT_FILENO);
}

static void print_step(const struct step *s, size_t steps, bool eval)
{
	bool terminal = on_terminal(), last = s->number + 1 == steps;
	size_t every = steps > 1000 ? 100 : 10;

	/* A terminal shows the current step on one line. A file gets the first 20 steps, then every
	   10th or 100th. */
	if (!terminal && s->number >= 20 && (s->number + 1) % every && !last)
		return;
	printf("%sstep %zu/%zu  loss %.4f", terminal ? "\r" : "", s->number + 1, steps, s->loss);
	if (!eval)
		printf("  norm %.3f  lr %.2e", s->grad_norm, s->lr);
	printf("  %.0f ms  %.0f tokens/s%s", 1e3 * s->seconds, s->tokens_per_s,
	       terminal ? "\033[K" : "");
	if (!terminal || last)
		printf("\n");
	fflush(stdout);
}

/* JSON has no NaN and no infinity: they become null. */
static void log_number(FILE *log, const char *key, double value)
{
	if (isfinite(value))
		fprintf(log, ", \"%s\": %.17g", key, value);
	else
		fprintf(log, ", \"%s\": null", key);
}

static void log_bytes(FILE *log, const char *key, const zero_bytes *bytes, const char *after)
{
	fprintf(log, "\"%s\": {\"now\": %zu, \"peak\": %zu}%s", key, bytes->now, bytes->peak,
		after);
}

/* Appends a JSON line with the figures of a step and the memory of this rank. */
static void log_step(FILE *log, zero_job *job, const struct step *s, bool eval, char *error)
{
	zero_memory memory = {0};
	uint64_t bits;

	memcpy(&bits, &s->loss, sizeof(bits));
	fprintf(log, "{\"step\": %zu, \"loss_bits\": \"%016llx\"", s->number,
		(unsigned long long)bits);
	log_number(log, "loss", s->loss);
	log_number(log, "grad_norm", eval ? NAN : s->grad_norm);
	log_number(log, "lr", eval ? NAN : s->lr);
	log_number(log, "ms", 1e3 * s->seconds);
	log_number(log, "tokens_per_s", s->tokens_per_s);
	log_number(log, "matmul_share", s->matmul_share);
	if (zero_memory_now(job, &memory))
		complain(error, "%s", zero_last_error());
	fprintf(log, ", \"memory\": {");
	log_bytes(log, "shards", &memory.shards, ", ");
	log_bytes(log, "gathered", &memory.gathered, ", ");
	log_bytes(log, "gradients", &memory.gradients, ", ");
	log_bytes(log, "optimizer", &memory.optimizer, ", ");
	log_bytes(log, "staging", &memory.staging, ", ");
	log_bytes(log, "checkpoint", &memory.checkpoint, ", ");
	log_bytes(log, "total", &memory.total, "}}\n");
	if (fflush(log) != 0)
		complain(error, "--log: %s", strerror(errno));
}

/*
 * Opens the log before step `next`. A training that resumes first removes what it will log again:
 * the steps after the checkpoint, and an incomplete line.
 */
static FILE *log_open(const char *path, size_t next, char *error)
{
	FILE *log = fopen(path, next ? "a+" : "w");
	char *line = NULL;
	size_t capacity = 0, step;
	ssize_t length;
	off_t end = 0;

	if (!log) {
		complain(error, "--log %s: %s", path, strerror(errno));
		return NULL;
	}
	rewind(log);
	while (next && (length = getline(&line, &capacity, log)) > 0 && line[length - 1] == '\n' &&
	       sscanf(line, "{\"step\": %zu,", &step) == 1 && step < next)
		end += length;
	free(line);
	/* A pipe or a terminal cannot be truncated. */
	if (next && ftruncate(fileno(log), end) != 0 && errno != EINVAL)
		complain(error, "--log %s: %s", path, strerror(errno));
	fseek(log, 0, SEEK_END);
	return log;
}
#endif
