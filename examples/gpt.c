/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt.c - trains GPT-2 (Radford et al. 2019) with sharded parameters, gradients and optimizer
 * states. It is a complete training job on zero.h, written to be read from top to bottom.
 *
 *	zerorun -n 2 --zero-stage=3 gpt --text book.txt --steps 500 --sample 300
 *	srun --zero-stage=3 gpt --model gpt2/ --tokens corpus.u16 --export tuned.safetensors
 *
 *	1. the model: its tensors, which of them are gathered together, and their initial values
 *	2. a step:    gather, compute, release; gather, compute, reduce, release; AdamW
 *	3. the job:   batches, progress, samples, errors
 *
 * gpt_math.h implements the layers, gpt_input.h reads flags, config.json and text, gpt_log.h prints
 * and logs steps, and gpt_resume.h saves and restores checkpoints. Compiled with GPT_DEVICE, the
 * same program computes on a GPU. It accesses the memory of the model only through functions that
 * both gpt_math.h and gpt_device.h implement.
 *
 * The architecture and the names of the tensors are those of Hugging Face's GPT2LMHeadModel. This
 * program reads its checkpoints, and it reads what --export writes.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sysexits.h>

#include "zero.h"
#include "gpt_input.h"
#include "gpt_log.h"
#include "gpt_resume.h"
#ifdef GPT_DEVICE
#include "gpt_device.h"
#else
#include "gpt_math.h"
#endif

/* ---- 1. the model ---------------------------------------------------------------------------- */

enum dim { NONE, WIDTH, WIDTH_X3, WIDTH_X4, VOCAB, CONTEXT };
enum init { ZEROS, ONES, NORMAL, NORMAL_RESIDUAL };

/* Linear weights are [inputs, outputs], as in the "Conv1D" of the original; embeddings are
   [rows, width]. */
struct tensor_spec {
	const char *name;
	enum dim dim[2]; /* the second one of a vector is NONE */
	enum init init;
};

enum {
	LN_1_W,
	LN_1_B,
	ATTN_W,
	ATTN_B,
	ATTN_PROJ_W,
	ATTN_PROJ_B,
	LN_2_W,
	LN_2_B,
	FC_W,
	FC_B,
	MLP_PROJ_W,
	MLP_PROJ_B,
	BLOCK_TENSORS
};

static const struct tensor_spec block_tensors[BLOCK_TENSORS] = {
	[LN_1_W] = {"ln_1.weight", {WIDTH}, ONES},
	[LN_1_B] = {"ln_1.bias", {WIDTH}, ZEROS},
	[ATTN_W] = {"attn.c_attn.weight", {WIDTH, WIDTH_X3}, NORMAL},
	[ATTN_B] = {"attn.c_attn.bias", {WIDTH_X3}, ZEROS},
	[ATTN_PROJ_W] = {"attn.c_proj.weight", {WIDTH, WIDTH}, NORMAL_RESIDUAL},
	[ATTN_PROJ_B] = {"attn.c_proj.bias", {WIDTH}, ZEROS},
	[LN_2_W] = {"ln_2.weight", {WIDTH}, ONES},
	[LN_2_B] = {"ln_2.bias", {WIDTH}, ZEROS},
	[FC_W] = {"mlp.c_fc.weight", {WIDTH, WIDTH_X4}, NORMAL},
	[FC_B] = {"mlp.c_fc.bias", {WIDTH_X4}, ZEROS},
	[MLP_PROJ_W] = {"mlp.c_proj.weight", {WIDTH_X4, WIDTH}, NORMAL_RESIDUAL},
	[MLP_PROJ_B] = {"mlp.c_proj.bias", {WIDTH}, ZEROS},
};

/*
 * The layers before and after the blocks. The head is tied to wte, so wte is needed at both ends of
 * a pass. It is the largest tensor, and a group of its own, which --zero-stream=auto has used slice
 * by slice, whole on no rank. The others are small: they stay gathered from one end to the other.
 */
static const struct tensor_spec wte_tensor = {"wte.weight", {VOCAB, WIDTH}, NORMAL};

enum { WPE, LN_F_W, LN_F_B, END_TENSORS };

static const struct tensor_spec end_tensors[END_TENSORS] = {
	[WPE] = {"wpe.weight", {CONTEXT, WIDTH}, NORMAL},
	[LN_F_W] = {"ln_f.weight", {WIDTH}, ONES},
	[LN_F_B] = {"ln_f.bias", {WIDTH}, ZEROS},
};

/* Parameters that are gathered together: those of a block, wte, or the others of the two ends. */
struct layer {
	zero_group *group;
	const struct tensor_spec *spec;
	int count;
	zero_param *param[BLOCK_TENSORS];
};

/* Activations of a block that its backward pass needs. A row is a token. */
struct activations {
	float *x;                      /* the block's input [rows, width] */
	float *ln_1, *mean_1, *rstd_1; /* [rows, width], [rows], [rows] */
	float *qkv, *attn;             /* [rows, 3 * width], [rows, width] */
	float *mid;                    /* x plus the output of attention */
	float *ln_2, *mean_2, *rstd_2;
	float *fc, *gelu; /* [rows, 4 * width] */
};

