/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of all groups or some: those that were not reduced yet are, the ranks share the norm of
 * the mean gradient, and each rank steps what it owns. At stages 1 and 2 a group's new values are
 * sent while the next group is stepped. On a device the host waits for none of this, unless it is
 * asked for the result.
 */
#include <stdlib.h>
#include <string.h>

#include "backend/step_rule.h"
#include "train.h"

/* The groups are in the order of the model. */
struct step {
	zero_job *job;
	zero_group **groups;
	size_t count;
	const zero_adamw *adamw;
	struct zero_op *ops; /* has room for the operations of any group */
	struct zero_muon_step *muon;
};

/* Larger counts are not all exact in f64. */
#define SAMPLES_MAX 0x1p53

static zero_status check_values(const zero_adamw *adamw)
{
	/* These comparisons refuse NaN, too. */
	if (!(adamw->lr >= 0 && adamw->beta1 >= 0 && adamw->beta1 < 1 && adamw->beta2 >= 0 &&
	      adamw->beta2 < 1 && adamw->eps > 0 && adamw->weight_decay >= 0 && adamw->clip >= 0 &&
	      adamw->micro_batches >= 0))
		return zero_fail(ZERO_E_INVALID,
				 "AdamW has lr %g, beta1 %g, beta2 %g, eps %g, weight_decay %g, "
				 "clip %g, micro_batches %d: all are >= 0, betas < 1, eps > 0",
				 (double)adamw->lr, (double)adamw->beta1, (double)adamw->beta2,
				 (double)adamw->eps, (double)adamw->weight_decay,
				 (double)adamw->clip, adamw->micro_batches);
	if (!(adamw->samples >= 0 && adamw->samples <= SAMPLES_MAX))
		return zero_fail(ZERO_E_INVALID, "zero_adamw.samples is %g; it must be 0 to 2^53",
				 adamw->samples);
	if (adamw->samples > 0 && adamw->micro_batches > 1)
		return zero_fail(ZERO_E_INVALID,
				 "the step has samples %g and micro_batches %d: samples are those "
				 "of all micro-batches, leave micro_batches 0",
				 adamw->samples, adamw->micro_batches);
	if (adamw->gradients_are_means && (adamw->samples > 0 || adamw->micro_batches > 1))
		return zero_fail(ZERO_E_INVALID,
				 "the step has gradients_are_means, samples %g and micro_batches "
				 "%d: means are not divided, leave samples and micro_batches 0",
				 adamw->samples, adamw->micro_batches);
	return ZERO_OK;
}

zero_status zero_step_check_groups(zero_group **groups, size_t count)
{
	for (size_t g = 0; g < count; g++) {
		if (!groups[g]->flats)
			return zero_fail(ZERO_E_STATE,
					 "group '%s' is stepped before zero_layout has laid it out",
					 groups[g]->name);
		if (g && groups[g - 1] == groups[g])
			return zero_fail(ZERO_E_INVALID, "group '%s' is twice in a step",
					 groups[g]->name);
		if (zero_group_is_gathered(groups[g]))
			return zero_fail(ZERO_E_STATE,
					 "group '%s' is gathered: release it before "
					 "the step changes it",
					 groups[g]->name);
	}
	return ZERO_OK;
}

static zero_status check_step(const struct step *step)
{
	const zero_job *job = step->job;
	zero_status status;

	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_step must be called after zero_layout");
	status = zero_step_check_groups(step->groups, step->count);
	if (!status)
		status = zero_require_state(job, ZERO_IDLE, "zero_step");
	if (!status)
		status = zero_muon_check(step->adamw->muon);
	if (!status)
		status = check_values(step->adamw);
	if (!status && !zero_loss_scale_is_kept(job, step->adamw->loss_scale))
		status = zero_loss_scale_check(step->adamw->loss_scale);
	return status;
}

static bool is_captured(const zero_job *job)
{
	return job->ops->capturing && job->ops->capturing(job->backend);
}

