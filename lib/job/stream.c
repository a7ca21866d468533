/* SPDX-License-Identifier: Apache-2.0 */
/* What a program shares with a device's backend: the device, its stream, and a communicator of its
   own. */
#include "job.h"

zero_status zero_set_stream(zero_job *job, void *stream)
{
	if (job->ops->set_stream) {
		pthread_mutex_lock(&job->lock);
		job->ops->set_stream(job->backend, stream);
		pthread_mutex_unlock(&job->lock);
	} else if (stream) {
		return zero_fail(ZERO_E_UNSUPPORTED,
				 "zero_set_stream: the backend %s has no streams", job->ops->name);
	}
	return ZERO_OK;
}

int zero_device_index(const zero_job *job)
{
	return job->ops->device_index ? job->ops->device_index(job->backend) : -1;
}

zero_status zero_nccl_comm(zero_job *job, void **comm)
{
	zero_status status = ZERO_OK;

	*comm = NULL;
	if (!job->ops->caller_comm)
		status = zero_fail(ZERO_E_UNSUPPORTED,
				   "zero_nccl_comm: the backend %s has no communicator of NCCL; "
				   "--zero-backend=cuda has",
				   job->ops->name);
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_PROGRAM, "zero_nccl_comm");
	return status ? status : job->ops->caller_comm(job->backend, comm);
}
