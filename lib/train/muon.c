/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Muon (Jordan, 2024): the momentum of a matrix is orthogonalised, and that is its step. The
 * momentum stays sharded; a matrix is put together on one rank, its owner, by one all-to-all for a
 * batch of matrices, and what the owner made of it goes back by another. The owners are the same
 * whatever the batches are: matrices are dealt out over all that is stepped, the costliest first,
 * each to the rank with the least to do (Graham 1969, LPT). Each team has matrices of its own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* Elements that an owner puts together in a batch, unless one matrix has more. */
enum { BATCH = 16 << 20 };

struct matrix {
	zero_param *param;
	size_t first, rows, columns; /* the element of the parameter that it begins with */
	double cost;
	size_t index; /* in the order of the model */
	int owner;    /* a rank of the team */
	bool begins_batch;
	size_t whole_at, part_at; /* elements of the owner's `whole`, and of this rank's `parts` */
};

/* The matrices of a team, in the order in which they were dealt out. */
struct share {
	zero_team *team;
	struct matrix *matrices;
	size_t count;
};

struct zero_muon_step {
	zero_job *job;
	const zero_muon *muon;
	struct share *shares;
	size_t share_count;
	struct matrix *matrices; /* of all */
	size_t count;
	double *loads; /* [world] */
	size_t *taken; /* [world] */
	/* f32 of the largest batch: what this rank steps, what it owns, and scratch behind it. */
	float *parts, *whole;
	size_t part_capacity, whole_capacity, scratch_capacity;
	/* What this rank exchanges in a batch: its parts with owners, and whole matrices by
	   parts. */
	struct zero_transfer *mine, *owned;
	size_t mine_count, owned_count, owned_capacity;
};

static size_t elements(const struct matrix *matrix)
{
	return matrix->rows * matrix->columns;
}

/* ---- parts of a matrix ----------------------------------------------------------------------- */

struct part {
	size_t first, count; /* elements of the matrix */
};

/* What lies in elements [first, first + count) of the segment. */
static struct part part_within(const struct matrix *matrix, size_t first, size_t count)
{
	size_t at = matrix->param->first + matrix->first, begin = at > first ? at : first;
	size_t end = at + elements(matrix) < first + count ? at + elements(matrix) : first + count;

	return (struct part){begin - at, end > begin ? end - begin : 0};
}

static const struct zero_segment *segment_of(const struct matrix *matrix)
{
	return &matrix->param->flat->segments[matrix->param->segment];
}

static struct part part_of_shard(const struct matrix *matrix, int shard)
{
	size_t count = segment_of(matrix)->shard;

	return part_within(matrix, count * (size_t)shard, count);
}

/* The part that this rank steps. */
static struct part stepped_part(const struct matrix *matrix)
{
	size_t first, count;

	zero_stepped_part(matrix->param->group, segment_of(matrix), &first, &count);
	return part_within(matrix, first, count);
}

/* The shards that have a part: [*first, *end). */
static void shards_of(const struct matrix *matrix, int *first, int *end)
{
	size_t shard = segment_of(matrix)->shard, at = matrix->param->first + matrix->first;

	*first = (int)(at / shard);
	*end = (int)((at + elements(matrix) - 1) / shard) + 1;
}

/* ---- settings -------------------------------------------------------------------------------- */

zero_status zero_muon_check(const zero_muon *muon)
{
	/* These comparisons refuse NaN, too. */
	if (!muon ||
	    (muon->lr >= 0 && muon->weight_decay >= 0 && muon->momentum >= 0 &&
	     muon->momentum < 1 && muon->steps >= 0 && muon->steps <= 100 && muon->eps >= 0 &&
	     muon->rate >= ZERO_MUON_ORIGINAL && muon->rate <= ZERO_MUON_SPECTRAL))
		return ZERO_OK;
	return zero_fail(
		ZERO_E_INVALID,
		"Muon has lr %g, weight_decay %g, momentum %g, %d steps, eps %g, rate %d: lr, "
		"weight_decay and eps are >= 0, momentum is in [0, 1), steps are 1 to 100 "
		"or 0 for 5, rate is 0 to 2",
		(double)muon->lr, (double)muon->weight_decay, (double)muon->momentum, muon->steps,
		(double)muon->eps, (int)muon->rate);
}

