/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_math.h - the layers of GPT-2 for gpt.c, forward and backward, in f32, with matrix products by
 * BLAS. Nothing here depends on ranks or shards: functions read and write plain arrays.
 * gpt_device.h declares the same functions for a GPU.
 *
 * Matrices are row-major, and a row is one token. Sums over a row use a fixed number of lanes, so
 * that they vectorise and give the same bits with every width of the machine's vectors.
 */
#ifndef GPT_MATH_H
#define GPT_MATH_H

#include <cblas.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "zero.h"

enum { LANES = 16 };

/* Parameters and gradients must be in host memory. */
static const char *const math_settings = "backend=host";

static char math_sentence[128];

/* Returns the first error of the functions below, or NULL. */
static const char *math_error(void)
{
	return math_sentence[0] ? math_sentence : NULL;
}

/* Only OpenBLAS has this function. */
void openblas_set_num_threads(int threads) __attribute__((weak));

/* Allocates the memory of all activations, in huge pages if possible. Called first. NULL: no
   memory. */
static float *math_open(zero_job *job, size_t bytes)
{
	void *arena = aligned_alloc(2 << 20, bytes);

	(void)job;
	if (arena)
		madvise(arena, bytes, MADV_HUGEPAGE);
	else
		snprintf(math_sentence, sizeof(math_sentence),
			 "no memory for %zu bytes of activations", bytes);
	/* The ranks already use all cores of the machine. */
	if (openblas_set_num_threads && !getenv("OPENBLAS_NUM_THREADS") &&
	    !getenv("OMP_NUM_THREADS"))
		openblas_set_num_threads(1);
	return arena;
}

static void math_close(zero_job *job, float *arena)
{
	(void)job;
	free(arena);
}

