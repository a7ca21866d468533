/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels by name, see kernels/kernels.h. Each calls the host's kernel with the same struct. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/step_rule.h"
#include "cuda.h"
#include "../../kernels/kernels.h"

static const struct zero_kernels *host(void)
{
	return zero_kernels_choose("auto");
}

static bool is_short_float(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16;
}

/* Poisons the output, unless an input is there, too. */
static void late(struct double_op *op, void *out, size_t bytes, const void *in, size_t in_bytes)
{
	const char *to = out, *from = in;

	if (to + bytes <= from || from + in_bytes <= to)
		double_write_late(op->stream, out, bytes);
}

static bool cast_memory(struct double_op *op, void *arguments)
{
	struct zero_device_cast *a = arguments;

	if (a->to != a->from && (!is_short_float(a->to) || !is_short_float(a->from)))
		return false;
	double_access_add(op, &a->in, a->count, zero_dtype_size(a->from), false);
	double_access_add(op, &a->out, a->count, zero_dtype_size(a->to), true);
	return true;
}

static CUresult run_cast(struct double_op *op, void *arguments)
{
	const struct zero_device_cast *a = arguments;

	late(op, a->out, a->count * zero_dtype_size(a->to), a->in,
	     a->count * zero_dtype_size(a->from));
	host()->cast(a->to, a->out, a->from, a->in, a->count);
	return CUDA_SUCCESS;
}

static bool sum_memory(struct double_op *op, void *arguments)
{
	struct zero_device_sum *a = arguments;
	size_t size = zero_dtype_size(a->from), rows;

	if (!is_short_float(a->from) || a->n < 1 || a->own_at < 0 || a->own_at > a->n ||
	    (a->first && a->accumulate))
		return false;
	rows = (size_t)a->n - (a->own_at < a->n);
	if (a->first)
		double_access_add(op, &a->first, a->count, sizeof(float), false);
	if (a->own_at < a->n)
		double_access_add(op, &a->own, a->count, size, false);
	double_access_add(op, &a->others, rows * a->count, size, false);
	double_access_add(op, &a->out, a->count, sizeof(float), true);
	return true;
}

static CUresult run_sum(struct double_op *op, void *arguments)
{
	const struct zero_device_sum *a = arguments;
	const void **in = double_new((size_t)a->n, sizeof(*in));
	const char *row = a->others;

	(void)op;
	for (int k = 0; k < a->n; k++) {
		in[k] = k == a->own_at ? a->own : row;
		row += k == a->own_at ? 0 : a->count * zero_dtype_size(a->from);
	}
	if (a->first) {
		memmove(a->out, a->first, a->count * sizeof(float));
		for (int k = 0; k < a->n; k++)
			host()->sum(a->out, a->from, &in[k], 1, a->count, true);
	} else {
		host()->sum(a->out, a->from, in, a->n, a->count, a->accumulate);
	}
	free(in);
	return CUDA_SUCCESS;
}

static bool adamw_memory(struct double_op *op, void *arguments)
{
	struct zero_device_adamw *a = arguments;

	if (a->low && !is_short_float(a->low_dtype))
		return false;
	if (a->state)
		double_access_add(op, &a->state, 1, sizeof(*a->state), false);
	double_access_add(op, &a->g, a->count, sizeof(float), false);
	double_access_add(op, &a->p, a->count, sizeof(float), true);
	if (a->moments.m) {
		double_access_add(op, &a->moments.m, a->count, sizeof(float), true);
		double_access_add(op, &a->moments.v, a->count, sizeof(float), true);
	} else {
		size_t blocks = (a->count + ZERO_BLOCK - 1) / ZERO_BLOCK;

		double_access_add(op, &a->moments.m_codes, a->count, 1, true);
		double_access_add(op, &a->moments.v_codes, a->count, 1, true);
		double_access_add(op, &a->moments.m_absmax, blocks, sizeof(float), true);
		double_access_add(op, &a->moments.v_absmax, blocks, sizeof(float), true);
	}
	if (a->low)
		double_access_add(op, &a->low, a->count, zero_dtype_size(a->low_dtype), true);
	return true;
}

static CUresult run_adamw(struct double_op *op, void *arguments)
{
	const struct zero_device_adamw *a = arguments;
	struct zero_adamw_args args = a->args;

	(void)op;
	if (a->state && a->state->skipped)
		return CUDA_SUCCESS;
	if (a->state)
		args = zero_adamw_args_of_step(&a->args, a->state);
	host()->adamw(&args, a->p, a->moments.m, a->moments.v, a->g, a->low, a->low_dtype,
		      a->count);
	return CUDA_SUCCESS;
}