void zero_muon_label(const zero_muon *muon, char *text, size_t size)
{
	uint64_t details;

	*text = 0;
	if (!muon)
		return;
	details = zero_hash(&muon->plain_momentum, sizeof(bool), 0);
	details = zero_hash(&muon->steps, sizeof(int), details);
	details = zero_hash(muon->coefficients, sizeof(muon->coefficients), details);
	details = zero_hash(&muon->eps, sizeof(float), details);
	details = zero_hash(&muon->rate, sizeof(muon->rate), details);
	snprintf(text, size, ", Muon lr %.9g, momentum %.9g, decay %.9g (others %08x)",
		 (double)muon->lr, (double)muon->momentum, (double)muon->weight_decay,
		 (unsigned)details);
}

/* ---- planning -------------------------------------------------------------------------------- */

static bool is_stepped(const zero_param *param)
{
	return param->muon && param->trainable && !param->frozen && !param->alias_of &&
	       param->count;
}

/* Multiplications of a Newton-Schulz iteration: two gemms with the long side and one without. */
static double cost_of(size_t rows, size_t columns)
{
	double s = (double)(rows < columns ? rows : columns), l = (double)(rows + columns) - s;

	return 4 * s * s * l + 2 * s * s * s;
}

/* Appends the matrices of a parameter, or counts them. */
static void add_param(struct zero_muon_step *step, zero_param *param, bool count_only)
{
	size_t rows = param->shape[param->ndim - 2], columns = param->shape[param->ndim - 1];

	for (size_t at = 0; at < param->count; at += rows * columns, step->count++)
		if (!count_only)
			step->matrices[step->count] =
				(struct matrix){.param = param,
						.first = at,
						.rows = rows,
						.columns = columns,
						.cost = cost_of(rows, columns),
						.index = step->count};
}

static void list_matrices(struct zero_muon_step *step, zero_group **groups, size_t count,
			  const zero_team *team, bool count_only)
{
	for (size_t g = 0; g < count; g++)
		for (size_t p = 0; p < groups[g]->param_count; p++)
			if ((!team || groups[g]->team == team) && zero_is_member(groups[g]) &&
			    is_stepped(groups[g]->params[p]))
				add_param(step, groups[g]->params[p], count_only);
}

static int by_cost(const void *a, const void *b)
{
	const struct matrix *x = a, *y = b;

	if (x->cost != y->cost)
		return x->cost < y->cost ? 1 : -1;
	return (x->index > y->index) - (x->index < y->index);
}

static void assign_owners(struct zero_muon_step *step, const struct share *share)
{
	int world = share->team->place.world;

	memset(step->loads, 0, (size_t)world * sizeof(*step->loads));
	for (size_t i = 0; i < share->count; i++) {
		int least = 0;

		for (int rank = 1; rank < world; rank++)
			if (step->loads[rank] < step->loads[least])
				least = rank;
		step->loads[least] += share->matrices[i].cost;
		share->matrices[i].owner = least;
	}
}

static void grow(size_t *capacity, size_t to)
{
	*capacity = *capacity > to ? *capacity : to;
}

/* Cuts the share into batches, and sets the places of the matrices in this rank's buffers. */
static void make_batches(struct zero_muon_step *step, const struct share *share)
{
	int rank = share->team->place.rank, world = share->team->place.world, first, end;
	size_t parts = 0, transfers = 0;

	for (size_t i = 0; i < share->count; i++) {
		struct matrix *matrix = &share->matrices[i];
		size_t *taken = &step->taken[matrix->owner];

		matrix->begins_batch = !i || (*taken && *taken + elements(matrix) > BATCH);
		if (matrix->begins_batch) {
			memset(step->taken, 0, (size_t)world * sizeof(*step->taken));
			parts = transfers = 0;
		}
		matrix->whole_at = *taken;
		matrix->part_at = parts;
		*taken += elements(matrix);
		parts += stepped_part(matrix).count;
		grow(&step->part_capacity, parts);
		if (matrix->owner != rank)
			continue;
		shards_of(matrix, &first, &end);
		transfers += (size_t)(matrix->param->group->steps_replicated ? world : end - first);
		grow(&step->owned_capacity, transfers);
		grow(&step->whole_capacity, *taken);
		grow(&step->scratch_capacity,
		     zero_newton_schulz_scratch(matrix->rows, matrix->columns));
	}
}