/* A captured step must not wait for the device. */
static zero_status check_capture(const zero_job *job, const zero_adamw *adamw,
				 const zero_step_result *result)
{
	const char *why = result ? "its result must be NULL" : NULL;

	if (!why && adamw->loss_scale && !zero_loss_scale_is_kept(job, adamw->loss_scale))
		why = "the loss scale must be that of zero_device_loss_scale";
	if (!why && zero_states_staged(job))
		why = "offloaded states are stepped by the host";
	if (!why && adamw->muon)
		why = "cuBLAS, which Muon needs, may allocate";
	if (!why || !is_captured(job))
		return ZERO_OK;
	return zero_fail(ZERO_E_STATE, "zero_step cannot be captured: %s", why);
}

/* All streams come together before the program ends its capture, and later work does not wait for
   what was captured. */
static zero_status end_capture(const struct step *step)
{
	zero_job *job = step->job;
	zero_status status = ZERO_OK, one;

	pthread_mutex_lock(&job->lock);
	for (size_t g = 0; g < step->count; g++) {
		zero_group *group = step->groups[g];

		one = zero_work_wait(job, &group->post_step_gather);
		status = status ? status : one;
		zero_work_put(group->step_work);
		group->step_work = NULL;
	}
	pthread_mutex_unlock(&job->lock);
	return status;
}

zero_status zero_step_wait_groups(zero_job *job, zero_group **groups, size_t count)
{
	zero_status status = ZERO_OK, one;

	pthread_mutex_lock(&job->lock);
	for (size_t g = 0; g < count; g++) {
		one = zero_reduce_end(groups[g]);
		status = status ? status : one;
		one = zero_work_wait(job, &groups[g]->post_step_gather);
		if (one)
			zero_mark_inconsistent(job, one);
		status = status ? status : one;
	}
	pthread_mutex_unlock(&job->lock);
	return status;
}

/* The slices of which another rank has a gradient are not known here. */
static zero_status refuse_unreduced_slice(const zero_group *group)
{
	for (size_t s = 0; s < group->slice_count; s++)
		if (group->slices[s].flats[0].gradient)
			return zero_fail(ZERO_E_STATE,
					 "%s has a gradient that was not reduced: call "
					 "zero_reduce of the slice before the step",
					 group->slices[s].name);
	return ZERO_OK;
}

/* Reduces the groups that were not reduced since their last step, and waits for their reduces. In a
   grid their sums are then summed over the teams. */
static zero_status finish_reduces(const struct step *step)
{
	zero_job *job = step->job;
	zero_status status = ZERO_OK, one;

	pthread_mutex_lock(&job->lock);
	/* Other ranks may not know of an error of this one yet, and reduce the next. */
	for (size_t g = 0; g < step->count; g++) {
		zero_group *group = step->groups[g];

		if (!group->flats || !zero_group_is_stepped(group) || !zero_is_member(group))
			continue;
		one = refuse_unreduced_slice(group);
		status = status ? status : one;
		if (group->reduced || group->team_reduced)
			continue;
		one = zero_reduce_locked(group);
		status = status ? status : one;
	}
	pthread_mutex_unlock(&job->lock);
	one = zero_sum_replicas(job, step->groups, step->count, status);
	status = status ? status : one;
	one = zero_step_wait_groups(job, step->groups, step->count);
	status = status ? status : one;
	pthread_mutex_lock(&job->lock);
	/* An error of these is their group's, which has returned it, or will at its step. */
	for (int i = 0; i < ZERO_REDUCES; i++)
		zero_work_wait(job, &job->trainer->reduces[i]);
	pthread_mutex_unlock(&job->lock);
	return status;
}

size_t zero_most_step_ops(const zero_job *job)
{
	size_t most = 0;

	for (size_t g = 0; g < job->model->group_count; g++) {
		const zero_group *group = job->model->groups[g];
		size_t ops = 0;

		for (size_t f = 0; f < group->flat_count; f++)
			ops += 2 * group->flats[f].segment_count;
		most = ops > most ? ops : most;
	}
	return most;
}

/* Stage 0: all ranks get a segment's f32 masters, which they all step. */
static struct zero_op gather_masters(const struct zero_flat *flat,
				     const struct zero_segment *segment)
{
	float *masters = flat->master + segment->state_at;

	return (struct zero_op){
		.kind = ZERO_OP_ALL_GATHER,
		.from = ZERO_F32,
		.to = ZERO_F32,
		.send = masters + (size_t)flat->group->team->place.rank * segment->shard,
		.recv = masters,
		.count = segment->shard,
	};
}