/* In blocks, as the device does. */
static CUresult run_adamw_8bit(struct double_op *op, void *arguments)
{
	const struct zero_device_adamw *a = arguments;
	struct zero_adamw_args args = a->args;

	(void)op;
	if (a->state && a->state->skipped)
		return CUDA_SUCCESS;
	if (a->state)
		args = zero_adamw_args_of_step(&a->args, a->state);
	for (size_t i = 0; i < a->count; i += ZERO_BLOCK) {
		size_t now = a->count - i < ZERO_BLOCK ? a->count - i : (size_t)ZERO_BLOCK;
		size_t b = i / ZERO_BLOCK, low_at = i * zero_dtype_size(a->low_dtype);
		const struct zero_moments *at = &a->moments;
		float m[ZERO_BLOCK], v[ZERO_BLOCK];

		host()->dequantize(&a->maps[true], m, at->m_codes + i, at->m_absmax + b, now);
		host()->dequantize(&a->maps[false], v, at->v_codes + i, at->v_absmax + b, now);
		host()->adamw(&args, a->p + i, m, v, a->g + i,
			      a->low ? (char *)a->low + low_at : NULL, a->low_dtype, now);
		host()->quantize(&a->maps[true], at->m_codes + i, at->m_absmax + b, m, now);
		host()->quantize(&a->maps[false], at->v_codes + i, at->v_absmax + b, v, now);
	}
	return CUDA_SUCCESS;
}

static bool muon_memory(struct double_op *op, void *arguments)
{
	struct zero_device_muon *a = arguments;

	double_access_add(op, &a->state, 1, sizeof(*a->state), false);
	double_access_add(op, &a->from, a->count, sizeof(float), false);
	double_access_add(op, &a->changed, a->count, sizeof(float), true);
	return true;
}

static bool muon_momentum_memory(struct double_op *op, void *arguments)
{
	struct zero_device_muon *a = arguments;

	double_access_add(op, &a->out, a->count, sizeof(float), true);
	return muon_memory(op, arguments);
}

static CUresult run_muon_momentum(struct double_op *op, void *arguments)
{
	const struct zero_device_muon *a = arguments;
	struct zero_muon_args args = a->args;

	if (a->state->skipped)
		return CUDA_SUCCESS;
	args.scale = a->state->scale;
	late(op, a->out, a->count * sizeof(float), a->from, a->count * sizeof(float));
	host()->muon_momentum(&args, a->changed, a->from, a->out, a->count);
	return CUDA_SUCCESS;
}

static bool muon_update_memory(struct double_op *op, void *arguments)
{
	struct zero_device_muon *a = arguments;

	if (a->out && !is_short_float(a->low_dtype))
		return false;
	if (a->out)
		double_access_add(op, &a->out, a->count, zero_dtype_size(a->low_dtype), true);
	return muon_memory(op, arguments);
}

static CUresult run_muon_update(struct double_op *op, void *arguments)
{
	const struct zero_device_muon *a = arguments;

	(void)op;
	if (!a->state->skipped)
		host()->muon_update(&a->args, a->changed, a->from, a->out, a->low_dtype, a->count);
	return CUDA_SUCCESS;
}

static bool normalise_memory(struct double_op *op, void *arguments)
{
	struct zero_device_normalise *a = arguments;

	double_access_add(op, &a->sum, 1, sizeof(double), false);
	double_access_add(op, &a->x, a->count, sizeof(float), true);
	return true;
}

static CUresult run_normalise(struct double_op *op, void *arguments)
{
	const struct zero_device_normalise *a = arguments;
	double norm = sqrt(*a->sum);
	float factor = (float)(1 / (norm > (double)a->eps ? norm : (double)a->eps));

	(void)op;
	for (size_t i = 0; i < a->count; i++)
		a->x[i] *= factor;
	return CUDA_SUCCESS;
}

static bool norm2_memory(struct double_op *op, void *arguments)
{
	struct zero_device_norm2 *a = arguments;

	double_access_add(op, &a->x, a->count, sizeof(float), false);
	double_access_add(op, &a->parts, zero_norm2_parts(a->count), sizeof(double), true);
	return true;
}

