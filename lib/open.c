/* SPDX-License-Identifier: Apache-2.0 */
/* zero_open: the only file that refers to all rooms. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "core/module.h"
#include "load/load.h"
#include "net/net.h"
#include "protect/protect.h"
#include "report/job_report.h"
#include "train/train.h"
#include "watch/watch.h"

/* The rooms that take part in a job. zero_close goes from the last to the first: a save ends before
   the model is freed, the report is written while its memory is still counted, and the watchdog
   stays until all other work has ended. */
static const struct zero_hooks *const hooks[] = {
	&zero_watch_hooks, &zero_slow_hooks,  &zero_report_hooks,     &zero_model_hooks,
	&zero_load_hooks,  &zero_train_hooks, &zero_checkpoint_hooks, &zero_protect_hooks,
};

/* One allocation for the job and what the rooms keep of it. */
struct job_and_rooms {
	zero_job job; /* first: zero_close frees it */
	struct zero_model model;
	struct zero_loader loader;
	struct zero_trainer trainer;
};

static zero_job *new_job(void)
{
	struct job_and_rooms *all = calloc(1, sizeof(*all));
	zero_job *job;

	if (!all || !zero_settings_init(&all->job.settings)) {
		free(all);
		return NULL;
	}
	job = &all->job;
	job->net = zero_net_new();
	if (!job->net) {
		zero_settings_clear(&job->settings);
		free(all);
		return NULL;
	}
	job->model = &all->model;
	job->loader = &all->loader;
	job->trainer = &all->trainer;
	pthread_cond_init(&all->trainer.released, NULL);
	job->hooks = hooks;
	job->hook_count = sizeof(hooks) / sizeof(hooks[0]);
	job->process = getpid();
	pthread_mutex_init(&job->lock, NULL);
	return job;
}

/* Opens the backend's module: the one of the setting, or for `auto` a GPU's if there is one. */
static zero_status choose_backend(zero_job *job)
{
	uint64_t choice = job->settings.value[ZERO_OPT_BACKEND].number;
	const struct zero_backend_ops *ops;
	const void *table;
	zero_status status;

	if (choice == ZERO_BACKEND_NONE) {
		status = zero_module_open("none", &table);
		job->ops = table;
		return status;
	}
	if (choice != ZERO_BACKEND_HOST) {
		status = zero_module_open("cuda", &table);
		ops = status ? NULL : table;
		/* With backend=cuda a rank without a GPU opens it too, to report that to the
		   others. */
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

static const char *isa_of(const zero_job *job)
{
	return zero_option_table[ZERO_OPT_ISA].choices[job->settings.value[ZERO_OPT_ISA].number];
}

static void choose_kernels(zero_job *job, const char *isa)
{
	if (job->ops->kernels)
		job->cpu.kernels = job->ops->kernels(isa);
	if (job->ops->kernels && !job->cpu.kernels)
		job->cpu.kernels = job->ops->kernels("auto");
}

/* The setting is refused once the ranks can agree on that. */
static zero_status check_isa(const zero_job *job)
{
	const char *isa = isa_of(job);

	if (!job->cpu.kernels || !strcmp(isa, "auto") || !strcmp(isa, job->cpu.kernels->isa))
		return ZERO_OK;
	return zero_fail(ZERO_E_UNSUPPORTED,
			 "this machine does not support %s (option isa): the best that it supports "
			 "is %s",
			 isa, job->cpu.kernels->isa);
}

static zero_status open_backend(zero_job *job, zero_status settings, const zero_options *options)
{
	/* Ranks that could not read their options must still report that to the others. */
	int threads = settings ? 1 : (int)job->settings.value[ZERO_OPT_THREADS].number;
	struct zero_backend_config config = {
		.agree_status = zero_agree_status,
		.expected_world = (int)job->settings.value[ZERO_OPT_TASKS].number,
		.share = (int)job->settings.value[ZERO_OPT_SHARE].number,
		.allocator = options ? options->allocator : NULL,
		.stream = options ? options->stream : NULL,
		.open_seconds = (double)job->settings.value[ZERO_OPT_OPEN_SECONDS].number,
		.reduce = (int)job->settings.value[ZERO_OPT_REDUCE].number,
		.check = zero_check_enabled(job),
		.nccl_cta = (int)job->settings.value[ZERO_OPT_NCCL_CTA].number,
		.nccl = job->settings.value[ZERO_OPT_NCCL].text,
		.net = job->net,
		.net_ops = &zero_net_ops,
	};
	zero_status status = choose_backend(job);

	if (status)
		return status;
	/* A backend for GPUs has deadlines of its own wherever it waits. */
	if (job->ops->host_memory)
		zero_open_timeout_start(job);
	choose_kernels(job, settings ? "auto" : isa_of(job));
	config.kernels = job->cpu.kernels;
	status = job->ops->open(&config, &job->backend, &job->comm);
	if (!status) {
		job->comm->meter = zero_report_meter(job);
		status = zero_queue_new(job->comm, &job->queue);
		status = zero_agree_status(job->comm, status);
	}
	if (!status && job->cpu.kernels)
		job->cpu.workers = zero_workers_new(zero_workers_budget(job->comm, threads));
	job->joined = !status;
	if (job->comm) {
		job->place = job->comm->place;
		job->all = (zero_team){.job = job, .place = job->place};
		zero_process_rank_set(job->place.rank);
	}
	return status;
}

/* COLLECTIVE. `status` is that of reading the options. */
static zero_status agree_settings(zero_job *job, zero_status status, size_t held)
{
	zero_status unequal;

	if (!status) {
		zero_program_holds(job, held);
		status = zero_job_resolve_sizes(job);
		zero_report_sizes(job);
	}
	status = zero_job_exchange_settings(job, status, &unequal);
	if (status)
		return status;
	if (!unequal && !job->ops->watch_only)
		unequal = zero_step_state_alloc(job);
	if (!unequal)
		unequal = zero_report_open(job);
	if (!unequal)
		unequal = zero_slow_open(job);
	status = zero_submit_wait(&job->all, unequal, NULL, 0, ZERO_WORK_OTHER, "options");
	if (!status)
		zero_report_opened(job);
	return status;
}

zero_status zero_open(const zero_options *options, zero_job **opened)
{
	struct zero_open_timeout *timeout;
	zero_status status, settings;
	struct zero_saved_error error;
	zero_job *job;

	*opened = NULL;
	status = zero_job_check_lost();
	if (status)
		return status;
	if (!zero_job_claim())
		return zero_fail(ZERO_E_STATE, "a job is open in this process already");
	job = new_job();
	if (!job) {
		zero_job_unclaim();
		return zero_fail(ZERO_E_MEMORY, "no memory for a job");
	}
	job->program_steps = options && options->program_steps;
	zero_ring_record_default_signals();
	settings = zero_job_read_settings(job, options);
	if (!settings)
		settings = zero_report_begin(job);
	zero_error_save(&error);
	/* such processes cannot even meet */
	status = zero_job_check_launcher(job);
	if (!status)
		status = open_backend(job, settings, options);
	/* The search for a GPU may have left another sentence. */
	if (!status && settings)
		zero_error_restore(&error);
	else if (!status)
		settings = check_isa(job);
	if (!status)
		status = agree_settings(job, settings, options ? options->program_holds : 0);
	if (!status)
		status = zero_watch_start(job);
	timeout = job->open_timeout;
	if (status)
		zero_close(job);
	else
		zero_job_apply_settings(job);
	zero_open_timeout_stop(timeout);
	if (!status) {
		job->open_timeout = NULL;
		*opened = job;
	}
	return status;
}