struct model {
	zero_job *job;
	struct config config;
	struct layer wte, ends, *block;
	size_t slices, longest;            /* of wte; rows of its longest piece, see use_slice() */
	bool whole;                        /* wte is one piece */
	zero_run *runs;                    /* of one slice [ranks] */
	struct activations *acts;          /* one for each block */
	float *x, *ln_f, *mean_f, *rstd_f; /* output of the last block, and its layer norm */
	float *dx, *narrow;                /* gradients [rows, width] */
	float *wide;                       /* gradients [rows, 4 * width] */
	float *scratch, *logits;
	uint32_t *tokens;        /* of the current pass [batch, seq + 1] */
	struct loss *losses;     /* of each token of the current pass [rows] */
	size_t head_rows;        /* tokens whose logits are computed at once */
	float *sampled;          /* the logits of sample() in host memory [vocab] */
	float *arena;            /* one allocation for all the buffers above */
	size_t activation_bytes; /* of the arena */
	size_t batch, seq;       /* of the current pass */
	char error[SENTENCE];    /* the first error of this rank alone, see agree() */
};

/*
 * A rank with an error of its own must not return at once, because the others would wait for it in
 * their next gather. It records the error, goes on, and reports it here, where all ranks agree.
 */
static zero_status agree(struct model *m)
{
	if (math_error())
		complain(m->error, "%s", math_error());
	return zero_agree(m->job, m->error[0] ? m->error : NULL);
}

static size_t dim_size(const struct config *c, enum dim dim)
{
	switch (dim) {
	case WIDTH:
		return c->width;
	case WIDTH_X3:
		return 3 * c->width;
	case WIDTH_X4:
		return 4 * c->width;
	case VOCAB:
		return c->vocab;
	case CONTEXT:
		return c->context;
	case NONE:
		break;
	}
	return 1;
}

static size_t parameter_count(const struct model *m)
{
	size_t count = zero_param_numel(m->wte.param[0]);

	for (int i = 0; i < END_TENSORS; i++)
		count += zero_param_numel(m->ends.param[i]);
	for (int i = 0; i < BLOCK_TENSORS; i++)
		count += m->config.layers * zero_param_numel(m->block[0].param[i]);
	return count;
}

static zero_status layer_new(struct model *m, struct layer *layer, const char *group,
			     const char *prefix, const struct tensor_spec *spec, int count)
{
	zero_status status = zero_group_new(m->job, group, NULL, &layer->group);

	layer->spec = spec;
	layer->count = count;
	for (int i = 0; i < count && status == ZERO_OK; i++) {
		size_t shape[2] = {dim_size(&m->config, spec[i].dim[0]),
				   dim_size(&m->config, spec[i].dim[1])};
		int ndim = spec[i].dim[1] == NONE ? 1 : 2;
		char name[128];
		zero_param_spec param = {
			.name = name,
			.dtype = ZERO_F32,
			.ndim = ndim,
			.shape = shape,
			.trainable = true,
			.no_weight_decay = ndim == 1, /* GPT-2 and GPT-3 decay matrices only */
		};

		snprintf(name, sizeof(name), "%s%s", prefix, spec[i].name);
		status = zero_param_new(layer->group, &param, &layer->param[i]);
	}
	return status;
}

/* Returns the bytes of a slice of wte, 0 if it is to be gathered whole. */
static size_t slice_bytes(const struct model *m)
{
	size_t bytes = m->config.vocab * m->config.width * sizeof(float);

	if (strcmp(zero_setting(m->job, "stream"), "auto") != 0 ||
	    bytes <= strtoull(zero_setting(m->job, "stream_threshold"), NULL, 10))
		return 0;
	return strtoull(zero_setting(m->job, "stream_chunk"), NULL, 10);
}

/* Declares the model: a group for wte, one for the rest of the ends, and one for each block.
   zero_layout allocates this rank's shards of them. */
static zero_status model_declare(struct model *m, const char *prefix, const struct flags *flags)
{
	bool muon = !strcmp(flags->optimizer, "muon");
	char name[64], inner[96];
	zero_status status;

	status = layer_new(m, &m->wte, "wte", prefix, &wte_tensor, 1);
	if (status == ZERO_OK)
		status = zero_group_set_slices(m->wte.group, slice_bytes(m));
	if (status == ZERO_OK)
		status = layer_new(m, &m->ends, "ends", prefix, end_tensors, END_TENSORS);
	for (size_t l = 0; l < m->config.layers && status == ZERO_OK; l++) {
		snprintf(name, sizeof(name), "h.%zu", l);
		snprintf(inner, sizeof(inner), "%s%s.", prefix, name);
		status = layer_new(m, &m->block[l], name, inner, block_tensors, BLOCK_TENSORS);
		for (int i = 0; muon && i < BLOCK_TENSORS && status == ZERO_OK; i++)
			if (block_tensors[i].dim[1] != NONE)
				status = zero_param_set_muon(m->block[l].param[i], true);
	}
	if (status == ZERO_OK)
		status = zero_layout(m->job);
	if (status == ZERO_OK && !strcmp(flags->optimizer, "adamw8bit"))
		status = zero_set_states(m->job, ZERO_STATES_8BIT);
	return status;
}

/* GPT-2's initial values. The output of a residual layer is scaled down by the number of layers
   that add up. */