/* Copies from and to host memory. */
static void copy_in(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

static void copy_out(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

static void clear(float *x, size_t n)
{
	memset(x, 0, n * sizeof(*x));
}

/* Returns the time once all work is done. */
static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double in_matmul;

/* Returns the seconds spent in matrix products since the last call, or NaN if not measured. */
static double matmul_seconds(void)
{
	double spent = in_matmul;

	in_matmul = 0;
	return spent;
}

/* c[m, n] = alpha * a[m, k] b[k, n] + beta * c. With `ta` or `tb` that operand is stored
   transposed. */
static void matmul(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a,
		   size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
	double begin = seconds();

	cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
		    (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
	in_matmul += seconds() - begin;
}

/*
 * Returns e^x for -1e6 < x <= 0, with a relative error of about 1e-7, in C that compilers
 * vectorise. libm's function is a call per element, and a step with a vocabulary of 50 thousand
 * needs 50 million of them. x = n ln 2 + r (Cody and Waite 1980); e^r is its Taylor series, and 2^n
 * are the bits of the exponent. NaN stays NaN.
 *
 * Below -55 the result stays at about 1e-24, so that products do not become subnormal numbers,
 * which are slow. Every sum here has a term of 1, beside which it vanishes. The bound is applied to
 * integers, because compilers do not vectorise a comparison of floats that might trap.
 */
static inline float fast_exp(float x)
{
	const float round = 0x1.8p23f; /* a float this large has no fraction: adding it rounds, */
	union {
		float f;
		int32_t bits;
	} n, power;
	float r, e;

	n.f = x * 0x1.715476p+0f + round;        /* and leaves n in the low bits */
	r = x - (n.f - round) * 0x1.62e4p-1f;    /* so few digits that the product is exact ... */
	r = r - (n.f - round) * 0x1.7f7d1cp-20f; /* ... and the rest of ln 2 */
	e = 1.0f / 5040;
	e = e * r + 1.0f / 720;
	e = e * r + 1.0f / 120;
	e = e * r + 1.0f / 24;
	e = e * r + 1.0f / 6;
	e = e * r + 0.5f;
	e = e * r + 1.0f;
	e = e * r + 1.0f;
	power.bits = n.bits - 0x4b400000; /* the bits of `round` */
	power.bits = power.bits < -80 ? -80 : power.bits;
	power.bits = (power.bits + 127) * (1 << 23);
	return e * power.f;
}

static float fold(const float lane[LANES])
{
	float sum[LANES];

	memcpy(sum, lane, sizeof(sum));
	for (int half = LANES / 2; half > 0; half /= 2)
		for (int j = 0; j < half; j++)
			sum[j] += sum[j + half];
	return sum[0];
}

static float row_sum(const float *x, size_t n)
{
	float lane[LANES] = {0}, rest = 0;
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += x[i + j];
	for (; i < n; i++)
		rest += x[i];
	return fold(lane) + rest;
}

static float row_dot(const float *x, const float *y, size_t n)
{
	float lane[LANES] = {0}, rest = 0;
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] += x[i + j] * y[i + j];
	for (; i < n; i++)
		rest += x[i] * y[i];
	return fold(lane) + rest;
}

static float row_max(const float *x, size_t n)
{
	float lane[LANES], max = x[0];
	size_t i = 0;

	for (size_t j = 0; j < LANES; j++)
		lane[j] = x[0];
	for (; i + LANES <= n; i += LANES)
		for (size_t j = 0; j < LANES; j++)
			lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
	for (; i < n; i++)
		max = x[i] > max ? x[i] : max;
	for (size_t j = 0; j < LANES; j++)
		max = lane[j] > max ? lane[j] : max;
	return max;
}

/* The numerators of a softmax: x[i] = e^(x[i] - max). Returns their sum, and the maximum in
   *max. */
static float exp_row(float *x, size_t n, float *max)
{
	float m = row_max(x, n);

	for (size_t i = 0; i < n; i++)
		x[i] = fast_exp(x[i] - m);
	*max = m;
	return row_sum(x, n);
}

/* out is [batch * seq, width], tokens are [batch, seq + 1], and wte has the rows of `count` tokens
   from `first` on: rows of other tokens are left as they are. */
static void embedding_forward(float *out, const float *wte, const float *wpe,
			      const uint32_t *tokens, size_t batch, size_t seq, size_t width,
			      size_t first, size_t count)
{
	for (size_t row = 0; row < batch * seq; row++) {
		size_t t = row % seq, at = tokens[row / seq * (seq + 1) + t] - first;

		for (size_t i = 0; at < count && i < width; i++)
			out[row * width + i] = wte[at * width + i] + wpe[t * width + i];
	}
}

static void embedding_backward(float *dwte, float *dwpe, const float *dout, const uint32_t *tokens,
			       size_t batch, size_t seq, size_t width, size_t first, size_t count)
{
	for (size_t row = 0; row < batch * seq; row++) {
		size_t t = row % seq, at = tokens[row / seq * (seq + 1) + t] - first;

		for (size_t i = 0; at < count && i < width; i++) {
			dwte[at * width + i] += dout[row * width + i];
			dwpe[t * width + i] += dout[row * width + i];
		}
	}
}

/* out = residual + in w + bias. w is [inputs, outputs], and residual may be NULL. */
static void linear_forward(float *out, const float *residual, const float *in, const float *w,
			   const float *bias, size_t rows, size_t inputs, size_t outputs)
{
	for (size_t t = 0; t < rows; t++)
		for (size_t i = 0; i < outputs; i++)
			out[t * outputs + i] =
				residual ? residual[t * outputs + i] + bias[i] : bias[i];
	matmul(false, false, rows, outputs, inputs, 1, in, inputs, w, outputs, 1, out, outputs);
}

/* Writes din. Adds to dw and dbias, as all functions do with gradients of parameters. */
static void linear_backward(float *din, float *dw, float *dbias, const float *dout, const float *in,
			    const float *w, size_t rows, size_t inputs, size_t outputs)
{
	matmul(false, true, rows, inputs, outputs, 1, dout, outputs, w, outputs, 0, din, inputs);
	matmul(true, false, inputs, outputs, rows, 1, in, inputs, dout, outputs, 1, dw, outputs);
	for (size_t t = 0; t < rows; t++)
		for (size_t i = 0; i < outputs; i++)
			dbias[i] += dout[t * outputs + i];
}

/* Ba et al. 2016 (arXiv 1607.06450). Also returns each row's mean and 1 / standard deviation. */
static void layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *w,
			      const float *bias, size_t rows, size_t width, float eps)
{
	for (size_t t = 0; t < rows; t++, x += width, out += width) {
		float m = row_sum(x, width) / (float)width, r;

		for (size_t i = 0; i < width; i++)
			out[i] = x[i] - m;
		r = 1 / sqrtf(row_dot(out, out, width) / (float)width + eps);
		for (size_t i = 0; i < width; i++)
			out[i] = out[i] * r * w[i] + bias[i];
		mean[t] = m;
		rstd[t] = r;
	}
}

/* Adds to dx, because x is also the residual. `scratch` is [2, width]. */
static void layernorm_backward(float *dx, float *dw, float *dbias, const float *dout,
			       const float *x, const float *mean, const float *rstd, const float *w,
			       size_t rows, size_t width, float *scratch)
{
	float *norm = scratch, *dnorm = scratch + width;

	for (size_t t = 0; t < rows; t++, x += width, dx += width, dout += width) {
		float m = mean[t], r = rstd[t], a, b;

		for (size_t i = 0; i < width; i++) {
			norm[i] = (x[i] - m) * r;
			dnorm[i] = dout[i] * w[i];
			dw[i] += dout[i] * norm[i];
			dbias[i] += dout[i];
		}
		a = row_sum(dnorm, width) / (float)width;
		b = row_dot(dnorm, norm, width) / (float)width;
		for (size_t i = 0; i < width; i++)
			dx[i] += r * (dnorm[i] - a - norm[i] * b);
	}
}

/*
 * GELU with tanh (Hendrycks and Gimpel 2016, arXiv 1606.08415) is x times a sigmoid, because
 * (1 + tanh u) / 2 = 1 / (1 + e^-2u). gelu_sigmoid returns the sigmoid and does not overflow.
 */
static const float gelu_a = 0.7978845608f /* sqrt(2 / pi) */, gelu_b = 0.044715f;

static inline float gelu_sigmoid(float x)
{
	float u = gelu_a * (x + gelu_b * x * x * x), e = fast_exp(-2 * fabsf(u));

	return (u < 0 ? e : 1) / (1 + e);
}

static void gelu_forward(float *out, const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = x[i] * gelu_sigmoid(x[i]);
}

/* d is the gradient of the output before, and that of the input after. */
static void gelu_backward(float *d, const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float s = gelu_sigmoid(x[i]), du = gelu_a * (1 + 3 * gelu_b * x[i] * x[i]);

		d[i] *= s + 2 * x[i] * s * (1 - s) * du;
	}
}

