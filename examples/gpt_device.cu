/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_device.cu - implements gpt_device.h: matrix products by cuBLAS, and the kernels between them.
 *
 * Nearly all kernels have one form. A block computes a row (a token), and neighbouring threads
 * compute neighbouring columns, so that memory accesses coalesce. Sums and maxima over a row use
 * block_fold(). There are no atomics, so every sum has a fixed order.
 */
#include "gpt_cuda.cuh"

/* ---- embedding ------------------------------------------------------------------------------- */

/* Returns the token of row t; the rows are sequences one after the other. */
static __device__ size_t token_of(const uint32_t *tokens, size_t row, size_t seq)
{
	return tokens[row / seq * (seq + 1) + row % seq];
}

static __global__ void embed(float *out, const float *wte, const float *wpe, const uint32_t *tokens,
			     size_t seq, size_t width, size_t first, size_t count)
{
	size_t row = blockIdx.x, t = row % seq, at = token_of(tokens, row, seq) - first;

	for (size_t i = threadIdx.x; at < count && i < width; i += blockDim.x)
		out[row * width + i] = wte[at * width + i] + wpe[t * width + i];
}

void embedding_forward(float *out, const float *wte, const float *wpe, const uint32_t *tokens,
		       size_t batch, size_t seq, size_t width, size_t first, size_t count)
{
	launch("embed", embed, batch * seq, THREADS, out, wte, wpe, tokens, seq, width, first,
	       count);
}

/*
 * A token may occur in many rows, whose gradients add up. The block of the first of these rows adds
 * them in order, and the blocks of the others do nothing.
 */
static __global__ void embed_backward_wte(float *dwte, const float *dout, const uint32_t *tokens,
					  size_t rows, size_t seq, size_t width, size_t first,
					  size_t count)
{
	__shared__ bool same[THREADS]; /* whether each of these rows has this token */
	size_t token = token_of(tokens, blockIdx.x, seq), at = token - first;
	int earlier = at >= count;

	for (size_t row = threadIdx.x; row < blockIdx.x && at < count; row += blockDim.x)
		earlier |= token_of(tokens, row, seq) == token;
	if (__syncthreads_or(earlier))
		return;
	for (size_t from = blockIdx.x; from < rows; from += blockDim.x) {
		size_t row = from + threadIdx.x;

		same[threadIdx.x] = row < rows && token_of(tokens, row, seq) == token;
		if (!__syncthreads_or(same[threadIdx.x]))
			continue;
		for (row = from; row < from + blockDim.x; row++)
			for (size_t i = threadIdx.x; same[row - from] && i < width; i += blockDim.x)
				dwte[at * width + i] += dout[row * width + i];
		__syncthreads(); /* before `same` is overwritten */
	}
}

static __global__ void embed_backward_wpe(float *dwpe, const float *dout, const uint32_t *tokens,
					  size_t batch, size_t seq, size_t width, size_t first,
					  size_t count)
{
	size_t t = blockIdx.x;

	for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
		float sum = 0;

		for (size_t row = t; row < batch * seq; row += seq)
			if (token_of(tokens, row, seq) - first < count)
				sum += dout[row * width + i];
		dwpe[t * width + i] += sum;
	}
}

void embedding_backward(float *dwte, float *dwpe, const float *dout, const uint32_t *tokens,
			size_t batch, size_t seq, size_t width, size_t first, size_t count)
{
	launch("embed_backward_wte", embed_backward_wte, batch * seq, THREADS, dwte, dout, tokens,
	       batch * seq, seq, width, first, count);
	launch("embed_backward_wpe", embed_backward_wpe, seq, THREADS, dwpe, dout, tokens, batch,
	       seq, width, first, count);
}

/* ---- linear ---------------------------------------------------------------------------------- */

static __global__ void add_bias(float *out, const float *residual, const float *bias,
				size_t outputs)
{
	size_t row = blockIdx.x * outputs;

	for (size_t i = threadIdx.x; i < outputs; i += blockDim.x)
		out[row + i] = residual ? residual[row + i] + bias[i] : bias[i];
}

void linear_forward(float *out, const float *residual, const float *in, const float *w,
		    const float *bias, size_t rows, size_t inputs, size_t outputs)
{
	launch("add_bias", add_bias, rows, THREADS, out, residual, bias, outputs);
	matmul(false, false, rows, outputs, inputs, 1, in, inputs, w, outputs, 1, out, outputs);
}