struct zero_op zero_gather_stored_op(const struct zero_flat *flat,
				     const struct zero_segment *segment)
{
	size_t owned, stored, count;

	zero_owned_part(flat->group, segment, &owned, &count);
	zero_stored_part(flat->group, segment, &stored, &count);
	return (struct zero_op){
		.kind = ZERO_OP_ALL_GATHER,
		.from = segment->dtype,
		.to = segment->dtype,
		.send = zero_stored_at(flat, segment, owned),
		.recv = zero_stored_at(flat, segment, stored),
		.count = segment->shard,
	};
}

bool zero_sends_stepped(const zero_group *group)
{
	return zero_is_member(group) && !group->steps_replicated &&
	       (group->job->stage < 3 || group->replica_team);
}

zero_status zero_send_stepped(zero_group *group, struct zero_op *ops)
{
	zero_team *team = group->replica_team ? group->replica_team : group->team;
	zero_job *job = group->job;
	size_t op_count = 0;
	zero_status status;

	for (size_t f = 0; (group->replicated || group->replica_team) && f < group->flat_count; f++)
		for (size_t r = 0; r < group->flats[f].segment_count; r++) {
			const struct zero_flat *flat = &group->flats[f];
			const struct zero_segment *segment = &flat->segments[r];

			if (!segment->trainable)
				continue;
			ops[op_count++] = zero_gather_stored_op(flat, segment);
			if (group->steps_replicated && flat->master && segment->dtype != ZERO_F32)
				ops[op_count++] = gather_masters(flat, segment);
		}
	pthread_mutex_lock(&job->lock);
	status = zero_submit(team, ZERO_OK, ops, op_count, false, false, &group->post_step_gather,
			     ZERO_WORK_UPDATE, group->name, "update of group '%s'", group->name);
	zero_work_put(group->step_work);
	/* Those who store the same know nothing of those who store another part. */
	group->step_work = status || group->replica_team ? NULL : group->post_step_gather;
	if (group->step_work)
		zero_work_get(group->step_work);
	group->step_wait_count = zero_group_wait_count(group);
	pthread_mutex_unlock(&job->lock);
	return status;
}

void zero_step_free_gradients(zero_group **groups, size_t count, bool all)
{
	for (size_t g = 0; g < count; g++) {
		zero_group *group = groups[g];
		zero_job *job = group->job;

		pthread_mutex_lock(&job->lock);
		group->reduced = group->team_reduced = group->sums_exposed = false;
		for (size_t f = 0; f < group->flat_count; f++) {
			struct zero_flat *flat = &group->flats[f];

			job->ops->free(job->backend, flat->reduced);
			job->ops->free(job->backend, flat->team_sums);
			flat->reduced = flat->team_sums = NULL;
			if (!all)
				continue;
			job->ops->free(job->backend, flat->gradient);
			flat->gradient = NULL;
		}
		for (size_t s = 0; all && s < group->slice_count; s++) {
			struct zero_flat *flat = &group->slices[s].flats[0];

			job->ops->free(job->backend, flat->gradient);
			flat->gradient = NULL;
		}
		pthread_mutex_unlock(&job->lock);
	}
}

/* After an error, and of frozen groups, also gradients that were not reduced. */
static void free_gradients(const struct step *step, zero_status status)
{
	for (size_t g = 0; g < step->count; g++)
		zero_step_free_gradients(&step->groups[g], 1,
					 status || !zero_group_is_stepped(step->groups[g]));
}

/* What the program may have changed through zero_gradient_shard is known to the owner alone. */
static zero_status share_sums(const struct step *step)
{
	zero_status status = ZERO_OK;

	for (size_t g = 0; !status && g < step->count; g++)
		if (zero_group_is_stepped(step->groups[g]) && zero_is_member(step->groups[g]))
			status = zero_gather_sums(step->groups[g], step->ops);
	return status;
}