static zero_source initial_values(const struct config *c, enum init init, uint64_t seed)
{
	switch (init) {
	case NORMAL:
		return zero_from_normal(0, 0.02, seed);
	case NORMAL_RESIDUAL:
		return zero_from_normal(0, 0.02 / sqrt(2.0 * (double)c->layers), seed);
	case ONES:
		return zero_from_constant(1);
	case ZEROS:
		break;
	}
	return zero_from_constant(0);
}

static zero_status layer_init(struct model *m, struct layer *layer, uint64_t seed)
{
	zero_status status = ZERO_OK;

	for (int i = 0; i < layer->count && status == ZERO_OK; i++) {
		zero_source source = initial_values(&m->config, layer->spec[i].init, seed);

		status = zero_load(layer->param[i], &source);
	}
	return status;
}

static zero_status model_init(struct model *m, uint64_t seed)
{
	zero_status status = layer_init(m, &m->wte, seed);

	if (status == ZERO_OK)
		status = layer_init(m, &m->ends, seed);
	for (size_t l = 0; l < m->config.layers && status == ZERO_OK; l++)
		status = layer_init(m, &m->block[l], seed);
	return status;
}

/* Returns the next `count` floats of the arena, at a cache line. Without an arena it only
   counts. */
static float *carve(float *arena, size_t *used, size_t count)
{
	float *p = arena ? arena + *used : NULL;

	*used += (count + 15) / 16 * 16;
	return p;
}

static size_t place_buffers(struct model *m, float *arena, size_t rows, size_t seq)
{
	size_t width = m->config.width, heads = m->config.heads, used = 0;

	for (size_t l = 0; l < m->config.layers; l++) {
		struct activations *k = &m->acts[l];

		k->x = carve(arena, &used, rows * width);
		k->ln_1 = carve(arena, &used, rows * width);
		k->mean_1 = carve(arena, &used, rows);
		k->rstd_1 = carve(arena, &used, rows);
		k->qkv = carve(arena, &used, rows * width * 3);
		k->attn = carve(arena, &used, rows * width);
		k->mid = carve(arena, &used, rows * width);
		k->ln_2 = carve(arena, &used, rows * width);
		k->mean_2 = carve(arena, &used, rows);
		k->rstd_2 = carve(arena, &used, rows);
		k->fc = carve(arena, &used, rows * width * 4);
		k->gelu = carve(arena, &used, rows * width * 4);
	}
	m->x = carve(arena, &used, rows * width);
	m->ln_f = carve(arena, &used, rows * width);
	m->mean_f = carve(arena, &used, rows);
	m->rstd_f = carve(arena, &used, rows);
	m->dx = carve(arena, &used, rows * width);
	m->narrow = carve(arena, &used, rows * width);
	m->wide = carve(arena, &used, rows * width * 4);
	m->scratch = carve(arena, &used, scratch_size(seq, width, heads));
	m->logits = carve(arena, &used, m->head_rows * m->longest);
	m->tokens = (uint32_t *)carve(arena, &used, rows / seq * (seq + 1));
	m->losses = (struct loss *)carve(arena, &used, 3 * rows);
	return used;
}

static zero_group *slice_of(struct model *m, size_t index)
{
	return zero_group_slice(m->wte.group, index);
}

/* Allocates all buffers of a pass over `rows` tokens, in whole huge pages. */
static void model_buffers(struct model *m, size_t rows, size_t seq)
{
	const size_t page = 2 << 20, limit = 16 << 20; /* elements: 64 MB, see head_piece() */
	size_t most, turns, bytes;
	float *arena;

	m->slices = zero_group_slice_count(m->wte.group);
	m->whole = zero_slice_runs(slice_of(m, 0), m->runs) == 1 && m->slices == 1;
	m->longest = m->runs[0].count / m->config.width;
	most = m->longest < limit ? limit / m->longest : 1;
	turns = (rows + most - 1) / most;
	m->head_rows = (rows + turns - 1) / turns; /* so that all turns are about equal */
	bytes = (place_buffers(m, NULL, rows, seq) * sizeof(float) + page - 1) / page * page;
	arena = math_open(m->job, bytes);
	if (!arena)
		return; /* math_error() says why */
	place_buffers(m, arena, rows, seq);
	m->arena = arena;
	m->activation_bytes = bytes;
}

/* ---- 2. a step ------------------------------------------------------------------------------- */

/*
 * A pass gathers the ends, wte (embedding), the blocks upward, wte (head), and in training the
 * blocks downward. The backward pass of the embedding needs no values.
 *
 * Gathers a group and begins to gather the next one, which is sent while this one is computed.
 * Beside the ends, at most two are gathered at any time; of all others a rank has its shard.
 */
static zero_status enter(zero_group *group, zero_group *next)
{
	zero_status status = zero_gather(group, ZERO_F32);

	return status || !next ? status : zero_prefetch(&next, 1, ZERO_F32);
}

static const float *value(const struct layer *layer, int tensor)
{
	return zero_data(layer->param[tensor]);
}

static float *gradient(const struct layer *layer, int tensor)
{
	return zero_gradient(layer->param[tensor]);
}

static bool have_gradients(struct model *m, const struct layer *layer)
{
	for (int i = 0; i < layer->count; i++) {
		if (!gradient(layer, i)) {
			complain(m->error, "%s", zero_last_error());
			return false;
		}
	}
	return true;
}

/* Consecutive rows of wte: the embeddings of `count` tokens. All of wte is one piece, or else a
   slice has a piece of what each rank stores. */