/* A block sums as many columns as a warp has lanes, with one row per warp at a time. */
static constexpr unsigned int TALL = 4 * THREADS;

/*
 * Adds the sum of each column to dbias and, if x is given, the sum of its products with the
 * normalised x to dw. A block sums WARP columns: each warp sums some of the rows, and then the
 * first warp adds the sums of all warps.
 */
static __global__ void column_sums(float *dw, float *dbias, const float *dout, const float *x,
				   const float *mean, const float *rstd, size_t rows,
				   size_t columns)
{
	__shared__ float of_w[TALL], of_bias[TALL];
	const unsigned int warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
	size_t column = (size_t)blockIdx.x * WARP + threadIdx.x % WARP;
	float w = 0, bias = 0;

	for (size_t row = warp; row < rows && column < columns; row += warps) {
		float d = dout[row * columns + column];

		bias += d;
		if (x)
			w += d * (x[row * columns + column] - mean[row]) * rstd[row];
	}
	of_w[threadIdx.x] = w;
	of_bias[threadIdx.x] = bias;
	__syncthreads();
	if (warp > 0 || column >= columns)
		return;
	for (unsigned int other = 1; other < warps; other++) {
		w += of_w[other * WARP + threadIdx.x];
		bias += of_bias[other * WARP + threadIdx.x];
	}
	dbias[column] += bias;
	if (x)
		dw[column] += w;
}

static void add_column_sums(float *dw, float *dbias, const float *dout, const float *x,
			    const float *mean, const float *rstd, size_t rows, size_t columns)
{
	launch("column_sums", column_sums, (columns + WARP - 1) / WARP, TALL, dw, dbias, dout, x,
	       mean, rstd, rows, columns);
}

void linear_backward(float *din, float *dw, float *dbias, const float *dout, const float *in,
		     const float *w, size_t rows, size_t inputs, size_t outputs)
{
	matmul(false, true, rows, inputs, outputs, 1, dout, outputs, w, outputs, 0, din, inputs);
	matmul(true, false, inputs, outputs, rows, 1, in, inputs, dout, outputs, 1, dw, outputs);
	add_column_sums(NULL, dbias, dout, NULL, NULL, NULL, rows, outputs);
}

/* ---- layer norm ------------------------------------------------------------------------------ */

static __global__ void normalise(float *out, float *mean, float *rstd, const float *x,
				 const float *w, const float *bias, size_t width, float eps)
{
	float sum = 0, square = 0, m, r;

	x += blockIdx.x * width;
	out += blockIdx.x * width;
	for (size_t i = threadIdx.x; i < width; i += blockDim.x)
		sum += x[i];
	m = block_fold(sum, plus()) / (float)width;
	for (size_t i = threadIdx.x; i < width; i += blockDim.x)
		square += (x[i] - m) * (x[i] - m);
	r = 1 / sqrtf(block_fold(square, plus()) / (float)width + eps);
	for (size_t i = threadIdx.x; i < width; i += blockDim.x)
		out[i] = (x[i] - m) * r * w[i] + bias[i];
	if (threadIdx.x == 0) {
		mean[blockIdx.x] = m;
		rstd[blockIdx.x] = r;
	}
}

void layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *w,
		       const float *bias, size_t rows, size_t width, float eps)
{
	launch("normalise", normalise, rows, THREADS, out, mean, rstd, x, w, bias, width, eps);
}

static __global__ void normalise_backward(float *dx, const float *dout, const float *x,
					  const float *mean, const float *rstd, const float *w,
					  size_t width)
{
	float m = mean[blockIdx.x], r = rstd[blockIdx.x], a = 0, b = 0;

	x += blockIdx.x * width;
	dx += blockIdx.x * width;
	dout += blockIdx.x * width;
	for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
		a += dout[i] * w[i];
		b += dout[i] * w[i] * (x[i] - m) * r;
	}
	a = block_fold(a, plus()) / (float)width;
	b = block_fold(b, plus()) / (float)width;
	for (size_t i = threadIdx.x; i < width; i += blockDim.x)
		dx[i] += r * (dout[i] * w[i] - a - (x[i] - m) * r * b);
}