/* One share for each team, in the order of their first groups. */
static zero_status make_shares(struct zero_muon_step *step, zero_group **groups, size_t count)
{
	size_t all = step->count;

	step->shares = calloc(count + 1, sizeof(*step->shares));
	step->matrices = calloc(all + 1, sizeof(*step->matrices));
	step->mine = calloc(all + 1, sizeof(*step->mine));
	step->loads = calloc((size_t)step->job->place.world, sizeof(*step->loads));
	step->taken = calloc((size_t)step->job->place.world, sizeof(*step->taken));
	if (!step->shares || !step->matrices || !step->mine || !step->loads || !step->taken)
		return zero_fail(ZERO_E_MEMORY, "no memory for a step of %zu matrices", all);
	step->count = 0;
	for (size_t g = 0; g < count; g++) {
		struct share *share = &step->shares[step->share_count];
		bool known = !zero_is_member(groups[g]);

		for (size_t s = 0; s < step->share_count; s++)
			known = known || step->shares[s].team == groups[g]->team;
		if (known)
			continue;
		*share = (struct share){groups[g]->team, step->matrices + step->count, step->count};
		list_matrices(step, groups, count, share->team, false);
		share->count = step->count - share->count;
		step->share_count++;
		qsort(share->matrices, share->count, sizeof(*share->matrices), by_cost);
		assign_owners(step, share);
	}
	return ZERO_OK;
}

zero_status zero_muon_balance(zero_job *job, size_t *matrices, double *balance)
{
	struct zero_muon_step *step = calloc(1, sizeof(*step));
	double sum = 0, most = 0;
	zero_status status;

	if (!step)
		return zero_fail(ZERO_E_MEMORY, "no memory for a step of Muon");
	step->job = job;
	list_matrices(step, job->model->groups, job->model->made_count, NULL, true);
	status = make_shares(step, job->model->groups, job->model->made_count);
	for (int rank = 0; !status && rank < job->place.world; rank++) {
		sum += step->loads[rank];
		most = step->loads[rank] > most ? step->loads[rank] : most;
	}
	*matrices = step->count;
	*balance = sum > 0 ? most / (sum / job->place.world) : 1;
	zero_muon_free(step);
	return status;
}

static zero_status alloc_buffers(struct zero_muon_step *step)
{
	zero_job *job = step->job;
	zero_status status = ZERO_OK;

	step->owned = calloc(step->owned_capacity + 1, sizeof(*step->owned));
	if (!step->owned)
		return zero_fail(ZERO_E_MEMORY, "no memory for %zu transfers",
				 step->owned_capacity);
	if (step->part_capacity)
		status = job->ops->alloc(job->backend, ZERO_MEM_STAGING,
					 step->part_capacity * sizeof(float), false,
					 (void **)&step->parts);
	if (!status && step->whole_capacity)
		status = job->ops->alloc(job->backend, ZERO_MEM_STAGING,
					 (step->whole_capacity + step->scratch_capacity) *
						 sizeof(float),
					 false, (void **)&step->whole);
	return status;
}

