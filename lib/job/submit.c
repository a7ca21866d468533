/* SPDX-License-Identifier: Apache-2.0 */
/* Submits work to the backend, with a label that is equal on all ranks and this rank's own status.
   */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

__attribute__((format(printf, 10, 0))) static zero_status
submit_text(zero_team *team, zero_status status, struct zero_op *ops, size_t count, bool agreed,
	    bool waited, struct zero_work **work, enum zero_work_kind kind, const char *group,
	    const char *label, va_list arguments)
{
	zero_job *job = team->job;
	zero_status mine = status ? status : zero_hooks_before_submit(job);
	struct zero_submission submission = {
		.team_comm = team->team_comm,
		.kind = kind,
		.group = group,
		.status = mine,
		.error = mine ? zero_last_error() : NULL,
		.error_rank = mine && zero_last_error_shared() ? zero_last_error_rank() : -1,
		/* What this rank refuses the others may refuse, too: then the job goes on. */
		.agreed = agreed || mine || zero_check_enabled(job),
		.waited = waited,
		.ops = ops,
		.count = count,
	};
	char text[256], *all = NULL;
	va_list copy;

	if (zero_hooks_check_peers(job))
		return ZERO_E_COMM;
	team->wait_count += waited;
	va_copy(copy, arguments);
	/* The hash covers the whole label, also where the text is cut. */
	if (vsnprintf(text, sizeof(text), label, arguments) >= (int)sizeof(text) &&
	    vasprintf(&all, label, copy) < 0)
		all = NULL;
	va_end(copy);
	submission.label = text;
	submission.hash = zero_hash(all ? all : text, strlen(all ? all : text), 0);
	free(all);
	return zero_queue_submit(job->queue, &submission, work);
}

zero_status zero_submit(zero_team *team, zero_status status, struct zero_op *ops, size_t count,
			bool agreed, bool waited, struct zero_work **work, enum zero_work_kind kind,
			const char *group, const char *label, ...)
{
	va_list arguments;

	va_start(arguments, label);
	status = submit_text(team, status, ops, count, agreed, waited, work, kind, group, label,
			     arguments);
	va_end(arguments);
	return status;
}

zero_status zero_submit_wait(zero_team *team, zero_status status, struct zero_op *ops, size_t count,
			     enum zero_work_kind kind, const char *label, ...)
{
	struct zero_work *work;
	va_list arguments;

	va_start(arguments, label);
	status = submit_text(team, status, ops, count, true, true, &work, kind, NULL, label,
			     arguments);
	va_end(arguments);
	return status ? status : zero_work_wait(team->job, &work);
}

zero_status zero_leave(zero_job *job)
{
	static const char label[] = "zero_close";
	struct zero_submission submission = {
		.kind = ZERO_WORK_OTHER,
		.label = label,
		.hash = zero_hash(label, strlen(label), 0),
		.error_rank = -1,
		.leaving = true,
		.waited = true,
	};
	struct zero_work *work;
	zero_status status = zero_queue_submit(job->queue, &submission, &work);

	return status ? status : zero_work_wait(job, &work);
}

zero_status zero_work_wait(zero_job *job, struct zero_work **work)
{
	struct zero_work *finished = *work;
	zero_status status;

	if (!finished)
		return ZERO_OK;
	*work = NULL;
	status = zero_queue_wait(job->queue, finished);
	zero_work_put(finished);
	return status;
}