struct piece {
	size_t first, count;
	const float *values;
	float *gradient; /* NULL: not asked for */
};

typedef void use_piece(struct model *m, const struct piece *piece);

/* Has each piece of a slice used; `values` is NULL if it is not gathered. */
static void use_slice(struct model *m, zero_group *slice, const float *values, bool gradients,
		      use_piece *use)
{
	size_t width = m->config.width, runs = zero_slice_runs(slice, m->runs);
	float *gradient = gradients ? zero_slice_gradient(slice, ZERO_F32) : NULL;

	if (gradients && !gradient)
		complain(m->error, "%s", zero_last_error());
	for (size_t r = 0; r < runs && (gradient || !gradients); r++) {
		const zero_run *run = &m->runs[r];
		struct piece piece = {
			.first = run->first / width,
			.count = run->count / width,
			.values = values ? values + run->at : NULL,
			.gradient = gradient ? gradient + run->at : NULL,
		};

		use(m, &piece);
	}
}

/*
 * Gathers wte slice by slice and has each piece used; the first one begins with token 0. `next` is
 * gathered after it. Gradients of a slice are reduced at once; not so where wte is whole, see
 * backward().
 */
static zero_status walk_wte(struct model *m, bool gradients, use_piece *use, zero_group *next)
{
	for (size_t s = 0; s < m->slices; s++) {
		zero_group *slice = slice_of(m, s);
		zero_status status = enter(slice, s + 1 < m->slices ? slice_of(m, s + 1) : next);

		if (status)
			return status;
		use_slice(m, slice, zero_slice_data(slice), gradients, use);
		status = zero_release(slice);
		if (status == ZERO_OK && gradients && !m->whole)
			status = zero_reduce(slice);
		if (status)
			return status;
	}
	return ZERO_OK;
}

static void block_forward(struct model *m, size_t l)
{
	const struct config *c = &m->config;
	const struct layer *b = &m->block[l];
	const struct activations *k = &m->acts[l];
	size_t rows = m->batch * m->seq, width = c->width;
	float eps = (float)c->eps, *out = l + 1 < c->layers ? m->acts[l + 1].x : m->x;

	layernorm_forward(k->ln_1, k->mean_1, k->rstd_1, k->x, value(b, LN_1_W), value(b, LN_1_B),
			  rows, width, eps);
	linear_forward(k->qkv, NULL, k->ln_1, value(b, ATTN_W), value(b, ATTN_B), rows, width,
		       3 * width);
	attention_forward(k->attn, k->qkv, m->batch, m->seq, width, c->heads, m->scratch);
	linear_forward(k->mid, k->x, k->attn, value(b, ATTN_PROJ_W), value(b, ATTN_PROJ_B), rows,
		       width, width);
	layernorm_forward(k->ln_2, k->mean_2, k->rstd_2, k->mid, value(b, LN_2_W), value(b, LN_2_B),
			  rows, width, eps);
	linear_forward(k->fc, NULL, k->ln_2, value(b, FC_W), value(b, FC_B), rows, width,
		       4 * width);
	gelu_forward(k->gelu, k->fc, rows * 4 * width);
	linear_forward(out, k->mid, k->gelu, value(b, MLP_PROJ_W), value(b, MLP_PROJ_B), rows,
		       4 * width, width);
}

/* m->dx is the gradient of the block's output before, and that of its input after. */
static void block_backward(struct model *m, size_t l)
{
	const struct layer *b = &m->block[l];
	const struct activations *k = &m->acts[l];
	size_t rows = m->batch * m->seq, width = m->config.width;

	if (!have_gradients(m, b))
		return;
	linear_backward(m->wide, gradient(b, MLP_PROJ_W), gradient(b, MLP_PROJ_B), m->dx, k->gelu,
			value(b, MLP_PROJ_W), rows, 4 * width, width);
	gelu_backward(m->wide, k->fc, rows * 4 * width);
	linear_backward(m->narrow, gradient(b, FC_W), gradient(b, FC_B), m->wide, k->ln_2,
			value(b, FC_W), rows, width, 4 * width);
	layernorm_backward(m->dx, gradient(b, LN_2_W), gradient(b, LN_2_B), m->narrow, k->mid,
			   k->mean_2, k->rstd_2, value(b, LN_2_W), rows, width, m->scratch);
	linear_backward(m->narrow, gradient(b, ATTN_PROJ_W), gradient(b, ATTN_PROJ_B), m->dx,
			k->attn, value(b, ATTN_PROJ_W), rows, width, width);
	attention_backward(m->wide, m->narrow, k->qkv, m->batch, m->seq, width, m->config.heads,
			   m->scratch);
	linear_backward(m->narrow, gradient(b, ATTN_W), gradient(b, ATTN_B), m->wide, k->ln_1,
			value(b, ATTN_W), rows, width, 3 * width);
	layernorm_backward(m->dx, gradient(b, LN_1_W), gradient(b, LN_1_B), m->narrow, k->x,
			   k->mean_1, k->rstd_1, value(b, LN_1_W), rows, width, m->scratch);
}

/*
 * The logits of a piece of wte and what they add to the losses of this rank's tokens. In training
 * also their backward pass, for which the piece is still gathered. Logits of all tokens would need
 * more memory than everything else, so they are computed for head_rows tokens at a time, enough to
 * keep BLAS busy, and their gradient replaces them.
 */
