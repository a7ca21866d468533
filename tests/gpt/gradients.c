/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradients.c - gpt.c's backward pass against finite differences of an independent forward pass.
 *
 * The forward pass here is written once more, in f64, straight from the formulas and without a
 * BLAS, so that a difference is an error in gpt.c and not a rounding.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "zero.h"

/* gpt.c as it is, but that gradients stay in this rank's buffers, where they can be read. */
static zero_status keep_gradients(zero_group *group)
{
	(void)group;
	return ZERO_OK;
}
#define zero_reduce keep_gradients
#define main        gpt_main
#include "../../examples/gpt.c"
#undef main
#undef zero_reduce

/* Sizes that are no multiples of lanes or strips, and a sequence of more than one strip of 64. */
enum { LAYERS = 2, HEADS = 3, DIM = 24, SEQ = 64 + 7, VOCAB_SIZE = 37, BATCH = 2 };
enum { ROWS = BATCH * SEQ, CHECKED = 12 };

/* The parameters in f64. */
static double *wte[1], *ends[END_TENSORS], *blocks[LAYERS][BLOCK_TENSORS];

static void linear(double *out, const double *in, const double *w, const double *bias, int inputs,
		   int outputs)
{
	for (int o = 0; o < outputs; o++) {
		out[o] = bias[o];
		for (int i = 0; i < inputs; i++)
			out[o] += in[i] * w[i * outputs + o];
	}
}

static void layernorm(double *out, const double *x, const double *w, const double *bias)
{
	double mean = 0, variance = 0;

	for (int i = 0; i < DIM; i++)
		mean += x[i] / DIM;
	for (int i = 0; i < DIM; i++)
		variance += (x[i] - mean) * (x[i] - mean) / DIM;
	for (int i = 0; i < DIM; i++)
		out[i] = (x[i] - mean) / sqrt(variance + 1e-5) * w[i] + bias[i];
}

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/* out [DIM] for position t, from queries, keys and values [SEQ, 3 * DIM] of one sequence. */
static void attend(double *out, double qkv[SEQ][3 * DIM], int t)
{
	int size = DIM / HEADS;

	for (int h = 0; h < HEADS; h++) {
		double p[SEQ], sum = 0, *o = out + h * size;

		for (int j = 0; j <= t; j++) {
			p[j] = 0;
			for (int i = 0; i < size; i++)
				p[j] += qkv[t][h * size + i] * qkv[j][DIM + h * size + i];
			p[j] = exp(p[j] / sqrt(size));
			sum += p[j];
		}
		for (int i = 0; i < size; i++) {
			o[i] = 0;
			for (int j = 0; j <= t; j++)
				o[i] += p[j] / sum * qkv[j][2 * DIM + h * size + i];
		}
	}
}

static void transform(double x[SEQ][DIM], double *const w[BLOCK_TENSORS])
{
	double qkv[SEQ][3 * DIM], norm[DIM], wide[4 * DIM], part[DIM], attended[DIM];

	for (int t = 0; t < SEQ; t++) {
		layernorm(norm, x[t], w[LN_1_W], w[LN_1_B]);
		linear(qkv[t], norm, w[ATTN_W], w[ATTN_B], DIM, 3 * DIM);
	}
	for (int t = 0; t < SEQ; t++) {
		attend(attended, qkv, t);
		linear(part, attended, w[ATTN_PROJ_W], w[ATTN_PROJ_B], DIM, DIM);
		for (int i = 0; i < DIM; i++)
			x[t][i] += part[i];
		layernorm(norm, x[t], w[LN_2_W], w[LN_2_B]);
		linear(wide, norm, w[FC_W], w[FC_B], DIM, 4 * DIM);
		for (int i = 0; i < 4 * DIM; i++)
			wide[i] = gelu(wide[i]);
		linear(part, wide, w[MLP_PROJ_W], w[MLP_PROJ_B], 4 * DIM, DIM);
		for (int i = 0; i < DIM; i++)
			x[t][i] += part[i];
	}
}

/* The mean loss of tokens [BATCH, SEQ + 1]. */
static double reference(const uint32_t *tokens)
{
	double x[SEQ][DIM], norm[DIM], loss = 0;

	for (int b = 0; b < BATCH; b++, tokens += SEQ + 1) {
		for (int t = 0; t < SEQ; t++)
			for (int i = 0; i < DIM; i++)
				x[t][i] = wte[0][tokens[t] * DIM + i] + ends[WPE][t * DIM + i];
		for (int l = 0; l < LAYERS; l++)
			transform(x, blocks[l]);
		for (int t = 0; t < SEQ; t++) {
			double sum = 0, logit = 0;

			layernorm(norm, x[t], ends[LN_F_W], ends[LN_F_B]);
			for (uint32_t v = 0; v < VOCAB_SIZE; v++) {
				double dot = 0;

				for (int i = 0; i < DIM; i++)
					dot += norm[i] * wte[0][v * DIM + i];
				sum += exp(dot);
				logit = v == tokens[t + 1] ? dot : logit;
			}
			loss += (log(sum) - logit) / ROWS;
		}
	}
	return loss;
}

