/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gather: one all-gather for each run of a group, into the buffer that the parameters are then
 * read from. A lower type is cast straight into the own part of that buffer.
 */
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

static zero_dtype gathered_dtype(const struct zero_run *run, zero_dtype as)
{
	bool changes = run->dtype == ZERO_F32 || run->dtype == ZERO_F16 || run->dtype == ZERO_BF16;

	return as != ZERO_PARAM && changes ? as : run->dtype;
}

static zero_status check_gather(const zero_group *group, zero_dtype as)
{
	if (!group->job->laid_out)
		return zero_fail(ZERO_E_STATE, "group '%s' is gathered before zero_layout",
				 group->name);
	if (as != ZERO_PARAM && as != ZERO_F32 && as != ZERO_F16 && as != ZERO_BF16)
		return zero_fail(ZERO_E_INVALID,
				 "group '%s' cannot be gathered as %s: param, f32, f16 or bf16",
				 group->name, zero_dtype_name(as));
	for (size_t f = 0; f < group->flat_count; f++)
		for (size_t r = 0; r < group->flats[f].run_count; r++) {
			zero_dtype from = group->flats[f].runs[r].dtype;
			zero_dtype to = gathered_dtype(&group->flats[f].runs[r], as);

			if (from != to && from != ZERO_F32 && to != ZERO_F32)
				return zero_fail(ZERO_E_INVALID,
						 "group '%s' holds %s, which cannot be gathered "
						 "as %s",
						 group->name, zero_dtype_name(from),
						 zero_dtype_name(to));
		}
	return ZERO_OK;
}

/* Allocates the outputs of a group and adds its operations. What is stored whole and wanted as it
   is needs neither. */
static zero_status prepare(zero_group *group, zero_dtype as, struct zero_op *ops, size_t *op_count)
{
	zero_job *job = group->job;
	zero_status status = ZERO_OK;

	for (size_t f = 0; f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];
		const size_t page = 4096;
		size_t bytes = 0;

		for (size_t r = 0; r < flat->run_count; r++) {
			struct zero_run *run = &flat->runs[r];
			zero_dtype to = gathered_dtype(run, as);

			run->gathered_at = NOT_GATHERED;
			if (!run->count || (job->whole && to == run->dtype))
				continue;
			run->gathered_at = bytes;
			bytes += run->count * zero_dtype_size(to) + page - 1;
			bytes -= bytes % page;
		}
		if (bytes && !status)
			status = job->ops->alloc(job->backend, ZERO_MEM_GATHERED, bytes, false,
						 (void **)&flat->gathered);
		for (size_t r = 0; r < flat->run_count; r++) {
			const struct zero_run *run = &flat->runs[r];

			if (run->gathered_at == NOT_GATHERED || job->whole)
				continue;
			ops[(*op_count)++] = (struct zero_op){
				.kind = ZERO_OP_ALL_GATHER,
				.from = run->dtype,
				.to = gathered_dtype(run, as),
				.send = flat->stored + run->stored_at,
				.recv = status ? NULL : flat->gathered + run->gathered_at,
				.count = run->shard,
			};
		}
	}
	return status;
}

/* Runs that are stored whole are cast here, when they are waited for. */
static void cast_whole(zero_group *group)
{
	zero_job *job = group->job;

	for (size_t f = 0; f < group->flat_count; f++)
		for (size_t r = 0; r < group->flats[f].run_count; r++) {
			struct zero_flat *flat = &group->flats[f];
			struct zero_run *run = &flat->runs[r];

			if (run->gathered_at != NOT_GATHERED)
				job->ops->cast(job->backend, gathered_dtype(run, group->as),
					       flat->gathered + run->gathered_at, run->dtype,
					       flat->stored + run->stored_at, run->count);
		}
}

static size_t count_runs(zero_group **groups, size_t count)
{
	size_t runs = 0;

	for (size_t g = 0; g < count; g++)
		for (size_t f = 0; f < groups[g]->flat_count; f++)
			runs += groups[g]->flats[f].run_count;
	return runs;
}

/* Frees the outputs. With the job's lock. */
static void drop(zero_group *group)
{
	zero_job *job = group->job;

	for (size_t f = 0; f < group->flat_count; f++) {
		job->ops->free(job->backend, group->flats[f].gathered);
		group->flats[f].gathered = NULL;
	}
	job->ops->work_put(job->backend, group->gather);
	group->gather = NULL;
	group->uses = 0;
}

/* A call that does not fit is an error on all ranks, also when it does not fit on one only. */
static zero_status refuse(zero_job *job, zero_status status, const zero_group *group)
{
	return zero_run(job, status, NULL, 0, "gather from '%s'", group->name);
}

/* "group 'a'" or "groups 'a', 'b'", malloc'ed; NULL: no memory. */
static char *join_names(zero_group **groups, size_t count)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	fputs(count == 1 ? "group" : "groups", out);
	for (size_t g = 0; g < count; g++)
		fprintf(out, "%s '%s'", g ? "," : "", groups[g]->name);
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