/*
 * Causal attention (Vaswani et al. 2017, arXiv 1706.03762), one head after the other, in strips of
 * a few rows: a row needs no columns past its own, and a strip of probabilities stays in cache. The
 * backward pass computes the strips again, which saves storing seq * seq values for every head.
 */
enum { STRIP = 64 };

/* Returns the elements of `scratch` that attention and the backward pass of a layer norm need. */
static size_t scratch_size(size_t seq, size_t width, size_t heads)
{
	(void)heads;
	return 2 * STRIP * seq > 2 * width ? 2 * STRIP * seq : 2 * width;
}

/* One head of one sequence. Its queries, keys and values are columns of qkv [seq, 3 * width]. */
struct head {
	const float *q, *k, *v;
	size_t size, width;
};

static struct head head_at(const float *qkv, size_t width, size_t heads, size_t h)
{
	const float *q = qkv + h * (width / heads);

	return (struct head){q, q + width, q + 2 * width, width / heads, width};
}

/* p[rows, t0 + rows] = softmax(q k^T / sqrt(size)) for rows from t0, 0 right of the diagonal. */
static void attention_strip(float *p, const struct head *h, size_t t0, size_t rows)
{
	size_t columns = t0 + rows, ld = 3 * h->width;

	matmul(false, true, rows, columns, h->size, 1 / sqrtf((float)h->size), h->q + t0 * ld, ld,
	       h->k, ld, 0, p, columns);
	for (size_t i = 0; i < rows; i++) {
		float *row = p + i * columns, max;
		size_t n = t0 + i + 1;
		float scale = 1 / exp_row(row, n, &max);

		for (size_t j = 0; j < n; j++)
			row[j] *= scale;
		memset(row + n, 0, (columns - n) * sizeof(*row));
	}
}

/* out is [batch * seq, width], qkv is [batch * seq, 3 * width], and `strip` is [STRIP, seq]. */
static void attention_forward(float *out, const float *qkv, size_t batch, size_t seq, size_t width,
			      size_t heads, float *strip)
{
	for (size_t i = 0; i < batch * heads; i++) {
		size_t b = i / heads, h = i % heads;
		struct head head = head_at(qkv + b * seq * 3 * width, width, heads, h);
		float *o = out + b * seq * width + h * head.size;

		for (size_t t = 0; t < seq; t += STRIP) {
			size_t rows = seq - t < STRIP ? seq - t : STRIP;

			attention_strip(strip, &head, t, rows);
			matmul(false, false, rows, head.size, t + rows, 1, strip, t + rows, head.v,
			       3 * width, 0, o + t * width, width);
		}
	}
}