/* Each launched block writes one part. */
static CUresult run_norm2(struct double_op *op, void *arguments)
{
	const struct zero_device_norm2 *a = arguments;
	const size_t parts = zero_norm2_parts(a->count);
	const size_t length = parts ? (a->count + parts - 1) / parts : 0;

	for (size_t b = 0; b < parts && b < op->grid; b++) {
		size_t first = b * length < a->count ? b * length : a->count;
		size_t count = a->count - first < length ? a->count - first : length;

		a->parts[b] = host()->norm2(a->x + first, count);
	}
	return CUDA_SUCCESS;
}

static bool norm2_fold_memory(struct double_op *op, void *arguments)
{
	struct zero_device_norm2_fold *a = arguments;

	if (op->grid != 1)
		return false;
	double_access_add(op, &a->parts, a->count, sizeof(double), false);
	double_access_add(op, &a->sum, 1, sizeof(double), true);
	return true;
}

static CUresult run_norm2_fold(struct double_op *op, void *arguments)
{
	const struct zero_device_norm2_fold *a = arguments;
	double total = 0;

	(void)op;
	for (size_t i = 0; i < a->count; i++)
		total += a->parts[i];
	if (a->accumulate)
		total = *a->sum + total;
	*a->sum = isnan(total) ? (double)NAN : total;
	return CUDA_SUCCESS;
}

static bool step_rule_memory(struct double_op *op, void *arguments)
{
	struct zero_step_rule *a = arguments;

	if (op->grid != 1)
		return false;
	double_access_add(op, &a->norms, (size_t)a->world, sizeof(double), false);
	double_access_add(op, &a->state, 1, sizeof(*a->state), true);
	return true;
}

static CUresult run_step_rule(struct double_op *op, void *arguments)
{
	(void)op;
	zero_step_rule_apply(arguments);
	return CUDA_SUCCESS;
}

static bool group_rule_memory(struct double_op *op, void *arguments)
{
	struct zero_group_rule *a = arguments;

	double_access_add(op, &a->state, 1, sizeof(*a->state), false);
	double_access_add(op, &a->groups, a->count, sizeof(*a->groups), true);
	return true;
}

static CUresult run_group_rule(struct double_op *op, void *arguments)
{
	const struct zero_group_rule *a = arguments;

	(void)op;
	for (size_t i = 0; i < a->count; i++)
		zero_group_rule_apply(a, &a->groups[i]);
	return CUDA_SUCCESS;
}

static bool fill_memory(struct double_op *op, void *arguments)
{
	struct zero_device_fill *a = arguments;

	if (a->size != 1 && a->size != 2 && a->size != 4 && a->size != 8)
		return false;
	double_access_add(op, &a->out, a->count, a->size, true);
	return true;
}

static CUresult run_fill(struct double_op *op, void *arguments)
{
	const struct zero_device_fill *a = arguments;

	double_write_late(op->stream, a->out, a->count * a->size);
	for (size_t i = 0; i < a->count; i++)
		memcpy((char *)a->out + i * a->size, &a->pattern, a->size);
	return CUDA_SUCCESS;
}

static bool random_memory(struct double_op *op, void *arguments)
{
	struct zero_device_random *a = arguments;

	if (!is_short_float(a->dtype) && a->dtype != ZERO_F64)
		return false;
	double_access_add(op, &a->out, a->count, zero_dtype_size(a->dtype), true);
	return true;
}

static CUresult run_uniform(struct double_op *op, void *arguments)
{
	const struct zero_device_random *a = arguments;

	double_write_late(op->stream, a->out, a->count * zero_dtype_size(a->dtype));
	host()->fill_uniform(a->dtype, a->out, a->first, a->count, a->a, a->b, a->seed, a->stream);
	return CUDA_SUCCESS;
}

static CUresult run_normal(struct double_op *op, void *arguments)
{
	const struct zero_device_random *a = arguments;

	double_write_late(op->stream, a->out, a->count * zero_dtype_size(a->dtype));
	host()->fill_normal(a->dtype, a->out, a->first, a->count, a->a, a->b, a->seed, a->stream);
	return CUDA_SUCCESS;
}

static bool copy_many_memory(struct double_op *op, void *arguments)
{
	struct zero_device_copy_many *a = arguments;

	if (a->count == SIZE_MAX)
		return false;
	double_access_add(op, &a->pieces, a->count, sizeof(*a->pieces), false);
	double_access_add(op, &a->starts, a->count + 1, sizeof(*a->starts), false);
	for (size_t i = 0; i < op->access_count; i++)
		op->accesses[i].align = sizeof(uint64_t);
	return true;
}