zero_status zero_muon_prepare(zero_job *job, zero_group **groups, size_t count,
			      const zero_muon *muon, struct zero_muon_step **prepared)
{
	struct zero_muon_step *step = calloc(1, sizeof(*step));
	zero_status status;

	*prepared = step;
	if (!step)
		return zero_fail(ZERO_E_MEMORY, "no memory for a step of Muon");
	step->job = job;
	step->muon = muon;
	list_matrices(step, groups, count, NULL, true);
	if (!step->count)
		return ZERO_OK;
	if (!muon)
		return zero_fail(ZERO_E_INVALID,
				 "the job has parameters with `muon`, and zero_adamw.muon is NULL: "
				 "set it, with lr, momentum and weight_decay");
	if (zero_states_staged(job))
		return zero_fail(ZERO_E_UNSUPPORTED,
				 "the job has parameters with `muon` and offload=optimizer: their "
				 "momentum must be on the device, leave offload none");
	status = job->ops->open_gemm(job->backend);
	if (!status)
		status = make_shares(step, groups, count);
	for (size_t s = 0; !status && s < step->share_count; s++)
		make_batches(step, &step->shares[s]);
	return status ? status : alloc_buffers(step);
}

void zero_muon_free(struct zero_muon_step *step)
{
	if (!step)
		return;
	if (step->parts)
		step->job->ops->free(step->job->backend, step->parts);
	if (step->whole)
		step->job->ops->free(step->job->backend, step->whole);
	free(step->shares);
	free(step->matrices);
	free(step->loads);
	free(step->taken);
	free(step->mine);
	free(step->owned);
	free(step);
}

/* ---- the step -------------------------------------------------------------------------------- */

static struct zero_muon_args args_of(const zero_muon *muon, const struct matrix *matrix)
{
	double rows = (double)matrix->rows, columns = (double)matrix->columns, ratio;

	if (muon->rate == ZERO_MUON_MATCH_RMS_ADAMW)
		ratio = 0.2 * sqrt(rows > columns ? rows : columns);
	else
		ratio = sqrt(rows > columns || muon->rate == ZERO_MUON_SPECTRAL ? rows / columns
										: 1);
	return (struct zero_muon_args){
		.lr = (float)((double)(muon->lr * matrix->param->lr_scale) * ratio),
		.decay = muon->lr * matrix->param->lr_scale *
			 (muon->weight_decay * matrix->param->weight_decay),
		.momentum = muon->momentum,
		.nesterov = !muon->plain_momentum,
	};
}

static void step_momentum(const struct zero_muon_step *step, const struct matrix *matrix)
{
	const struct zero_param *param = matrix->param;
	const struct zero_flat *flat = param->flat;
	const struct zero_segment *segment = segment_of(matrix);
	struct part part = stepped_part(matrix);
	size_t stepped, count;

	if (!part.count)
		return;
	zero_stepped_part(param->group, segment, &stepped, &count);
	zero_compute(step->job, ZERO_K_MUON_MOMENTUM,
		     &(struct zero_device_muon){
			     .args = args_of(step->muon, matrix),
			     .state = param->group->step_state,
			     .changed = zero_param_state_at(param, ZERO_SAVED_EXP_AVG,
							    matrix->first + part.first),
			     .from = flat->reduced + segment->state_at +
				     (param->first + matrix->first + part.first - stepped),
			     .out = step->parts + matrix->part_at,
			     .count = part.count});
}

static void step_values(const struct zero_muon_step *step, const struct matrix *matrix)
{
	const struct zero_param *param = matrix->param;
	const struct zero_segment *segment = segment_of(matrix);
	struct part part = stepped_part(matrix);
	bool is_f32 = segment->dtype == ZERO_F32;
	size_t first = matrix->first + part.first;
	char *stored;

	if (!part.count)
		return;
	stored = zero_stored_at(param->flat, segment, param->first + first);
	zero_compute(
		step->job, ZERO_K_MUON_UPDATE,
		&(struct zero_device_muon){
			.args = args_of(step->muon, matrix),
			.state = param->group->step_state,
			.changed = is_f32 ? (float *)(void *)stored
					  : zero_param_state_at(param, ZERO_SAVED_MASTER, first),
			.from = step->parts + matrix->part_at,
			.out = is_f32 ? NULL : stored,
			.low_dtype = segment->dtype,
			.count = part.count});
}

/* Lists this rank's transfers of a matrix to its owner (`to_owner`), or from there. At stage 0 each
   rank has a part in its shard, and steps all. */
