/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_resume.h - how gpt.c stops and resumes. A checkpoint has the model and the optimizer states.
 * The program adds a few lines of text: the progress of the training, and the settings that must
 * not change if the losses are to be those of a training that was never stopped.
 */
#ifndef GPT_RESUME_H
#define GPT_RESUME_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero.h"
#include "gpt_input.h"

struct progress {
	size_t step;         /* the next step */
	size_t sequences;    /* of the text that all ranks have read */
	bool resumed;        /* from a checkpoint */
	bool stopped;        /* by a signal */
	char settings[1024]; /* everything that the losses depend on */
};

/* The batch is that of all ranks, so that a step is the same text at every number of ranks. */
static void describe_settings(struct progress *p, zero_job *job, const struct flags *f, size_t seq,
			      size_t tokens)
{
	snprintf(p->settings, sizeof(p->settings),
		 "sequences of a step: %zu\ntokens of a sequence: %zu\ntokens of the text: %zu\n"
		 "--seed: %zu\n--lr: %.17g\n--warmup: %zu\n--beta1: %.17g\n--beta2: %.17g\n"
		 "--eps: %.17g\n--weight-decay: %.17g\n--clip: %.17g\n",
		 (size_t)zero_world(job) * f->batch, seq, tokens, f->seed, f->lr, f->warmup,
		 f->beta1, f->beta2, f->eps, f->weight_decay, f->clip);
}

/* Reports the first line in which the settings differ. */
static void compare_settings(const char *path, const char *saved, const char *now, char *error)
{
	while (*saved && *now) {
		int old_length = (int)strcspn(saved, "\n"), length = (int)strcspn(now, "\n");

		if (old_length != length || strncmp(saved, now, (size_t)length) != 0) {
			complain(error,
				 "%s was saved with \"%.*s\", but now it is \"%.*s\", which "
				 "would change the losses: use the saved value, or another "
				 "--checkpoint folder",
				 path, old_length, saved, length, now);
			return;
		}
		saved += old_length + (saved[old_length] != 0);
		now += length + (now[length] != 0);
	}
	if (*saved || *now)
		complain(error, "%s is of another version of this program", path);
}

static void read_progress(struct progress *p, const zero_checkpoint_info *c, char *error)
{
	char text[2048] = "";
	int begin = 0;

	if (c->user_bytes < sizeof(text))
		memcpy(text, c->user, c->user_bytes);
	if (sscanf(text, "step %zu\nsequences %zu\n%n", &p->step, &p->sequences, &begin) != 2 ||
	    !begin)
		complain(error, "%s was not saved by this program", c->path);
	else
		compare_settings(c->path, text + begin, p->settings, error);
	p->resumed = true;
}

/* Only if the user says so: --zero-protect=N. */
static bool protects(const zero_job *job)
{
	return strcmp(zero_setting(job, "protect"), "program") != 0;
}

/* COLLECTIVE. Resumes from the last checkpoint in --checkpoint, if there is one, or from what is in
   the memory of the nodes. */
static zero_status resume(zero_job *job, const struct flags *f, struct progress *p, char *error)
{
	zero_checkpoint_info checkpoint = {0};
	zero_status status = protects(job) && !f->eval
				     ? zero_protect_restore(job, f->checkpoint, &checkpoint)
				     : zero_restore(job, f->checkpoint, &checkpoint);

	if (status == ZERO_OK && checkpoint.path && f->eval)
		p->resumed = true; /* the model alone */
	else if (status == ZERO_OK && checkpoint.path)
		read_progress(p, &checkpoint, error);
	if (p->resumed && zero_rank(job) == 0 && !error[0])
		printf("going on from %s\n", checkpoint.path);
	zero_checkpoint_info_free(&checkpoint);
	return status;
}

/* Blocks SIGUSR1 until there is a job that can catch it. */
static void hold_signal(int how)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	sigprocmask(how, &signals, NULL);
}

/* Slurm sends SIGUSR1 before a time limit and SIGTERM at a preemption: zero_step then sets `stop`
   on all ranks. */
static zero_status catch_signals(zero_job *job)
{
	zero_status status = zero_stop_on(job, SIGUSR1);

	if (status == ZERO_OK)
		status = zero_stop_on(job, SIGTERM);
	hold_signal(SIG_UNBLOCK);
	return status;
}

static size_t format_progress(const struct progress *p, char *text, size_t size)
{
	return (size_t)snprintf(text, size, "step %zu\nsequences %zu\n%s", p->step, p->sequences,
				p->settings);
}

/* COLLECTIVE. */
static zero_status save(zero_job *job, const struct flags *f, struct progress *p, bool background)
{
	char text[2048];
	zero_save_options options = {
		.user = text, .keep_last = (int)f->keep, .background = background};

	options.user_bytes = format_progress(p, text, sizeof(text));
	return zero_save(job, f->checkpoint, &options);
}

/* COLLECTIVE. */
static zero_status protect(zero_job *job, const struct progress *p)
{
	char text[2048];
	zero_protect_options options = {.user = text};

	options.user_bytes = format_progress(p, text, sizeof(text));
	return zero_protect(job, &options);
}

/* COLLECTIVE. Called after each step: saves in the background every --save-every steps, and in the
   foreground after the last step. */
static zero_status save_at_times(zero_job *job, const struct flags *f, struct progress *p)
{
	bool last = p->stopped || p->step >= f->steps;
	zero_status status;

	if (protects(job) && !last && !f->eval) {
		status = protect(job, p);
		if (status)
			return status;
	}
	if (!f->checkpoint || f->eval)
		return ZERO_OK;
	if (!last)
		return f->save_every && p->step % f->save_every == 0 ? save(job, f, p, true)
								     : ZERO_OK;
	status = save(job, f, p, false);
	if (status == ZERO_OK && p->stopped && zero_rank(job) == 0) {
		printf("stopped by a signal after step %zu/%zu; saved in %s: the same command "
		       "resumes from there\n",
		       p->step, f->steps, f->checkpoint);
		fflush(stdout);
	}
	return status;
}
#endif