static void head_piece(struct model *m, const struct piece *p)
{
	size_t rows = m->batch * m->seq, width = m->config.width, n;
	bool known = p->gradient && !m->whole; /* the losses, see head_pass() */

	for (size_t first = 0; first < rows; first += n) {
		const float *h = m->ln_f + first * width;

		n = rows - first < m->head_rows ? rows - first : m->head_rows;
		matmul(false, true, n, p->count, width, 1, h, width, p->values, width, 0, m->logits,
		       p->count);
		cross_entropy(m->losses, m->logits, m->tokens, first, n, m->seq, p->first, p->count,
			      known, p->gradient ? 1 / (float)rows : 0);
		if (!p->gradient)
			continue;
		matmul(false, false, n, width, p->count, 1, m->logits, p->count, p->values, width,
		       p->first > 0, m->narrow + first * width, width);
		matmul(true, false, p->count, width, n, 1, m->logits, p->count, h, width, first > 0,
		       p->gradient, width);
	}
}

/*
 * The head and its losses. The gradient of a logit needs all logits of its token. Where wte is
 * whole it follows at once; else wte is gathered a second time, and the logits are computed again.
 */
static zero_status head_pass(struct model *m, bool train)
{
	size_t rows = m->batch * m->seq, width = m->config.width;
	zero_group *next = train ? m->block[m->config.layers - 1].group : NULL;
	bool again = train && !m->whole;
	zero_status status;

	layernorm_forward(m->ln_f, m->mean_f, m->rstd_f, m->x, value(&m->ends, LN_F_W),
			  value(&m->ends, LN_F_B), rows, width, (float)m->config.eps);
	status = walk_wte(m, train && !again, head_piece, again ? slice_of(m, 0) : next);
	if (status == ZERO_OK && again)
		status = walk_wte(m, true, head_piece, next);
	if (status == ZERO_OK && train && have_gradients(m, &m->ends)) {
		clear(m->dx, rows * width);
		layernorm_backward(m->dx, gradient(&m->ends, LN_F_W), gradient(&m->ends, LN_F_B),
				   m->narrow, m->x, m->mean_f, m->rstd_f, value(&m->ends, LN_F_W),
				   rows, width, m->scratch);
	}
	return status ? status : zero_release(m->ends.group);
}

static void embed_piece(struct model *m, const struct piece *p)
{
	embedding_forward(m->acts[0].x, p->values, value(&m->ends, WPE), m->tokens, m->batch,
			  m->seq, m->config.width, p->first, p->count);
}

/*
 * The embedding and the blocks. The head is next, for which the ends stay gathered. Tokens are
 * [batch, seq + 1]: each sequence is followed by its last target.
 */
static zero_status forward(struct model *m, const uint32_t *tokens, size_t batch, size_t seq)
{
	size_t layers = m->config.layers;
	zero_status status;

	m->batch = batch;
	m->seq = seq;
	status = enter(m->ends.group, slice_of(m, 0));
	if (status)
		return status;
	copy_in(m->tokens, tokens, batch * (seq + 1) * sizeof(*tokens));
	status = walk_wte(m, false, embed_piece, m->block[0].group);
	for (size_t l = 0; l < layers && status == ZERO_OK; l++) {
		status = enter(m->block[l].group,
			       l + 1 < layers ? m->block[l + 1].group : slice_of(m, 0));
		if (status)
			return status;
		block_forward(m, l);
		status = zero_release(m->block[l].group);
	}
	return status;
}

/* Adds to what the head has left in the buffer, or to nothing if that is reduced already. */
static void embed_piece_backward(struct model *m, const struct piece *p)
{
	if (!m->whole)
		clear(p->gradient, p->count * m->config.width);
	embedding_backward(p->gradient, gradient(&m->ends, WPE), m->dx, m->tokens, m->batch, m->seq,
			   m->config.width, p->first, p->count);
}

/*
 * The blocks downward, and the embedding. The gradient of a block is reduced as soon as it is
 * complete, while the next block is computed. The gradient of wte has a part from the head and one
 * from the embedding. Where wte is whole its buffer lives from one to the other, so that one
 * reduce is enough; else each slice is reduced twice, and the sums add up.
 */
static zero_status backward(struct model *m)
{
	zero_status status = ZERO_OK;

	for (size_t l = m->config.layers; l-- > 0;) {
		status = enter(m->block[l].group, l ? m->block[l - 1].group : NULL);
		if (status)
			return status;
		block_backward(m, l);
		status = zero_release(m->block[l].group);
		if (status == ZERO_OK)
			status = zero_reduce(m->block[l].group);
		if (status)
			return status;
	}
	for (size_t s = 0; s < m->slices && status == ZERO_OK; s++) {
		if (have_gradients(m, &m->ends))
			use_slice(m, slice_of(m, s), NULL, true, embed_piece_backward);
		status = zero_reduce(slice_of(m, s));
	}
	return status ? status : zero_reduce(m->ends.group);
}