static void list_transfers(struct zero_muon_step *step, const struct matrix *matrix, bool to_owner)
{
	const struct zero_rank_info *place = &matrix->param->group->team->place;
	bool all = !to_owner && matrix->param->group->steps_replicated;
	int first, end;

	shards_of(matrix, &first, &end);
	if (all) {
		first = 0;
		end = place->world;
	}
	for (int shard = first; shard < end; shard++) {
		int rank = zero_shard_owner(matrix->param->group, shard);
		struct part part =
			all ? (struct part){0, elements(matrix)} : part_of_shard(matrix, shard);

		if (rank == place->rank)
			step->mine[step->mine_count++] = (struct zero_transfer){
				.rank = matrix->owner,
				.data = step->parts + matrix->part_at +
					(part.first - stepped_part(matrix).first),
				.count = part.count,
			};
		if (matrix->owner == place->rank)
			step->owned[step->owned_count++] = (struct zero_transfer){
				.rank = rank,
				.data = step->whole + matrix->whole_at + part.first,
				.count = part.count,
			};
	}
}

static zero_status transfer(struct zero_muon_step *step, const struct share *share, size_t first,
			    size_t end, bool to_owner)
{
	struct zero_op op = {.kind = ZERO_OP_ALL_TO_ALL, .from = ZERO_F32};
	struct zero_work *work;
	zero_status status;

	step->mine_count = step->owned_count = 0;
	for (size_t i = first; i < end; i++)
		list_transfers(step, &share->matrices[i], to_owner);
	op.sends = to_owner ? step->mine : step->owned;
	op.send_count = to_owner ? step->mine_count : step->owned_count;
	op.receives = to_owner ? step->owned : step->mine;
	op.receive_count = to_owner ? step->owned_count : step->mine_count;
	status = zero_submit(share->team, ZERO_OK, &op, 1, false, true, &work, ZERO_WORK_STEP, NULL,
			     "%s of matrices %zu to %zu", to_owner ? "momentum" : "update", first,
			     end);
	return status ? status : zero_work_wait(step->job, &work);
}

static zero_status orthogonalise(const struct zero_muon_step *step, const struct matrix *matrix)
{
	const zero_muon *muon = step->muon;
	zero_job *job = step->job;
	const float *set = muon->coefficients;
	bool usual = set[0] == 0 && set[1] == 0 && set[2] == 0;
	const struct zero_newton_schulz rule = {
		.a = usual ? 3.4445f : set[0],
		.b = usual ? -4.7750f : set[1],
		.c = usual ? 2.0315f : set[2],
		.eps = muon->eps > 0 ? muon->eps : 1e-7f,
		.steps = muon->steps ? muon->steps : 5,
	};

	return job->ops->orthogonalise(job->backend, &rule, step->whole + matrix->whole_at,
				       matrix->rows, matrix->columns,
				       step->whole + step->whole_capacity);
}

static zero_status run_batch(struct zero_muon_step *step, const struct share *share, size_t first,
			     size_t end)
{
	zero_status status, one;

	for (size_t i = first; i < end; i++) {
		zero_hooks_before_change(step->job, share->matrices[i].param->group, true);
		step_momentum(step, &share->matrices[i]);
	}
	status = transfer(step, share, first, end, true);
	for (size_t i = first; !status && i < end; i++)
		if (share->matrices[i].owner == share->team->place.rank)
			status = orthogonalise(step, &share->matrices[i]);
	one = transfer(step, share, first, end, false);
	status = status ? status : one;
	for (size_t i = first; !status && i < end; i++)
		step_values(step, &share->matrices[i]);
	return status;
}

zero_status zero_muon_run(struct zero_muon_step *step)
{
	zero_status status = ZERO_OK, one;

	for (size_t s = 0; s < step->share_count; s++) {
		const struct share *share = &step->shares[s];

		for (size_t first = 0, end; first < share->count; first = end) {
			for (end = first + 1;
			     end < share->count && !share->matrices[end].begins_batch;)
				end++;
			one = run_batch(step, share, first, end);
			status = status ? status : one;
		}
	}
	return status;
}