/* Copies the tiles that `starts` assigns to each piece. */
static size_t bytes_of(const struct zero_device_copy_many *a, size_t i)
{
	uint64_t tiles = a->starts[i + 1] > a->starts[i] ? a->starts[i + 1] - a->starts[i] : 0;

	return tiles >= a->pieces[i].bytes / ZERO_COPY_TILE + 1 ? a->pieces[i].bytes
	       : tiles * ZERO_COPY_TILE < a->pieces[i].bytes    ? tiles * ZERO_COPY_TILE
								: a->pieces[i].bytes;
}

/* The copies are known only when the kernel runs, because earlier operations write the tables. */
static CUresult run_copy_many(struct double_op *op, void *arguments)
{
	const struct zero_device_copy_many *a = arguments;
	struct zero_device_piece *pieces = double_new(a->count + 1, sizeof(*pieces));
	size_t first = op->access_count;
	CUresult result;

	for (size_t i = 0; i < a->count; i++) {
		pieces[i] = a->pieces[i];
		pieces[i].bytes = bytes_of(a, i);
		double_access_add(op, &pieces[i].from, pieces[i].bytes, 1, false);
		double_access_add(op, &pieces[i].to, pieces[i].bytes, 1, true);
	}
	double_lock();
	result = double_access(op, first);
	double_unlock();
	for (size_t i = 0; !result && i < a->count; i++)
		if (pieces[i].bytes) {
			double_write_late(op->stream, pieces[i].to, pieces[i].bytes);
			memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
		}
	free(pieces);
	return result;
}

static bool pack_memory(struct double_op *op, void *arguments)
{
	struct zero_device_pack *a = arguments;

	double_access_add(op, &a->out, a->count, a->bytes, true);
	if (a->order)
		double_access_add(op, &a->order, a->count, sizeof(*a->order), false);
	op->accesses[0].align = 1;
	return a->count && a->bytes;
}

static CUresult run_pack(struct double_op *op, void *arguments)
{
	const struct zero_device_pack *a = arguments;
	const char **from = double_new(a->count, sizeof(*from));
	size_t first = op->access_count;
	CUresult result;

	for (size_t k = 0; k < a->count; k++) {
		from[k] = (const char *)a->in + (a->order ? (size_t)a->order[k] : k) * a->stride;
		double_access_add(op, &from[k], a->bytes, 1, false);
	}
	double_lock();
	result = double_access(op, first);
	double_unlock();
	double_write_late(op->stream, a->out, a->count * a->bytes);
	for (size_t k = 0; !result && k < a->count; k++)
		memcpy((char *)a->out + k * a->bytes, from[k], a->bytes);
	free(from);
	return result;
}

const struct double_kernel *double_kernel_find(const char *name)
{
	static const struct double_kernel kernels[] = {
		{"zero_device_cast", sizeof(struct zero_device_cast), cast_memory, run_cast},
		{"zero_device_sum", sizeof(struct zero_device_sum), sum_memory, run_sum},
		{"zero_device_adamw", sizeof(struct zero_device_adamw), adamw_memory, run_adamw},
		{"zero_device_adamw_8bit", sizeof(struct zero_device_adamw), adamw_memory,
		 run_adamw_8bit},
		{"zero_device_muon_momentum", sizeof(struct zero_device_muon), muon_momentum_memory,
		 run_muon_momentum},
		{"zero_device_muon_update", sizeof(struct zero_device_muon), muon_update_memory,
		 run_muon_update},
		{"zero_device_normalise", sizeof(struct zero_device_normalise), normalise_memory,
		 run_normalise},
		{"zero_device_norm2", sizeof(struct zero_device_norm2), norm2_memory, run_norm2},
		{"zero_device_norm2_fold", sizeof(struct zero_device_norm2_fold), norm2_fold_memory,
		 run_norm2_fold},
		{"zero_device_step_rule", sizeof(struct zero_step_rule), step_rule_memory,
		 run_step_rule},
		{"zero_device_group_rule", sizeof(struct zero_group_rule), group_rule_memory,
		 run_group_rule},
		{"zero_device_fill", sizeof(struct zero_device_fill), fill_memory, run_fill},
		{"zero_device_uniform", sizeof(struct zero_device_random), random_memory,
		 run_uniform},
		{"zero_device_normal", sizeof(struct zero_device_random), random_memory,
		 run_normal},
		{"zero_device_copy_many", sizeof(struct zero_device_copy_many), copy_many_memory,
		 run_copy_many},
		{"zero_device_pack", sizeof(struct zero_device_pack), pack_memory, run_pack},
	};

	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
		if (!strcmp(kernels[i].name, name))
			return &kernels[i];
	return NULL;
}