/* Computes the mean loss of this rank's sequences. In training it also reduces their gradients. */
static zero_status pass(struct model *m, const uint32_t *tokens, size_t batch, size_t seq,
			bool train, double *loss)
{
	zero_status status = forward(m, tokens, batch, seq);

	if (status == ZERO_OK)
		status = head_pass(m, train);
	if (status == ZERO_OK && train)
		status = backward(m);
	if (status == ZERO_OK)
		*loss = loss_sum(m->losses, batch * seq) / (double)(batch * seq);
	return status;
}

/* ---- 3. the job ------------------------------------------------------------------------------ */

/*
 * Reads this rank's sequences of a step. The sequences of all ranks are consecutive in the text,
 * starting at sequence `first`, so a global batch is the same text at every number of ranks.
 */
static void read_batch(const struct corpus *corpus, struct model *m, uint32_t *tokens, size_t first,
		       size_t batch, size_t seq)
{
	for (size_t b = 0; b < batch; b++) {
		size_t k = first + (size_t)zero_rank(m->job) * batch + b;

		corpus_read(corpus, k * seq % (corpus->tokens - seq), seq + 1,
			    tokens + b * (seq + 1), m->config.vocab, m->error);
	}
}

/* Takes one step. s->number is set before, and the other fields after. */
static zero_status do_step(struct model *m, const struct flags *flags, const struct corpus *corpus,
			   uint32_t *tokens, size_t seq, struct progress *p, struct step *s)
{
	double begin = seconds(), count = (double)(flags->batch * seq);
	double warm = (double)(s->number + 1) / (double)(flags->warmup ? flags->warmup : 1);
	zero_step_result result = {0};
	zero_adamw adamw = {
		.lr = (float)(flags->lr * (warm < 1 ? warm : 1)),
		.beta1 = (float)flags->beta1,
		.beta2 = (float)flags->beta2,
		.eps = (float)flags->eps,
		.weight_decay = (float)flags->weight_decay,
		.clip = (float)flags->clip,
	};
	/* With the same lr as AdamW's, and for matrices of [inputs, outputs] as for others. */
	const zero_muon muon = {
		.lr = adamw.lr,
		.weight_decay = adamw.weight_decay,
		.momentum = 0.95f,
		.rate = ZERO_MUON_MATCH_RMS_ADAMW,
	};
	zero_status status;

	if (!strcmp(flags->optimizer, "muon"))
		adamw.muon = &muon;
	read_batch(corpus, m, tokens, p->sequences, flags->batch, seq);
	status = pass(m, tokens, flags->batch, seq, !flags->eval, &s->loss);
	if (status == ZERO_OK)
		status = agree(m);
	/* Before zero_step, which may still be sending values when it returns: zero_mean would wait
	   for all of them, the next pass waits only for the group that it gathers. */
	if (status == ZERO_OK)
		status = zero_mean(m->job, &s->loss, 1, 1);
	if (status == ZERO_OK && !flags->eval)
		status = zero_step(m->job, &adamw, &result);
	s->lr = adamw.lr;
	s->grad_norm = result.grad_norm;
	s->seconds = seconds() - begin;
	s->tokens_per_s = zero_world(m->job) * count / s->seconds;
	s->matmul_share = matmul_seconds() / s->seconds;
	p->step++;
	p->sequences += (size_t)zero_world(m->job) * flags->batch;
	p->stopped = result.stop;
	return status;
}

static zero_status train(struct model *m, const struct flags *flags, const struct corpus *corpus,
			 size_t seq, struct progress *p, FILE *log)
{
	uint32_t *tokens = malloc(flags->batch * (seq + 1) * sizeof(*tokens));
	bool prints = zero_rank(m->job) == 0;
	double sum = 0;
	zero_status status;

	if (!tokens)
		complain(m->error, "no memory for %zu tokens", flags->batch * (seq + 1));
	status = agree(m);
	while (p->step < flags->steps && !p->stopped && status == ZERO_OK) {
		struct step s = {.number = p->step};

		status = do_step(m, flags, corpus, tokens, seq, p, &s);
		sum += s.loss;
		if (status == ZERO_OK && prints)
			print_step(&s, flags->steps, flags->eval);
		if (status == ZERO_OK && log)
			log_step(log, m->job, &s, flags->eval, m->error);
		if (status == ZERO_OK)
			status = save_at_times(m->job, flags, p);
	}
	if (status == ZERO_OK)
		status = agree(m);
	if (status == ZERO_OK && prints && flags->eval && flags->steps)
		printf("mean loss %.9f\n", sum / (double)flags->steps);
	free(tokens);
	return status;
}

