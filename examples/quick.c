/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A matrix whose values, gradients and moments of AdamW are sharded over the ranks, in three steps:
 *
 *	cc quick.c $(pkg-config --cflags --libs zero) -o quick && zerorun -n 2 ./quick
 */
#include <stdio.h>
#include <zero.h>

int main(void)
{
	size_t shape[2] = {1024, 1024};
	zero_param_spec spec = {
		.name = "w", .dtype = ZERO_F32, .ndim = 2, .shape = shape, .trainable = true};
	zero_adamw adamw = {
		.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.01f};
	zero_source normal = zero_from_normal(0, 0.02, 1);
	zero_options options = {.settings = "backend=host"}; /* this program computes on the CPU */
	zero_job *job;
	zero_group *layer;
	zero_param *w;

	if (zero_open(&options, &job) || zero_group_new(job, "layer", NULL, &layer) ||
	    zero_param_new(layer, &spec, &w) || zero_layout(job) || zero_load(w, &normal))
		return fprintf(stderr, "%s\n", zero_last_error()), 1;
	for (int step = 0; step < 3; step++) {
		zero_step_result result;
		if (zero_gather(layer, ZERO_DTYPE_PARAM))
			return fprintf(stderr, "%s\n", zero_last_error()), 1;
		/* The whole matrix, until it is released. */
		float *x = zero_data(w), *g = zero_gradient(w);
		for (size_t i = 0; g && i < shape[0] * shape[1]; i++)
			g[i] += x[i];
		if (zero_release(layer) || zero_reduce(layer) || zero_step(job, &adamw, &result))
			return fprintf(stderr, "%s\n", zero_last_error()), 1;
		if (zero_rank(job) == 0)
			printf("step %d: gradient norm %.3f\n", step, result.grad_norm);
	}
	return zero_close(job);
}
