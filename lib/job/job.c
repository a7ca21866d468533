/* SPDX-License-Identifier: Apache-2.0 */
/* Closes a job, and returns its properties. lib/open.c opens it. */
#include "job.h"
#include "net/net.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_flag one_job = ATOMIC_FLAG_INIT;

bool zero_job_claim(void)
{
	return !atomic_flag_test_and_set(&one_job);
}

void zero_job_unclaim(void)
{
	atomic_flag_clear(&one_job);
}

static struct {
	pthread_mutex_t lock;
	bool any;
	int rank;
	char text[512];
} lost = {.lock = PTHREAD_MUTEX_INITIALIZER};

void zero_job_set_lost(int rank, const char *text)
{
	pthread_mutex_lock(&lost.lock);
	if (!lost.any) {
		lost.any = true;
		lost.rank = rank;
		snprintf(lost.text, sizeof(lost.text), "%s", text);
	}
	pthread_mutex_unlock(&lost.lock);
}

zero_status zero_job_check_lost(void)
{
	zero_status status = ZERO_OK;
	char text[640];

	pthread_mutex_lock(&lost.lock);
	if (lost.any) {
		snprintf(
			text, sizeof(text),
			"an earlier job was ended by rank %d, and a new one needs all ranks: start "
			"the processes of all ranks again (%s)",
			lost.rank, lost.text);
		status = zero_fail_on(lost.rank, ZERO_E_COMM, text);
	}
	pthread_mutex_unlock(&lost.lock);
	return status;
}

static void remember_lost(zero_job *job)
{
	char text[512];
	int rank;

	if (zero_net_lost(job->net, text, sizeof(text), &rank))
		zero_job_set_lost(rank, text);
}

/*
 * Tells the peers that this rank is closing: a peer that is in another operation then gets an error
 * instead of waiting for ever. An earlier error stays the thread's last error, since it matters
 * more. Returns whether all ranks are closing the job.
 */
static bool leave(zero_job *job)
{
	struct zero_saved_error before;
	bool together;

	zero_error_save(&before);
	together = !zero_leave(job);
	if (!together && *before.text)
		zero_error_restore(&before);
	return together;
}

zero_status zero_close(zero_job *job)
{
	/* A forked child has a copy of the memory, but neither the thread nor MPI. */
	if (!job || job->process != getpid())
		return ZERO_OK;
	/* On the host a wait for a lost rank never ends: the job is left to the process's end. */
	if (zero_hooks_check_peers(job)) {
		zero_job_set_lost(zero_last_error_rank(), zero_last_error());
		return ZERO_OK;
	}
	if (job->joined)
		zero_hooks_before_close(job, !job->ops->watch_only && leave(job));
	/* Its handlers were installed over the watchdog's, and are removed first. */
	zero_stop_close(job);
	if (!zero_hooks_close(job))
		return ZERO_OK;
	zero_teams_free(job);
	zero_grid_free(job);
	zero_queue_delete(job->queue);
	zero_workers_delete(job->cpu.workers);
	if (job->backend)
		job->ops->close(job->backend);
	if (job->backend && job->finished && job->ops->finalise)
		job->ops->finalise();
	remember_lost(job);
	zero_net_close(job->net);
	zero_hooks_closed(job);
	for (size_t id = 0; id < ZERO_OPTIONS; id++)
		free(job->setting_text[id]);
	zero_settings_clear(&job->settings);
	pthread_mutex_destroy(&job->lock);
	free(job);
	zero_job_unclaim();
	return ZERO_OK;
}

zero_status zero_job_check_memory(const zero_job *job, const char *call)
{
	return job->ops->watch_only
		       ? zero_fail(ZERO_E_UNSUPPORTED,
				   "%s: backend=none has no memory and moves no tensors; "
				   "backend=auto does",
				   call)
		       : ZERO_OK;
}

/* ---- properties, and small collectives ------------------------------------------------------- */

int zero_rank(const zero_job *job)
{
	return job ? job->place.rank : zero_process_rank();
}

int zero_world(const zero_job *job)
{
	return job ? job->place.world : 1;
}

int zero_local_rank(const zero_job *job)
{
	return job ? job->place.local_rank : 0;
}

int zero_local_world(const zero_job *job)
{
	return job ? job->place.local_world : 1;
}

zero_status zero_agree(zero_job *job, const char *error)
{
	zero_status status = ZERO_OK;

	if (error)
		status = zero_fail(ZERO_E_APPLICATION, "%s", error);
	return zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_PROGRAM, "zero_agree");
}

zero_status zero_allgather_bytes(zero_job *job, const void *mine, size_t bytes, void *all)
{
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = mine, .recv = all, .count = bytes};

	return zero_submit_wait(&job->all, ZERO_OK, &op, 1, ZERO_WORK_PROGRAM,
				"zero_allgather_bytes of %zu bytes", bytes);
}

zero_status zero_mean(zero_job *job, double *values, size_t count, double weight)
{
	size_t world = (size_t)job->place.world, row = count + 1;
	double *mine = calloc(row, sizeof(double)), *all = calloc(world * row, sizeof(double));
	struct zero_op op = {.kind = ZERO_OP_ALLGATHER_BYTES, .count = row * sizeof(double)};
	zero_status status = ZERO_OK;
	double total = 0;

	if (!mine || !all)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the mean of %zu values", count);
	else if (!(weight >= 0 && weight <= DBL_MAX))
		status = zero_fail(ZERO_E_INVALID,
				   "the weight of zero_mean is %g; it must be finite and >= 0",
				   weight);
	if (!status) {
		mine[0] = weight;
		/* The values of a rank without samples may be NaN. */
		for (size_t i = 0; i < count; i++)
			mine[i + 1] = weight > 0 ? weight * values[i] : 0;
	}
	op.send = mine;
	op.recv = all;
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_PROGRAM,
				  "zero_mean of %zu values", count);
	for (size_t rank = 0; !status && rank < world; rank++)
		total += all[rank * row];
	if (!status && !(total <= DBL_MAX))
		status = zero_fail_on(0, ZERO_E_INVALID,
				      "zero_mean: the sum of the weights of all ranks is infinite");
	if (!status && !(total > 0))
		status = zero_fail_on(0, ZERO_E_INVALID,
				      "zero_mean: the weights of all ranks are 0");
	for (size_t i = 0; !status && i < count; i++) {
		double sum = 0;

		for (size_t rank = 0; rank < world; rank++)
			sum += all[rank * row + i + 1];
		values[i] = sum / total;
	}
	free(mine);
	free(all);
	return status;
}

void zero_program_holds(zero_job *job, size_t bytes)
{
	if (!job->ops->hold)
		return;
	job->held = bytes;
	job->ops->hold(job->backend, bytes);
}

void zero_trim(zero_job *job)
{
	if (job->ops->trim)
		job->ops->trim(job->backend);
}

zero_status zero_memory_now(zero_job *job, zero_memory *memory)
{
	zero_job_memory(job, memory, NULL);
	return ZERO_OK;
}

zero_status zero_traffic_now(zero_job *job, zero_traffic *traffic)
{
	*traffic = (zero_traffic){.bytes_sent = job->comm->bytes_sent,
				  .collectives = job->comm->collectives,
				  .agreements = job->comm->agreements,
				  .bytes_read = job->bytes_read};
	return ZERO_OK;
}