/* Writes dqkv. `strip` is [2, STRIP, seq]. */
static void attention_backward(float *dqkv, const float *dout, const float *qkv, size_t batch,
			       size_t seq, size_t width, size_t heads, float *strip)
{
	float *p = strip, *dp = strip + STRIP * seq;
	size_t ld = 3 * width;

	memset(dqkv, 0, batch * seq * ld * sizeof(*dqkv));
	for (size_t i = 0; i < batch * heads; i++) {
		size_t b = i / heads, h = i % heads;
		struct head head = head_at(qkv + b * seq * ld, width, heads, h);
		float *dq = dqkv + b * seq * ld + h * head.size;
		const float *d = dout + b * seq * width + h * head.size;
		float scale = 1 / sqrtf((float)head.size);

		for (size_t t = 0; t < seq; t += STRIP) {
			size_t rows = seq - t < STRIP ? seq - t : STRIP, columns = t + rows;
			const float *dt = d + t * width;

			attention_strip(p, &head, t, rows);
			matmul(true, false, columns, head.size, rows, 1, p, columns, dt, width, 1,
			       dq + 2 * width, ld);
			matmul(false, true, rows, columns, head.size, 1, dt, width, head.v, ld, 0,
			       dp, columns);
			for (size_t r = 0; r < rows; r++) { /* the gradient of the softmax */
				float *pr = p + r * columns, *dr = dp + r * columns;
				float dot = row_dot(pr, dr, columns);

				for (size_t j = 0; j < columns; j++)
					dr[j] = pr[j] * (dr[j] - dot);
			}
			matmul(false, false, rows, head.size, columns, scale, dp, columns, head.k,
			       ld, 0, dq + t * ld, ld);
			matmul(true, false, columns, head.size, rows, scale, dp, columns,
			       head.q + t * ld, ld, 1, dq + width, ld);
		}
	}
}

/* A token's cross-entropy is log(sum) + max - logit: max is the largest of its logits x, sum is the
   sum of e^(x - max), and logit is that of its target. */
struct loss {
	float max, sum, logit;
};

/* Adds logits to a loss (Milakov and Gimelshein 2018, arXiv 1805.02867), see cross_entropy(). The
   target's logit is number `at`, which is not below `count` if it is not among these. */
static void token_loss(struct loss *loss, float *logits, size_t count, size_t at, bool known,
		       float scale)
{
	float logit = at < count ? logits[at] : 0, max = loss->max, factor;

	if (known) {
		for (size_t i = 0; i < count; i++)
			logits[i] = fast_exp(logits[i] - max);
	} else {
		float sum = exp_row(logits, count, &max), most = fmaxf(loss->max, max);

		loss->sum = loss->sum * expf(loss->max - most) + sum * expf(max - most);
		loss->max = most;
		loss->logit += logit;
	}
	factor = scale / loss->sum;
	for (size_t i = 0; scale > 0 && i < count; i++)
		logits[i] *= factor;
	if (scale > 0 && at < count)
		logits[at] -= scale;
}

/*
 * Adds to losses `row` to `row + n - 1` the logits [n, count] of the tokens from `first` on, where
 * those from 0 on come first. The target of a token is the next one in tokens [batch, seq + 1].
 * With a scale, logits become their gradient times scale: for that the losses are known, or these
 * are all the logits there are.
 */
static void cross_entropy(struct loss *loss, float *logits, const uint32_t *tokens, size_t row,
			  size_t n, size_t seq, size_t first, size_t count, bool known, float scale)
{
	for (size_t end = row + n; row < end; row++, logits += count) {
		if (first == 0 && !known)
			loss[row] = (struct loss){.max = -INFINITY};
		token_loss(&loss[row], logits, count, tokens[row + row / seq + 1] - first, known,
			   scale);
	}
}

static double loss_sum(const struct loss *loss, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += log(loss[i].sum) + loss[i].max - loss[i].logit;
	return sum;
}
#endif