/* Whether the step has a loss scale that belongs to the program, in host memory. */
static bool has_own_scale(const zero_job *job, const zero_adamw *adamw)
{
	return adamw->loss_scale && !zero_loss_scale_is_kept(job, adamw->loss_scale);
}

static float next_scale(const zero_job *job, const zero_adamw *adamw)
{
	if (!adamw->loss_scale)
		return 1;
	return has_own_scale(job, adamw) ? adamw->loss_scale->scale
					 : job->trainer->seen->loss_scale.scale;
}

/* The factor that makes the mean gradient of the sums. The loss scale is applied last: a power of
   two then leaves the other bits as they are. */
static double mean_factor(const zero_job *job, const zero_adamw *adamw, double samples)
{
	int micro_batches = adamw->micro_batches ? adamw->micro_batches : 1;
	double mean = samples > 0 ? 1 / samples : 1 / ((double)job->place.world * micro_batches);

	if (adamw->gradients_are_means)
		mean = 1;
	return has_own_scale(job, adamw) ? mean / (double)adamw->loss_scale->scale : mean;
}

/* Begins to compute the state of the step, which all ranks compute alike. */
static void begin_state(zero_job *job, const zero_adamw *adamw, double samples)
{
	const struct zero_step_rule rule = {
		.state = job->trainer->state,
		.norms = job->trainer->norms + 1,
		.world = job->place.world,
		.mean = mean_factor(job, adamw, samples),
		.scaled = zero_loss_scale_is_kept(job, adamw->loss_scale),
		.clip = adamw->clip,
	};

	job->trainer->begun++;
	job->trainer->steps++;
	job->trainer->adamw = *adamw;
	job->trainer->adamw.muon = NULL; /* the caller's */
	job->trainer->has_adamw = true;
	zero_compute(job, ZERO_K_STEP_RULE, &rule);
}

/* Where the states are staged the host computes what it steps by. */
static void begin_rule(zero_job *job, const struct zero_group_rule *rule)
{
	if (zero_states_staged(job))
		zero_cpu_run(&job->cpu, ZERO_K_GROUP_RULE, rule);
	else
		zero_compute(job, ZERO_K_GROUP_RULE, rule);
}

/* Begins to compute the states of the groups that are stepped: those that lie one behind the other
   at once. */
static void begin_group_states(const struct step *step)
{
	zero_job *job = step->job;
	const struct zero_step_state *seen = job->trainer->seen;
	struct zero_group_rule rule = {.state =
					       zero_states_staged(job) ? seen : job->trainer->state,
				       .beta1 = step->adamw->beta1,
				       .beta2 = step->adamw->beta2};

	for (size_t g = 0; g < step->count; g++) {
		if (!zero_group_is_stepped(step->groups[g]))
			continue;
		if (rule.count && step->groups[g]->step_state != rule.groups + rule.count) {
			begin_rule(job, &rule);
			rule.count = 0;
		}
		if (!rule.count)
			rule.groups = step->groups[g]->step_state;
		rule.count++;
	}
	if (rule.count)
		begin_rule(job, &rule);
}

/* An error of this rank alone does not keep it from what the others wait for. */
static zero_status step_groups(const struct step *step)
{
	zero_job *job = step->job;
	zero_status status, one;

	begin_group_states(step);
	status = zero_muon_run(step->muon);
	for (size_t g = 0; g < step->count; g++) {
		zero_group *group = step->groups[g];

		if (!zero_group_is_stepped(group))
			continue;
		zero_hooks_before_change(job, group, true);
		zero_adamw_group(group, step->adamw);
		if (!zero_sends_stepped(group))
			continue;
		one = zero_send_stepped(group, step->ops);
		status = status ? status : one;
	}
	return status;
}

/* Steps, or skips the step where its state says so: only who is asked for the result, or steps on
   the host, waits for the device to know it. */