/* The groups of a list that are not yet under way, each once. With the job's lock. */
static size_t list_new(zero_group **groups, size_t count, zero_group **fresh)
{
	size_t fresh_count = 0;

	for (size_t g = 0; g < count; g++) {
		if (groups[g]->gather || groups[g]->beginning)
			continue;
		groups[g]->beginning = true;
		fresh[fresh_count++] = groups[g];
	}
	for (size_t g = 0; g < fresh_count; g++)
		fresh[g]->beginning = false;
	return fresh_count;
}

/* Begins the groups that are not yet under way, as one submission. With the job's lock. */
static zero_status begin(zero_job *job, zero_group **groups, size_t count, zero_dtype as,
			 bool waited)
{
	struct zero_op *ops = calloc(count_runs(groups, count) + 1, sizeof(*ops));
	zero_group **fresh = calloc(count, sizeof(*fresh));
	size_t op_count = 0, fresh_count = fresh ? list_new(groups, count, fresh) : 0;
	zero_status status = ZERO_OK, prepared = ZERO_OK;
	struct zero_work *work;
	char *names = NULL;

	if (fresh && !fresh_count)
		goto out;
	if (fresh)
		names = join_names(fresh, fresh_count);
	if (!ops || !names)
		prepared = zero_fail(ZERO_E_MEMORY, "no memory to gather %zu groups", count);
	for (size_t g = 0; !prepared && g < fresh_count; g++) {
		prepared = zero_finish(job, &fresh[g]->update);
		if (!prepared)
			prepared = prepare(fresh[g], as, ops, &op_count);
	}
	/* Also with an error of this rank, which the others are to know. */
	status = zero_submit(job, prepared, ops, op_count, waited, &work, "gather of %s as %s",
			     names ? names : "groups", zero_dtype_name(as));
	for (size_t g = 0; g < fresh_count; g++) {
		fresh[g]->as = as;
		if (status) {
			drop(fresh[g]);
			continue;
		}
		job->ops->work_get(job->backend, work);
		fresh[g]->gather = work;
		if (job->whole && !prepared)
			cast_whole(fresh[g]);
	}
	if (!fresh_count && !status)
		status = zero_finish(job, &work);
	else if (!status)
		job->ops->work_put(job->backend, work);
out:
	free(names);
	free(fresh);
	free(ops);
	return status;
}

zero_status zero_prefetch(zero_group **groups, size_t count, zero_dtype as)
{
	zero_status status = ZERO_OK;
	zero_job *job;

	if (!count)
		return ZERO_OK;
	job = groups[0]->job;
	for (size_t g = 0; !status && g < count; g++)
		status = check_gather(groups[g], as);
	if (status)
		return refuse(job, status, groups[0]);
	pthread_mutex_lock(&job->lock);
	status = begin(job, groups, count, as, false);
	pthread_mutex_unlock(&job->lock);
	return status;
}

zero_status zero_gather(zero_group *group, zero_dtype as)
{
	zero_job *job = group->job;
	struct zero_work *work = NULL;
	zero_status status;

	status = check_gather(group, as);
	if (status)
		return refuse(job, status, group);
	pthread_mutex_lock(&job->lock);
	if (!group->gather)
		status = begin(job, &group, 1, as, true);
	else if (group->as != as)
		status = refuse(job,
				zero_fail(ZERO_E_STATE,
					  "group '%s' is gathered as %s: release it before it is "
					  "gathered as %s",
					  group->name, zero_dtype_name(group->as),
					  zero_dtype_name(as)),
				group);
	if (!status) {
		/* Counted before the wait, so that a release elsewhere does not free it. */
		group->uses++;
		work = group->gather;
		job->ops->work_get(job->backend, work);
	}
	pthread_mutex_unlock(&job->lock);
	if (status)
		return status;
	status = zero_finish(job, &work);
	if (status) {
		pthread_mutex_lock(&job->lock);
		if (group->uses && --group->uses == 0)
			drop(group);
		pthread_mutex_unlock(&job->lock);
	}
	return status;
}

zero_status zero_release(zero_group *group)
{
	zero_job *job = group->job;
	zero_status status = ZERO_OK;

	pthread_mutex_lock(&job->lock);
	if (!group->gather) {
		status = zero_fail(ZERO_E_STATE, "group '%s' is released, but not gathered",
				   group->name);
	} else if (!group->uses) {
		job->ops->wait(job->backend, group->gather);
		drop(group);
	} else if (--group->uses == 0) {
		drop(group);
	}
	pthread_mutex_unlock(&job->lock);
	return status;
}

void zero_gather_drop(zero_group *group)
{
	if (group->gather)
		drop(group);
}

void *zero_data(const zero_param *param)
{
	const struct zero_flat *flat = param->flat;
	const struct zero_run *run;

	/* Not `uses`, which other threads change meanwhile. */
	if (!flat || !param->group->gather || !param->count)
		return NULL;
	run = &flat->runs[param->run];
	if (run->gathered_at == NOT_GATHERED)
		return flat->stored + run->stored_at + param->first * zero_dtype_size(run->dtype);
	return flat->gathered + run->gathered_at +
	       param->first * zero_dtype_size(gathered_dtype(run, param->group->as));
}
