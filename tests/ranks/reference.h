/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model's values must be, in plain arrays of one process. Written from the headers alone: no
 * code of the library is used, so that an error there is not repeated here.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "zero.h"

struct ref_param {
	zero_dtype dtype;
	bool trainable;
	float weight_decay, lr_scale;
	size_t count;
	int world;
	unsigned char *values;   /* [count] of dtype */
	unsigned char *exported; /* what they were at the last export */
	/* Of a trainable parameter, each [count]. */
	float *master; /* the values in f32; those of a 16-bit type are rounded ones */
	float *m, *v;
	int team; /* ranks that reduce together, and then their sums over the teams; 0: all */
	float *team_sums; /* [world / team][count] */
	float *sums;
	float **pending; /* [world][count]: each rank's gradient since its last reduce */
};

/* ---- elements -------------------------------------------------------------------------------- */

/* Of f32, f16 or bf16. */
float ref_widen(zero_dtype dtype, const void *element);
/* To the nearest of these types, ties to even. */
void ref_narrow(zero_dtype dtype, double value, void *element);
/* Between these types, or a copy. */
void ref_cast(zero_dtype to, void *out, zero_dtype from, const void *in, size_t count);
/* out[columns][rows] is in[rows][columns], turned. From a real type to another one, or from an
   integer to one that is wider, or a copy; one row or column is not turned. */
void ref_convert(zero_dtype to, void *out, zero_dtype from, const void *in, size_t rows,
		 size_t columns);
/* The first element of which the bits differ, or count. Any NaNs of one sign are equal. */
size_t ref_difference(zero_dtype dtype, const void *a, const void *b, size_t count);
void ref_constant(zero_dtype dtype, void *out, size_t count, double value);
/* Element i of the parameter `name`, from a random source of a float type: before it is rounded. */
double ref_random(const zero_source *source, zero_dtype dtype, const char *name, size_t i);
/* Whether `element` is that value, within what rounding may do. */
bool ref_is_near(const zero_source *source, zero_dtype dtype, const void *element, double want);

/* ---- parameters ------------------------------------------------------------------------------ */

/* Allocates the arrays, zero; what describes the parameter is filled in. False: no memory. */
bool ref_new(struct ref_param *param);
void ref_free(struct ref_param *param);
/* `values` are new: the masters follow, the moments stay. */
void ref_loaded(struct ref_param *param);
/* Pending gradients are folded in rank order and become their team's sums, or are added to them;
   and these in the order of the teams. What is folded is `rounded` once, for f32 not at all. */
void ref_reduce(struct ref_param *param, bool accumulate, zero_dtype rounded);
void ref_drop_pending(struct ref_param *param);
double ref_norm2(const struct ref_param *param);
/* Step number `step`, from 1; the sums are multiplied by `scale` first. */
void ref_step(struct ref_param *param, const zero_adamw *adamw, float scale, uint64_t step);

#endif
