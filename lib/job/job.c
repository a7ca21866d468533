/* SPDX-License-Identifier: Apache-2.0 */
/* A job: its begin, its end, and the small things that its ranks do together. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "watch/watch.h"

static atomic_flag one_job = ATOMIC_FLAG_INIT;

/* ---- open and close -------------------------------------------------------------------------- */

/* What the option says, as far as it could be read; auto: a GPU if there is one. */
static zero_status choose_backend(zero_job *job)
{
	uint64_t choice = job->settings.value[ZERO_OPT_BACKEND].number;
	const struct zero_backend_ops *ops;
	const void *table;
	zero_status status;

	if (choice != ZERO_BACKEND_HOST) {
		status = zero_module_open("cuda", &table);
		ops = status ? NULL : table;
		/* Where it was asked for, a rank without a GPU still has to tell the others. */
		if (ops && (choice == ZERO_BACKEND_CUDA || ops->available())) {
			job->ops = ops;
			return ZERO_OK;
		}
		if (choice == ZERO_BACKEND_CUDA)
			return zero_fail(ZERO_E_UNSUPPORTED, "backend is cuda (from %s): %s",
					 job->settings.origin[ZERO_OPT_BACKEND], zero_last_error());
	}
	status = zero_module_open("host", &table);
	job->ops = table;
	return status;
}

static zero_status open_backend(zero_job *job, zero_status settings, const zero_options *options)
{
	const struct zero_value *isa = &job->settings.value[ZERO_OPT_ISA];
	/* Ranks that could not read their options must still tell the others. */
	struct zero_backend_config config = {
		.isa = settings ? "auto" : zero_option_table[ZERO_OPT_ISA].choices[isa->number],
		.expected_world = (int)job->settings.value[ZERO_OPT_TASKS].number,
		.share = (int)job->settings.value[ZERO_OPT_SHARE].number,
		.allocator = options ? options->allocator : NULL,
		.stream = options ? options->stream : NULL,
		.open_seconds = (double)job->settings.value[ZERO_OPT_OPEN_SECONDS].number,
		.reduce = (int)job->settings.value[ZERO_OPT_REDUCE].number,
		.nccl = job->settings.value[ZERO_OPT_NCCL].text,
		.meter = zero_report_meter(job),
	};
	zero_status status = choose_backend(job);

	if (status)
		return status;
	/* A backend for GPUs has deadlines of its own wherever it waits. */
	if (job->ops->host_memory)
		zero_opening_begin(job);
	status = job->ops->open(&config, &job->backend);
	job->joined = !status;
	if (job->backend) {
		job->ops->place(job->backend, NULL, &job->place);
		job->all = (zero_team){.job = job, .place = job->place};
		zero_process_rank_set(job->place.rank);
	}
	return status;
}

zero_status zero_open(const zero_options *options, zero_job **opened)
{
	struct zero_opening *opening;
	zero_status status, settings;
	zero_job *job;
	struct zero_saved_error why;

	*opened = NULL;
	if (atomic_flag_test_and_set(&one_job))
		return zero_fail(ZERO_E_STATE, "a job is open in this process already");
	job = calloc(1, sizeof(*job));
	if (!job || !zero_settings_init(&job->settings)) {
		free(job);
		atomic_flag_clear(&one_job);
		return zero_fail(ZERO_E_MEMORY, "no memory for a job");
	}
	job->process = getpid();
	pthread_mutex_init(&job->lock, NULL);
	zero_ring_record_default_signals();
	settings = zero_job_read_settings(job, options);
	if (!settings)
		settings = zero_report_begin(job);
	zero_error_save(&why);
	status = open_backend(job, settings, options);
	/* Looking for a GPU may have left another sentence. */
	if (!status && settings)
		zero_error_restore(&why);
	if (!status)
		status = zero_job_agree_settings(job, settings);
	if (!status)
		status = zero_job_watch(job);
	opening = job->opening;
	if (status)
		zero_close(job);
	else
		zero_job_apply_settings(job);
	zero_opening_end(opening);
	if (!status) {
		job->opening = NULL;
		*opened = job;
	}
	return status;
}

/* What is under way must end before its buffers go. */
static void settle_work(zero_job *job)
{
	for (size_t g = 0; g < job->group_count; g++) {
		zero_group *group = job->groups[g];

		if (group->gather)
			job->ops->wait(job->backend, group->gather);
		zero_work_wait(job, &group->reduce);
		zero_work_wait(job, &group->post_step_gather);
	}
	for (int i = 0; i < ZERO_REDUCES; i++)
		zero_work_wait(job, &job->reduces[i]);
}

/*
 * So that a peer which is in another operation hears of it instead of waiting for ever. What went
 * wrong before is more than that the ranks now part: it stays the thread's last error. Returns
 * whether all ranks close the job.
 */
static bool say_closing(zero_job *job)
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
	bool together;

	/* A forked child has a copy of the memory, but neither the thread nor MPI. */
	if (!job || job->process != getpid())
		return ZERO_OK;
	/* What waits for a lost rank on the host waits for ever: it is left to the process's
	   end. */
	if (job->ring && zero_job_check_watch(job))
		return ZERO_OK;
	if (job->joined) {
		together = say_closing(job);
		zero_save_end(job, together);
		settle_work(job);
		zero_report_end(job, together);
	}
	for (size_t g = 0; g < job->group_count; g++)
		zero_group_free(job->groups[g]);
	free(job->groups);
	if (job->backend)
		zero_staging_close(job);
	zero_teams_free(job);
	zero_slice_close(job);
	zero_stop_close(job);
	if (!zero_job_unwatch(job))
		return ZERO_OK;
	if (job->backend)
		job->ops->close(job->backend);
	zero_report_free(job);
	for (size_t id = 0; id < ZERO_OPTIONS; id++)
		free(job->setting_text[id]);
	zero_settings_clear(&job->settings);
	pthread_mutex_destroy(&job->lock);
	free(job);
	atomic_flag_clear(&one_job);
	return ZERO_OK;
}

/* ---- small things ---------------------------------------------------------------------------- */

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
	return zero_submit_wait(&job->all, status, NULL, 0, "zero_agree");
}

zero_status zero_mean(zero_job *job, double *values, size_t count, double weight)
{
	size_t world = (size_t)job->place.world, row = count + 1;
	double *mine = calloc(row, sizeof(double)), *all = calloc(world * row, sizeof(double));
	struct zero_op op = {.kind = ZERO_OP_EXCHANGE, .count = row * sizeof(double)};
	zero_status status = ZERO_OK;
	double total = 0;

	if (!mine || !all)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the mean of %zu values", count);
	else if (!(weight >= 0))
		status = zero_fail(ZERO_E_INVALID, "zero_mean has weight %g: it is >= 0", weight);
	if (!status) {
		mine[0] = weight;
		/* A rank without samples may have no value at all. */
		for (size_t i = 0; i < count; i++)
			mine[i + 1] = weight > 0 ? weight * values[i] : 0;
	}
	op.send = mine;
	op.recv = all;
	status = zero_submit_wait(&job->all, status, &op, 1, "zero_mean of %zu values", count);
	for (size_t rank = 0; !status && rank < world; rank++)
		total += all[rank * row];
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

zero_status zero_memory_now(zero_job *job, zero_memory *memory)
{
	job->ops->memory(job->backend, memory);
	return ZERO_OK;
}

zero_status zero_traffic_now(zero_job *job, zero_traffic *traffic)
{
	job->ops->traffic(job->backend, traffic);
	traffic->bytes_read = job->bytes_read;
	return ZERO_OK;
}
