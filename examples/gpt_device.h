/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_device.h - the functions of gpt_math.h that gpt.c calls, on a GPU. They do the same for
 * arrays in device memory, where gathered parameters and gradients are too.
 *
 * All work is queued on the default stream and runs in the order of the calls, so after the gathers
 * and before the reduces of zero.h. Functions return before their work is done, except copy_out,
 * loss_sum and seconds, which wait for it. Every sum has a fixed order, so that a training gives
 * the same losses each time.
 */
#ifndef GPT_DEVICE_H
#define GPT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zero.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef GPT_BACKEND /* tests run on a host */
#define GPT_BACKEND "cuda"
#endif
static const char *const math_settings = "backend=" GPT_BACKEND;

/* Returns the first call to the device that failed, or NULL. Results after it are undefined. */
const char *math_error(void);
/* Allocates from the job, whose device becomes that of this thread. With GPT_TF32=1 in the
   environment matrix products round their factors to 10 bits, which is faster. */
float *math_open(zero_job *job, size_t bytes);
void math_close(zero_job *job, float *arena);

/* `from` of copy_in and `to` of copy_out are host memory. */
void copy_in(void *to, const void *from, size_t bytes);
void copy_out(void *to, const void *from, size_t bytes);
void clear(float *x, size_t n);

double seconds(void);
double matmul_seconds(void); /* NaN: not measured */

size_t scratch_size(size_t seq, size_t width, size_t heads);

void matmul(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
	    const float *b, size_t ldb, float beta, float *c, size_t ldc);

void embedding_forward(float *out, const float *wte, const float *wpe, const uint32_t *tokens,
		       size_t batch, size_t seq, size_t width, size_t first, size_t count);
void embedding_backward(float *dwte, float *dwpe, const float *dout, const uint32_t *tokens,
			size_t batch, size_t seq, size_t width, size_t first, size_t count);

void linear_forward(float *out, const float *residual, const float *in, const float *w,
		    const float *bias, size_t rows, size_t inputs, size_t outputs);
void linear_backward(float *din, float *dw, float *dbias, const float *dout, const float *in,
		     const float *w, size_t rows, size_t inputs, size_t outputs);

void layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *w,
		       const float *bias, size_t rows, size_t width, float eps);
void layernorm_backward(float *dx, float *dw, float *dbias, const float *dout, const float *x,
			const float *mean, const float *rstd, const float *w, size_t rows,
			size_t width, float *scratch);

void gelu_forward(float *out, const float *x, size_t n);
void gelu_backward(float *d, const float *x, size_t n);

/* `scratch` has scratch_size() elements. */
void attention_forward(float *out, const float *qkv, size_t batch, size_t seq, size_t width,
		       size_t heads, float *scratch);
void attention_backward(float *dqkv, const float *dout, const float *qkv, size_t batch, size_t seq,
			size_t width, size_t heads, float *scratch);

struct loss {
	float max, sum, logit;
};

void cross_entropy(struct loss *loss, float *logits, const uint32_t *tokens, size_t row, size_t n,
		   size_t seq, size_t first, size_t count, bool known, float scale);
double loss_sum(const struct loss *loss, size_t n);

#ifdef __cplusplus
}
#endif
#endif