void layernorm_backward(float *dx, float *dw, float *dbias, const float *dout, const float *x,
			const float *mean, const float *rstd, const float *w, size_t rows,
			size_t width, float *scratch)
{
	(void)scratch;
	launch("normalise_backward", normalise_backward, rows, THREADS, dx, dout, x, mean, rstd, w,
	       width);
	add_column_sums(dw, dbias, dout, x, mean, rstd, rows, width);
}

/* ---- GELU ------------------------------------------------------------------------------------ */

static constexpr float gelu_a = 0.7978845608f, gelu_b = 0.044715f;

static __device__ float gelu_sigmoid(float x)
{
	float u = gelu_a * (x + gelu_b * x * x * x), e = expf(-2 * fabsf(u));

	return (u < 0 ? e : 1) / (1 + e);
}

static __global__ void gelu(float *out, const float *x, size_t n)
{
	size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = x[i] * gelu_sigmoid(x[i]);
}

static __global__ void gelu_derivative(float *d, const float *x, size_t n)
{
	size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
	float s, du;

	if (i >= n)
		return;
	s = gelu_sigmoid(x[i]);
	du = gelu_a * (1 + 3 * gelu_b * x[i] * x[i]);
	d[i] *= s + 2 * x[i] * s * (1 - s) * du;
}

void gelu_forward(float *out, const float *x, size_t n)
{
	launch("gelu", gelu, (n + THREADS - 1) / THREADS, THREADS, out, x, n);
}

void gelu_backward(float *d, const float *x, size_t n)
{
	launch("gelu_derivative", gelu_derivative, (n + THREADS - 1) / THREADS, THREADS, d, x, n);
}

/* ---- attention ------------------------------------------------------------------------------- */

/*
 * As on the host, a strip of a few rows of probabilities at a time, but of all heads of a sequence
 * at once: p is [heads, rows, columns], for rows from t0, and columns = t0 + rows.
 */
static size_t strip_rows(size_t seq)
{
	return seq < GPT_STRIP ? seq : GPT_STRIP;
}

size_t scratch_size(size_t seq, size_t width, size_t heads)
{
	(void)width;
	return 2 * heads * strip_rows(seq) * seq;
}

static __global__ void causal_softmax(float *p, size_t t0, size_t rows, size_t columns)
{
	size_t n = t0 + blockIdx.x % rows + 1;
	float scale, max;

	p += blockIdx.x * columns;
	scale = 1 / exp_row(p, n, &max);
	for (size_t i = threadIdx.x; i < columns; i += blockDim.x)
		p[i] = i < n ? p[i] * scale : 0;
}

/* dp = p (dp - p . dp) in each row. */
static __global__ void softmax_backward(float *dp, const float *p, size_t columns)
{
	float dot = 0;

	p += blockIdx.x * columns;
	dp += blockIdx.x * columns;
	for (size_t i = threadIdx.x; i < columns; i += blockDim.x)
		dot += p[i] * dp[i];
	dot = block_fold(dot, plus());
	for (size_t i = threadIdx.x; i < columns; i += blockDim.x)
		dp[i] = p[i] * (dp[i] - dot);
}

/* Where the queries, keys and values of the heads of a sequence begin. */
static struct heads heads_at(const float *qkv, size_t t, size_t width, size_t size, bool transposed)
{
	return (struct heads){qkv + t * 3 * width, 3 * width, size, transposed};
}

static void attention_strip(float *p, const float *qkv, size_t t0, size_t rows, size_t width,
			    size_t heads)
{
	size_t size = width / heads, columns = t0 + rows;

	matmul_heads(heads, rows, columns, size, 1 / sqrtf((float)size),
		     heads_at(qkv, t0, width, size, false),
		     heads_at(qkv + width, 0, width, size, true), 0, p, columns, rows * columns);
	launch("causal_softmax", causal_softmax, heads * rows, THREADS, p, t0, rows, columns);
}

void attention_forward(float *out, const float *qkv, size_t batch, size_t seq, size_t width,
		       size_t heads, float *scratch)
{
	size_t size = width / heads, strip = strip_rows(seq);

	for (size_t b = 0; b < batch; b++, qkv += seq * 3 * width, out += seq * width) {
		for (size_t t = 0; t < seq; t += strip) {
			size_t rows = seq - t < strip ? seq - t : strip, columns = t + rows;
			struct heads p = {scratch, columns, rows * columns, false};

			attention_strip(scratch, qkv, t, rows, width, heads);
			matmul_heads(heads, rows, size, columns, 1, p,
				     heads_at(qkv + 2 * width, 0, width, size, false), 0,
				     out + t * width, width, size);
		}
	}
}