/* Returns random number n, uniform in [0, 1): a hash of the counter (splitmix64), without state. */
static double draw(uint64_t seed, uint64_t n)
{
	uint64_t z = (seed + 1) * 0xd1342543de82ef95u + (n + 1) * 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* Returns the token at which the cumulative probability passes u. */
static uint32_t choose(const float *logits, size_t vocab, double u)
{
	const double temperature = 0.8;
	double max = logits[0], left = 0;

	for (size_t i = 1; i < vocab; i++)
		max = fmax(max, logits[i]);
	for (size_t i = 0; i < vocab; i++)
		left += u * exp((logits[i] - max) / temperature);
	for (size_t i = 0; i + 1 < vocab; i++) {
		left -= exp((logits[i] - max) / temperature);
		if (left < 0)
			return (uint32_t)i;
	}
	return (uint32_t)vocab - 1;
}

static void print_token(uint32_t token, size_t vocab)
{
	if (vocab != 256) /* a BPE token, and this program has no tokenizer */
		printf("%u ", token);
	else
		putchar(token >= ' ' || token == '\n' || token == '\t' ? (int)token : '?');
	fflush(stdout);
}

static void sample_piece(struct model *m, const struct piece *p)
{
	size_t width = m->config.width;

	matmul(false, true, 1, p->count, width, 1, m->ln_f, width, p->values, width, 0, m->logits,
	       p->count);
	copy_out(m->sampled + p->first, m->logits, p->count * sizeof(float));
}

/*
 * Samples one token after the other, each from a pass over the tokens before it, at most `seq`. All
 * ranks take part, because each has a shard of every layer, and all choose the same token.
 */
static zero_status sample(struct model *m, const struct flags *flags, size_t seq)
{
	size_t vocab = m->config.vocab, width = m->config.width, length = 1;
	uint32_t *tokens = calloc(seq + 1, sizeof(*tokens));
	zero_status status;

	m->sampled = malloc(vocab * sizeof(*m->sampled));
	if (!tokens || !m->sampled)
		complain(m->error, "no memory for %zu tokens and %zu logits", seq + 1, vocab);
	status = agree(m);
	if (status == ZERO_OK) /* start from a new line, or from GPT-2's <|endoftext|> */
		tokens[0] = vocab == 256 ? '\n' : vocab > 50256 ? 50256 : 0;
	for (size_t i = 0; i < flags->sample && status == ZERO_OK; i++) {
		status = forward(m, tokens, 1, length);
		if (status)
			break;
		layernorm_forward(m->ln_f, m->mean_f, m->rstd_f, m->x + (length - 1) * width,
				  value(&m->ends, LN_F_W), value(&m->ends, LN_F_B), 1, width,
				  (float)m->config.eps);
		status = walk_wte(m, false, sample_piece, NULL);
		if (status == ZERO_OK)
			status = zero_release(m->ends.group);
		if (status)
			break;
		if (length == seq)
			memmove(tokens, tokens + 1, --length * sizeof(*tokens));
		tokens[length++] = choose(m->sampled, vocab, draw(flags->seed, i));
		if (zero_rank(m->job) == 0)
			print_token(tokens[length - 1], vocab);
	}
	if (zero_rank(m->job) == 0)
		printf("\n");
	free(tokens);
	free(m->sampled);
	return status == ZERO_OK ? agree(m) : status;
}

/* Prints the peak memory of each rank. A mean in which one rank has weight 1 sends its numbers. */
static zero_status print_memory(struct model *m)
{
	int world = zero_world(m->job), shown = world < 8 ? world : 8;
	const double mib = 1 << 20;
	zero_memory memory;
	zero_status status = zero_memory_now(m->job, &memory);

	if (zero_rank(m->job) == 0)
		printf("peak MiB  shards  gathered  gradients  optimizer  staging   total"
		       "  activations\n");
	for (int rank = 0; rank < shown && status == ZERO_OK; rank++) {
		double v[] = {
			(double)memory.shards.peak,    (double)memory.gathered.peak,
			(double)memory.gradients.peak, (double)memory.optimizer.peak,
			(double)memory.staging.peak,   (double)memory.total.peak,
			(double)m->activation_bytes,
		};

		status = zero_mean(m->job, v, sizeof(v) / sizeof(v[0]), zero_rank(m->job) == rank);
		if (status == ZERO_OK && zero_rank(m->job) == 0)
			printf("rank %-3d%8.1f%10.1f%11.1f%11.1f%9.1f%8.1f%13.1f\n", rank,
			       v[0] / mib, v[1] / mib, v[2] / mib, v[3] / mib, v[4] / mib,
			       v[5] / mib, v[6] / mib);
	}
	return status;
}

/* Writes config.json beside an exported file, unless there is one. */
static void export_config(const struct config *c, const char *beside, char *error)
{
	const char *end = c->vocab > 50256 ? "50256" : "null"; /* <|endoftext|> */
	char path[4096];
	FILE *out;

	config_path(path, sizeof(path), beside);
	out = fopen(path, "wx");
	if (!out && errno == EEXIST)
		return;
	if (!out ||
	    fprintf(out,
		    "{\n  \"model_type\": \"gpt2\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n"
		    "  \"activation_function\": \"gelu_new\",\n  \"n_layer\": %zu,\n"
		    "  \"n_head\": %zu,\n  \"n_embd\": %zu,\n  \"n_positions\": %zu,\n"
		    "  \"vocab_size\": %zu,\n  \"layer_norm_epsilon\": %.17g,\n"
		    "  \"bos_token_id\": %s,\n  \"eos_token_id\": %s\n}\n",
		    c->layers, c->heads, c->width, c->context, c->vocab, c->eps, end, end) < 0)
		complain(error, "%s: %s", path, strerror(errno));
	if (out && fclose(out) != 0)
		complain(error, "%s: %s", path, strerror(errno));
}

static zero_status export_model(struct model *m, const char *path)
{
	zero_status status = zero_export(m->job, path);

	if (status)
		return status;
	if (zero_rank(m->job) == 0)
		export_config(&m->config, path, m->error);
	return agree(m);
}

/* Declares the model and fills it from a checkpoint, from --model, or with initial values. */
static zero_status model_open(struct model *m, const struct flags *flags, struct progress *p)
{
	const char *prefix = "transformer."; /* as GPT2LMHeadModel saves; GPT2Model has none */
	/* Hugging Face's files also have attention masks, which this program computes. */
	zero_load_model_options load = {.allow_unexpected = true};
	zero_file *file = NULL;
	zero_status status = ZERO_OK;

	if (flags->model)
		status = zero_file_open(m->job, flags->model, &file);
	if (file && !zero_file_find(file, "transformer.wte.weight"))
		prefix = "";
	zero_file_close(file);
	if (status == ZERO_OK)
		status = model_declare(m, prefix, flags);
	if (status == ZERO_OK && (flags->checkpoint || protects(m->job)))
		status = resume(m->job, flags, p, m->error);
	if (status || p->resumed)
		return status;
	return flags->model ? zero_load_model(m->job, flags->model, &load, NULL)
			    : model_init(m, flags->seed);
}

static void print_job(const struct model *m, const struct flags *flags, size_t seq, size_t tokens)
{
	const struct config *c = &m->config;

	printf("GPT-2: %zu layers, %zu heads, width %zu, context %zu, vocabulary %zu: %.2f million "
	       "parameters\n",
	       c->layers, c->heads, c->width, c->context, c->vocab,
	       1e-6 * (double)parameter_count(m));
	printf("%d ranks, stage %s; a step is %d x %zu sequences of %zu tokens, of %zu\n",
	       zero_world(m->job), zero_setting(m->job, "stage"), zero_world(m->job), flags->batch,
	       seq, tokens);
	fflush(stdout);
}

/* Memory, samples and the export, after the last step. */
static zero_status finish(struct model *m, const struct flags *flags, size_t seq)
{
	zero_status status = print_memory(m);

	if (status == ZERO_OK && flags->sample)
		status = sample(m, flags, seq);
	if (status == ZERO_OK && flags->export)
		status = export_model(m, flags->export);
	return status;
}

static zero_status run(zero_job *job, const struct flags *flags, struct progress *p)
{
	struct model m = {.job = job};
	struct corpus corpus = {0};
	size_t seq = 0;
	FILE *log = NULL;
	zero_status status;

	get_config(&m.config, flags, &seq, m.error);
	corpus_open(&corpus, flags, seq, m.error);
	m.block = calloc(m.config.layers, sizeof(*m.block));
	m.acts = calloc(m.config.layers, sizeof(*m.acts));
	m.runs = calloc((size_t)zero_world(job), sizeof(*m.runs));
	if (!m.block || !m.acts || !m.runs)
		complain(m.error, "no memory for %zu layers", m.config.layers);
	describe_settings(p, job, flags, seq, corpus.tokens);
	status = agree(&m);
	if (status == ZERO_OK && flags->checkpoint && !flags->eval)
		status = catch_signals(job);
	if (status == ZERO_OK)
		status = model_open(&m, flags, p);
	if (status == ZERO_OK) {
		if (flags->log && zero_rank(job) == 0 && !m.error[0])
			log = log_open(flags->log, p->step, m.error);
		model_buffers(&m, flags->batch * seq, seq);
		status = agree(&m);
	}
	if (status == ZERO_OK && zero_rank(job) == 0)
		print_job(&m, flags, seq, corpus.tokens);
	if (status == ZERO_OK)
		status = train(&m, flags, &corpus, seq, p, log);
	if (status == ZERO_OK && !p->stopped)
		status = finish(&m, flags, seq);
	if (log)
		fclose(log);
	for (size_t i = 0; i < corpus.parts; i++)
		if (corpus.part[i].tokens)
			munmap((void *)corpus.part[i].bytes,
			       corpus.part[i].tokens * corpus.token_bytes);
	free(corpus.part);
	math_close(job, m.arena);
	free(m.block);
	free(m.acts);
	free(m.runs);
	return status;
}

/* The rank on which an error arose prints it, so that an agreed error is printed once. */
static void print_error(const zero_job *job)
{
	if (zero_last_error_rank() == zero_rank(job))
		fprintf(stderr, "gpt: %s\n", zero_last_error());
}

int main(int argc, char **argv)
{
	struct flags flags = default_flags;
	struct progress progress = {0};
	char error[SENTENCE] = "";
	zero_job *job = NULL;
	zero_status status;
	int result = 0;

	flags.text = calloc((size_t)argc, sizeof(*flags.text));
	if (!flags.text)
		return 1;
	parse_flags(&flags, argc, argv, error);
	if (flags.checkpoint && !flags.eval)
		hold_signal(SIG_BLOCK);
	/* The rank that prints is known only after zero_open. */
	status = zero_open(&(zero_options){.settings = math_settings}, &job);
	if (flags.help || error[0]) {
		result = flags.help ? 0 : 2;
		if (zero_rank(job) == 0 && flags.help)
			print_help();
		else if (zero_rank(job) == 0)
			fprintf(stderr, "gpt: %s\n", error);
	} else if (status || run(job, &flags, &progress)) {
		print_error(job);
		result = 1;
	} else if (progress.stopped) {
		/* The job is to be started again. When the first rank exits with this status, the
		   launcher sends SIGTERM to the others. */
		result = EX_TEMPFAIL;
		signal(SIGTERM, SIG_IGN);
	}
	zero_close(job);
	free(flags.text);
	return result;
}