static zero_status take_step(const struct step *step, const struct zero_step_agreed *agreed,
			     zero_step_result *result)
{
	zero_job *job = step->job;
	const zero_adamw *adamw = step->adamw;
	const struct zero_step_state *seen = job->trainer->seen;
	bool early = job->ops->host_memory || zero_states_staged(job);
	zero_status status = ZERO_OK;

	begin_state(job, adamw, agreed->samples);
	if (early)
		status = zero_step_state_read(job);
	if (!status && agreed->sums_exposed)
		status = share_sums(step);
	if (!status && !(early && seen->skipped))
		status = step_groups(step);
	if (!status && is_captured(job))
		status = end_capture(step);
	if (!status && !early && (result || has_own_scale(job, adamw)))
		status = zero_step_state_read(job);
	if (status)
		return zero_mark_inconsistent(job, status);
	if (has_own_scale(job, adamw))
		zero_step_update_loss_scale(adamw->loss_scale, !seen->skipped);
	job->trainer->stopping = agreed->stop;
	if (result)
		*result = (zero_step_result){
			.grad_norm = seen->norm,
			.skipped = seen->skipped,
			.loss_scale = next_scale(job, adamw),
			.stop = agreed->stop,
		};
	return ZERO_OK;
}

/* All ranks have them once one has agreed with the others on the step. */
static void set_stepped(const struct step *step)
{
	for (size_t g = 0; g < step->count; g++)
		if (zero_group_is_stepped(step->groups[g]))
			step->groups[g]->ever_stepped = true;
}

static zero_status alloc_states(const struct step *step)
{
	zero_status status = ZERO_OK;

	for (size_t g = 0; !status && g < step->count; g++)
		if (zero_group_is_stepped(step->groups[g]))
			status = zero_states_alloc(step->groups[g]);
	return status;
}

/* `status` is that of listing the groups. */
static zero_status run_step(struct step *step, zero_status status, zero_step_result *result)
{
	zero_job *job = step->job;
	const char *before = zero_set_current_call(job, "zero_step");
	struct zero_step_agreed agreed;

	/* First of all, since other ranks may be waiting in their reduces even if this call fails
	   here. */
	if (!status && job->laid_out)
		status = finish_reduces(step);
	if (!status)
		status = check_step(step);
	if (!status)
		status = check_capture(job, step->adamw, result);
	if (!status)
		status = alloc_states(step);
	/* After the ranks have agreed nothing is allocated: no rank can fail alone for that. */
	if (!status) {
		step->ops = calloc(zero_most_step_ops(job) + 1, sizeof(*step->ops));
		if (!step->ops)
			status = zero_fail(ZERO_E_MEMORY, "no memory for zero_step");
	}
	if (!status)
		status = zero_muon_prepare(job, step->groups, step->count, step->adamw->muon,
					   &step->muon);
	status = zero_step_agree(job, status, step->adamw, step->groups, step->count, &agreed);
	if (!status)
		set_stepped(step);
	if (!status)
		zero_hooks_all_idle(job, agreed.busy);
	if (!status)
		status = take_step(step, &agreed, result);
	free(step->ops);
	zero_muon_free(step->muon);
	free_gradients(step, status);
	if (!status)
		zero_hooks_after_step(job);
	zero_set_current_call(job, before);
	return status;
}

zero_status zero_step(zero_job *job, const zero_adamw *adamw, zero_step_result *result)
{
	struct step step = {.job = job,
			    .groups = job->model->groups,
			    .count = job->model->group_count,
			    .adamw = adamw};

	return run_step(&step, ZERO_OK, result);
}

static int by_index(const void *a, const void *b)
{
	const zero_group *x = *(zero_group *const *)a, *y = *(zero_group *const *)b;

	return (x->index > y->index) - (x->index < y->index);
}

zero_status zero_step_groups(zero_job *job, zero_group **groups, size_t count,
			     const zero_adamw *adamw, zero_step_result *result)
{
	zero_group **sorted = calloc(count + 1, sizeof(zero_group *));
	struct step step = {.job = job, .groups = groups, .count = count, .adamw = adamw};
	zero_status status = ZERO_OK;

	if (sorted) {
		memcpy(sorted, groups, count * sizeof(*sorted));
		qsort(sorted, count, sizeof(*sorted), by_index);
		step.groups = sorted;
	} else {
		status = zero_fail(ZERO_E_MEMORY, "no memory for a step of %zu groups", count);
	}
	status = run_step(&step, status, result);
	free(sorted);
	return status;
}
