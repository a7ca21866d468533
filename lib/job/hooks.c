/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

/* job->hooks is [hook_count], in the order of lib/open.c. */

zero_status zero_hooks_check_peers(zero_job *job)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < job->hook_count; i++)
		if (job->hooks[i]->check_peers)
			status = job->hooks[i]->check_peers(job);
	return status;
}

zero_status zero_hooks_before_submit(zero_job *job)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < job->hook_count; i++)
		if (job->hooks[i]->before_submit)
			status = job->hooks[i]->before_submit(job);
	return status;
}

void zero_hooks_before_change(zero_job *job, zero_group *group, bool step)
{
	for (size_t i = 0; i < job->hook_count; i++)
		if (job->hooks[i]->before_change)
			job->hooks[i]->before_change(job, group, step);
}

unsigned zero_hooks_busy(const zero_job *job)
{
	unsigned busy = 0;

	for (size_t i = 0; i < job->hook_count; i++)
		if (job->hooks[i]->busy && job->hooks[i]->busy(job))
			busy |= 1U << i;
	return busy;
}

void zero_hooks_all_idle(zero_job *job, unsigned busy)
{
	for (size_t i = 0; i < job->hook_count; i++)
		if (job->hooks[i]->all_idle && !(busy & 1U << i))
			job->hooks[i]->all_idle(job);
}

void zero_hooks_after_step(zero_job *job)
{
	for (size_t i = 0; i < job->hook_count; i++)
		if (job->hooks[i]->after_step)
			job->hooks[i]->after_step(job);
}

void zero_hooks_after_save(zero_job *job, bool protection, double seconds, uint64_t bytes, bool ok)
{
	for (size_t i = 0; i < job->hook_count; i++)
		if (job->hooks[i]->after_save)
			job->hooks[i]->after_save(job, protection, seconds, bytes, ok);
}

zero_status zero_hooks_after_layout(zero_job *job)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < job->hook_count; i++)
		if (job->hooks[i]->after_layout)
			status = job->hooks[i]->after_layout(job);
	return status;
}

void zero_hooks_before_close(zero_job *job, bool together)
{
	for (size_t i = job->hook_count; i--;)
		if (job->hooks[i]->before_close)
			job->hooks[i]->before_close(job, together);
}

bool zero_hooks_close(zero_job *job)
{
	for (size_t i = job->hook_count; i--;)
		if (job->hooks[i]->close && !job->hooks[i]->close(job))
			return false;
	return true;
}

void zero_hooks_closed(zero_job *job)
{
	for (size_t i = job->hook_count; i--;)
		if (job->hooks[i]->closed)
			job->hooks[i]->closed(job);
}