/* One strip of the backward pass. Writes its rows of dq, and adds to dk and dv. */
static void attention_strip_backward(float *dqkv, const float *dout, const float *qkv, size_t t,
				     size_t rows, size_t width, size_t heads, float *p, float *dp)
{
	size_t size = width / heads, columns = t + rows, ld = 3 * width;
	float scale = 1 / sqrtf((float)size);
	struct heads d = {dout + t * width, width, size, false};
	struct heads p_t = {p, columns, rows * columns, true};
	struct heads ds = {dp, columns, rows * columns, false}, ds_t = ds;

	ds_t.transposed = true;
	attention_strip(p, qkv, t, rows, width, heads);
	matmul_heads(heads, columns, size, rows, 1, p_t, d, 1, dqkv + 2 * width, ld, size);
	matmul_heads(heads, rows, columns, size, 1, d,
		     heads_at(qkv + 2 * width, 0, width, size, true), 0, dp, columns,
		     rows * columns);
	launch("softmax_backward", softmax_backward, heads * rows, THREADS, dp, p, columns);
	matmul_heads(heads, rows, size, columns, scale, ds,
		     heads_at(qkv + width, 0, width, size, false), 0, dqkv + t * ld, ld, size);
	matmul_heads(heads, columns, size, rows, scale, ds_t, heads_at(qkv, t, width, size, false),
		     1, dqkv + width, ld, size);
}

void attention_backward(float *dqkv, const float *dout, const float *qkv, size_t batch, size_t seq,
			size_t width, size_t heads, float *scratch)
{
	size_t strip = strip_rows(seq), ld = 3 * width;
	float *p = scratch, *dp = scratch + heads * strip * seq;

	clear(dqkv, batch * seq * ld);
	for (size_t b = 0; b < batch; b++)
		for (size_t t = 0; t < seq; t += strip)
			attention_strip_backward(
				dqkv + b * seq * ld, dout + b * seq * width, qkv + b * seq * ld, t,
				seq - t < strip ? seq - t : strip, width, heads, p, dp);
}

/* ---- the loss -------------------------------------------------------------------------------- */

static __global__ void token_loss(struct loss *losses, float *logits, const uint32_t *tokens,
				  size_t first_row, size_t seq, size_t first, size_t count,
				  bool known, float scale)
{
	size_t row = first_row + blockIdx.x, at = tokens[row + row / seq + 1] - first;
	struct loss loss = {-INFINITY, 0, 0};

	logits += blockIdx.x * count;
	if (first > 0 || known)
		loss = losses[row];
	if (known) {
		for (size_t i = threadIdx.x; i < count; i += blockDim.x)
			logits[i] = expf(logits[i] - loss.max);
	} else {
		/* Read by all threads before exp_row() overwrites it, as is losses[row]. */
		float logit = at < count ? logits[at] : 0, max;
		float sum = exp_row(logits, count, &max), most = fmaxf(loss.max, max);

		sum = loss.sum * expf(loss.max - most) + sum * expf(max - most);
		loss = {most, sum, loss.logit + logit};
		if (threadIdx.x == 0)
			losses[row] = loss;
	}
	if (scale > 0)
		for (size_t i = threadIdx.x; i < count; i += blockDim.x)
			logits[i] = logits[i] * (scale / loss.sum) - (i == at ? scale : 0);
}

void cross_entropy(struct loss *loss, float *logits, const uint32_t *tokens, size_t row, size_t n,
		   size_t seq, size_t first, size_t count, bool known, float scale)
{
	launch("token_loss", token_loss, n, THREADS, loss, logits, tokens, row, seq, first, count,
	       known, scale);
}

double loss_sum(const struct loss *loss, size_t n)
{
	struct loss part[1024], *next = part;
	double sum = 0;

	for (size_t i = 0; i < n; i++, next++) {
		if (i % 1024 == 0) {
			copy_out(part, loss + i, (n - i < 1024 ? n - i : 1024) * sizeof(*part));
			next = part;
		}
		sum += log((double)next->sum) + next->max - next->logit;
	}
	return sum;
}
