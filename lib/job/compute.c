/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on what this rank has: on the CPU, or on a device. */
#include <string.h>

#include "job.h"

void zero_compute(zero_job *job, enum zero_kernel kernel, const void *arguments)
{
	if (job->ops->launch)
		job->ops->launch(job->backend, kernel, arguments);
	else
		zero_cpu_run(&job->cpu, kernel, arguments);
}

void zero_cast(zero_job *job, zero_dtype to, void *out, zero_dtype from, const void *in,
	       size_t count)
{
	const struct zero_device_cast cast = {
		.out = out, .in = in, .count = count, .to = to, .from = from};

	zero_compute(job, ZERO_K_CAST, &cast);
}

void zero_fill(zero_job *job, zero_dtype dtype, void *out, size_t count, double value)
{
	struct zero_device_fill fill = {.out = out, .count = count, .size = zero_dtype_size(dtype)};

	if (!job->ops->launch) {
		job->cpu.kernels->fill_constant(dtype, out, count, value);
		return;
	}
	job->cpu.kernels->fill_constant(dtype, &fill.pattern, 1, value);
	job->ops->launch(job->backend, ZERO_K_FILL, &fill);
}

uint64_t zero_event_record(zero_job *job)
{
	return job->ops->event_record ? job->ops->event_record(job->backend) : 0;
}

zero_status zero_event_wait(zero_job *job, uint64_t event)
{
	zero_status status;

	if (!job->ops->event_wait)
		return ZERO_OK;
	zero_queue_device_wait(job->queue, true);
	status = job->ops->event_wait(job->backend, event);
	zero_queue_device_wait(job->queue, false);
	return status;
}

zero_status zero_device_sync(zero_job *job)
{
	return zero_event_wait(job, zero_event_record(job));
}

void zero_job_memory(zero_job *job, zero_memory *memory, size_t at_peak[ZERO_MEM_KINDS])
{
	if (job->ops->memory) {
		job->ops->memory(job->backend, memory, at_peak);
		return;
	}
	*memory = (zero_memory){0};
	if (at_peak)
		memset(at_peak, 0, ZERO_MEM_KINDS * sizeof(at_peak[0]));
}