/* The tensor's values or gradients, wherever they are. */
static float *copy_of(const float *tensor, size_t count)
{
	float *copy = malloc(count * sizeof(*copy));

	copy_out(copy, tensor, count * sizeof(*copy));
	return copy;
}

static void check(zero_status status)
{
	if (status) {
		fprintf(stderr, "FAIL: %s\n", zero_last_error());
		exit(1);
	}
}

/* Larger values than training begins with, lest some gradient be too small to be seen. */
static void fill(struct layer *layer, double **copy)
{
	for (int i = 0; i < layer->count; i++) {
		zero_source source = zero_from_normal(layer->spec[i].init == ONES ? 1 : 0, 0.25, 7);

		check(zero_load(layer->param[i], &source));
	}
	check(zero_gather(layer->group, ZERO_F32));
	for (int i = 0; i < layer->count; i++) {
		size_t count = zero_param_numel(layer->param[i]);
		float *values = copy_of(value(layer, i), count);

		copy[i] = malloc(count * sizeof(double));
		for (size_t e = 0; e < count; e++)
			copy[i][e] = values[e];
		free(values);
	}
	check(zero_release(layer->group));
}

/* Some elements of each tensor. Returns how many are wrong. */
static int compare(struct layer *layer, double **copy, const uint32_t *tokens, double *worst)
{
	const double step = 1e-5;
	int wrong = 0;

	for (int i = 0; i < layer->count; i++) {
		size_t count = zero_param_numel(layer->param[i]);
		float *analytic = copy_of(gradient(layer, i), count);
		double scale = 0;

		for (size_t e = 0; e < count; e++)
			scale = fmax(scale, fabs(analytic[e]));
		for (size_t c = 0; c < CHECKED; c++) {
			size_t e = (c * 7919 + (size_t)i) % count;
			double old = copy[i][e], up, down, numeric, error;

			copy[i][e] = old + step;
			up = reference(tokens);
			copy[i][e] = old - step;
			down = reference(tokens);
			copy[i][e] = old;
			numeric = (up - down) / (2 * step);
			error = fabs(analytic[e] - numeric) / (scale + 1e-6);
			*worst = fmax(*worst, error);
			if (error < 2e-5)
				continue;
			wrong++;
			printf("%s[%zu]: %.9g, but differences say %.9g\n",
			       zero_param_name(layer->param[i]), e, analytic[e], numeric);
		}
		free(analytic);
	}
	return wrong;
}

int main(void)
{
	struct model m = {.config = {LAYERS, HEADS, DIM, SEQ, VOCAB_SIZE, 1e-5}};
	struct layer block[LAYERS] = {0};
	struct activations acts[LAYERS];
	zero_run run;
	uint32_t tokens[BATCH * (SEQ + 1)];
	double loss, worst = 0, exact;
	int wrong;

	m.block = block;
	m.acts = acts;
	m.runs = &run;
	check(zero_open(&(zero_options){.settings = math_settings}, &m.job));
	check(model_declare(&m, "", &default_flags));
	model_buffers(&m, ROWS, SEQ);
	check(agree(&m));
	fill(&m.wte, wte);
	fill(&m.ends, ends);
	for (int l = 0; l < LAYERS; l++)
		fill(&m.block[l], blocks[l]);
	m.head_rows = ROWS / 3; /* the logits in four goes, the last a short one */
	for (size_t i = 0; i < BATCH * (SEQ + 1); i++)
		tokens[i] = (uint32_t)(draw(1, i) * VOCAB_SIZE);

	check(pass(&m, tokens, BATCH, SEQ, true, &loss));
	check(agree(&m));
	exact = reference(tokens);
	wrong = compare(&m.wte, wte, tokens, &worst);
	wrong += compare(&m.ends, ends, tokens, &worst);
	for (int l = 0; l < LAYERS; l++)
		wrong += compare(&m.block[l], blocks[l], tokens, &worst);
	printf("loss %.9f, reference %.9f; worst gradient off by %.2g of its tensor's largest\n",
	       loss, exact, worst);
	if (!(fabs(loss - exact) < 1e-5 * exact)) {
		fprintf(stderr, "FAIL: loss %.9f is not %.9f\n", loss, exact);
		wrong++;
	}
	if (!(worst < 2e-5))
		wrong++;
	math_close(m.job, m.arena);
	zero_close(m.job);
	free(wte[0]);
	for (int i = 0; i < END_TENSORS; i++)
		free(ends[i]);
	for (int l = 0; l < LAYERS; l++)
		for (int i = 0; i < BLOCK_TENSORS; i++)
			free(blocks[l][i]);
	return wrong ? 1 : 0;
}
