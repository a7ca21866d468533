/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from a budget and a layout, against numbers worked out by hand. */
#include <string.h>

#include "backend/exchange.h"
#include "job/job.h"
#include "model/flatten_tier.h"
#include "launcher/plan/model.h"
#include "core/options.h"
#include "train/train.h"
#include "unit.h"

#define M ((uint64_t)1 << 20)

START_TEST(automatic_sizes)
{
	struct zero_settings settings = {0};

	ck_assert_uint_eq(zero_auto_stream_threshold(40 * M, 0), 40 * M);
	ck_assert_uint_eq(zero_auto_stream_threshold(40 * M, 64 * 40 * M), 40 * M);
	ck_assert_uint_eq(zero_auto_stream_threshold(40 * M, 64 * 41 * M), 41 * M);
	ck_assert_uint_eq(zero_auto_stream_threshold(1, UINT64_MAX), UINT64_MAX / 64);
	settings.value[ZERO_OPT_STREAM_THRESHOLD].number = 3;
	settings.value[ZERO_OPT_GATHER_LIMIT].kind = ZERO_VALUE_AUTO;
	settings.value[ZERO_OPT_BUDGET].number = UINT64_MAX;
	zero_settings_set_sizes(&settings);
	ck_assert_uint_eq(settings.value[ZERO_OPT_STREAM_THRESHOLD].number, 3);
	ck_assert_uint_eq(settings.value[ZERO_OPT_GATHER_LIMIT].number, UINT64_MAX / 4);
	ck_assert_uint_eq(zero_exchange_piece(1), 1 << 20);
	ck_assert_uint_eq(zero_exchange_piece(3), 21 * 16384);
	ck_assert_uint_eq(zero_exchange_piece(64), 16384);
	/* never smaller, however many ranks there are */
	ck_assert_uint_eq(zero_exchange_piece(5000), 16384);
}
END_TEST

/* ---- bytes by kind --------------------------------------------------------------------------- */

struct expected {
	size_t world;
	int stage;
	uint64_t shards, gathered, gradients, optimizer, staging;
	size_t share, gradient_size;
	bool offload, device;
};

/*
 * Two groups. The first has one flat buffer with 4096 f32 that are trained (16384 bytes) and 4096
 * bool that are not (4096); the second two: 8192 bf16 that are trained (16384; f32 gradients and
 * states of 32768), and 4096 f32. For four ranks the segments are divisible by 64 * 4.
 */
static const struct zero_layout_segment first_segments[] = {
	{.flat = 0, .dtype = ZERO_F32, .trainable = true, .count = 4096},
	{.flat = 0, .dtype = ZERO_BOOL, .count = 4096},
};
static const struct zero_layout_segment second_segments[] = {
	{.flat = 0, .dtype = ZERO_BF16, .trainable = true, .count = 8192},
	{.flat = 1, .dtype = ZERO_F32, .trainable = true, .count = 4096},
};

/* All of it, as above, and what one of four ranks has of it. */
enum {
	ALL = 20480 + 32768,
	ALL_GRADIENTS = 16384 + 49152,
	ALL_STATES = 32768 + 3 * 32768 + 2 * 16384,
	CUT = 4096 + 4096 + 4096 + 4096,
	CUT_SHARED = 8192 + 4096 + 4096,
	CUT_GRADIENTS = 4096 + 8192 + 4096 + ALL_GRADIENTS,
	CUT_STATES = 2 * 4096 + 3 * 8192 + 2 * 4096,
	SENT = 2 * 3 * 21 * 16384,
};

static const struct expected expectations[] = {
	/* all of it: gradients summed in place; master values for bf16 */
	{1, 0, ALL, 0, ALL_GRADIENTS, ALL_STATES, 0, .share = 1},
	{1, 3, ALL, 0, ALL_GRADIENTS, ALL_STATES, 0, .share = 0},
	{4, 0, ALL, 0, ALL_GRADIENTS, ALL_STATES, SENT, .share = 0},
	/* sums and states cut in four, and both groups' own gradients */
	{4, 1, ALL, 0, CUT_GRADIENTS, CUT_STATES, SENT, .share = 0},
	{4, 2, ALL, 0, CUT_GRADIENTS, CUT_STATES, SENT, .share = 0},
	/* a shard of bool has 1024 bytes, which take a page */
	{4, 3, CUT, ALL, CUT_GRADIENTS, CUT_STATES, SENT, .share = 0},
	{4, 3, CUT, ALL, CUT_GRADIENTS, CUT_STATES, SENT, .share = 1},
	/* one node: a quarter of what is there once, in pages; nothing is sent */
	{4, 0, ALL, 0, ALL_GRADIENTS, ALL_STATES, 0, .share = 4},
	{4, 1, CUT_SHARED, 0, CUT_GRADIENTS, CUT_STATES, 0, .share = 4},
	{4, 2, CUT_SHARED, 0, CUT_GRADIENTS, CUT_STATES, 0, .share = 4},
	{4, 3, CUT_SHARED, 0, CUT_GRADIENTS, CUT_STATES, 0, .share = 4},
	/* two nodes: whole segments are each rank's own; at stage 3 two shards lie together, those
	   of f32 and bool 8192 and 4096 bytes, and an output is there once for two ranks */
	{4, 2, ALL, 0, CUT_GRADIENTS, CUT_STATES, 2 * M, .share = 2},
	{4, 3, CUT_SHARED, 12288 + 8192 + 8192, CUT_GRADIENTS, CUT_STATES, 2 * M, .share = 2},
	/* three and one: a third of 12288 + 4096, and of each output; the one is as without */
	{4, 3, CUT_SHARED, 8192 + 8192 + 8192, CUT_GRADIENTS, CUT_STATES, 2 * M, .share = 3},
	/* gradients of 16 bits are never summed in place */
	{4, 0, ALL, 0, ALL_GRADIENTS + 8192 + 24576, ALL_STATES, 0, .share = 4, .gradient_size = 2},
	{4, 3, CUT_SHARED, 0, 4096 + 8192 + 4096 + 8192 + 24576, CUT_STATES, 0, .share = 4,
	 .gradient_size = 2},
	{4, 3, CUT_SHARED, 0, CUT_GRADIENTS, CUT_STATES, 0, .share = 4, .offload = true},
	/* GPUs: two sets, however many ranks there are, and a page each for the state of the step
	   and for those of the groups */
	{4, 3, CUT, ALL, CUT_GRADIENTS, CUT_STATES, 64 * M + 2 * 4096, .share = 1, .device = true},
	{1, 3, ALL, 0, ALL_GRADIENTS, ALL_STATES, 2 * 4096, .share = 1, .device = true},
};

START_TEST(bytes_by_kind)
{
	const struct expected *want = &expectations[_i];
	struct zero_sizing sizing = {.world = want->world,
				     .share = want->share,
				     .stage = want->stage,
				     .offload = want->offload,
				     .device = want->device,
				     .gradient_size = want->gradient_size};
	uint64_t bytes[ZERO_MEM_KINDS];
	uint64_t optimizer = want->offload ? 0 : want->optimizer;

	zero_sizing_group(&sizing, first_segments, 2, 0);
	zero_sizing_group(&sizing, second_segments, 2, 0);
	zero_sizing_bytes(&sizing, bytes);
	ck_assert_uint_eq(bytes[ZERO_MEM_SHARDS], want->shards);
	ck_assert_uint_eq(bytes[ZERO_MEM_GATHERED], want->gathered);
	ck_assert_uint_eq(bytes[ZERO_MEM_GRADIENTS], want->gradients);
	ck_assert_uint_eq(bytes[ZERO_MEM_OPTIMIZER], optimizer);
	ck_assert_uint_eq(bytes[ZERO_MEM_OFFLOAD], want->optimizer - optimizer);
	ck_assert_uint_eq(bytes[ZERO_MEM_STAGING], want->staging);
	ck_assert_uint_eq(zero_sizing_total(&sizing), want->shards + want->gathered +
							      want->gradients + optimizer +
							      want->staging);
	ck_assert_uint_eq(sizing.largest_flat, 20480);
}
END_TEST

/* The two largest groups count, wherever they stand. */
START_TEST(two_largest)
{
	static const size_t orders[][4] = {{1, 2, 3, 4}, {4, 3, 2, 1}, {3, 1, 4, 2}, {4, 4, 1, 1}};
	static const uint64_t sums[] = {7, 7, 7, 8};

	for (size_t o = 0; o < 4; o++) {
		struct zero_sizing sizing = {.world = 2, .stage = 3};
		uint64_t bytes[ZERO_MEM_KINDS];

		for (size_t i = 0; i < 4; i++) {
			struct zero_layout_segment segment = {
				.dtype = ZERO_F32, .trainable = true, .count = 2048 * orders[o][i]};

			zero_sizing_group(&sizing, &segment, 1, 0);
		}
		zero_sizing_bytes(&sizing, bytes);
		ck_assert_uint_eq(bytes[ZERO_MEM_GATHERED], 8192 * sums[o]);
		ck_assert_uint_eq(bytes[ZERO_MEM_GRADIENTS], 4096 * 10 + 8192 * sums[o]);
	}
}
END_TEST

START_TEST(nothing_and_too_much)
{
	struct zero_sizing sizing = {.world = 2, .stage = 3};
	struct zero_layout_segment empty = {.dtype = ZERO_F32, .trainable = true};
	struct zero_layout_segment huge = {
		.dtype = ZERO_F32, .trainable = true, .count = (size_t)1 << 59};

	zero_sizing_group(&sizing, NULL, 0, 0);
	zero_sizing_group(&sizing, &empty, 1, 0);
	ck_assert_uint_eq(zero_sizing_total(&sizing), 2 * M);
	for (int i = 0; i < 100; i++)
		zero_sizing_group(&sizing, &huge, 1, 0);
	ck_assert_uint_eq(zero_sizing_total(&sizing), UINT64_MAX);
	ck_assert_int_eq(zero_tier_forecast(&sizing, ZERO_FLATTEN_AUTO, UINT64_MAX, 1),
			 ZERO_TIER_HOST);
}
END_TEST

/* ---- tiers ----------------------------------------------------------------------------------- */

struct tier_case {
	struct zero_flatten flatten;
	enum zero_tier tier;
	uint64_t need;
};

enum { AUTO = ZERO_FLATTEN_AUTO };

static const struct tier_case tier_cases[] = {
	/* on the device: the first whose need is met, to the byte */
	{{AUTO, 101, 101, 7, 4, 1, false, true}, ZERO_TIER_DEVICE, 101},
	{{AUTO, 100, 101, 7, 4, 1, false, true}, ZERO_TIER_DISTRIBUTED, 26},
	{{AUTO, 26, 101, 7, 4, 1, false, true}, ZERO_TIER_DISTRIBUTED, 26},
	{{AUTO, 25, 101, 7, 4, 1, false, true}, ZERO_TIER_HOST, 14},
	{{AUTO, 0, 101, 7, 4, 1, false, true}, ZERO_TIER_HOST, 14},
	{{AUTO, 100, 101, 7, 4, 1, false, false}, ZERO_TIER_HOST, 14},
	{{AUTO, 100, 101, 7, 1, 1, false, true}, ZERO_TIER_HOST, 14},
	{{AUTO, 0, 0, 7, 1, 1, false, true}, ZERO_TIER_DEVICE, 0},
	/* on the host: by who shares the node */
	{{AUTO, 0, 101, 7, 4, 2, true, true}, ZERO_TIER_DISTRIBUTED, 115},
	{{AUTO, 500, 101, 7, 4, 1, true, true}, ZERO_TIER_DEVICE, 115},
	{{AUTO, 500, 101, 7, 4, 2, true, false}, ZERO_TIER_DEVICE, 115},
	/* what a user says is taken, met or not */
	{{ZERO_FLATTEN_DEVICE, 0, 101, 7, 4, 1, false, false}, ZERO_TIER_DEVICE, 101},
	{{ZERO_FLATTEN_DISTRIBUTED, 0, 101, 7, 4, 1, false, false}, ZERO_TIER_DISTRIBUTED, 26},
	{{ZERO_FLATTEN_HOST, 500, 101, 7, 4, 1, false, true}, ZERO_TIER_HOST, 14},
	{{ZERO_FLATTEN_HOST, 500, 101, 7, 4, 1, true, true}, ZERO_TIER_HOST, 0},
};

START_TEST(tiers)
{
	const struct tier_case *want = &tier_cases[_i];
	enum zero_tier tier = zero_tier_for(&want->flatten);

	ck_assert_str_eq(zero_tier_name(tier), zero_tier_name(want->tier));
	ck_assert_uint_eq(zero_tier_need(tier, &want->flatten), want->need);
}
END_TEST

/* Room is what the budget has left once all of the stage is there. */
START_TEST(device_tier)
{
	struct zero_sizing sizing = {.world = 4, .stage = 2};
	uint64_t taken;

	zero_sizing_group(&sizing, second_segments, 2, 0);
	taken = zero_sizing_total(&sizing);
	ck_assert_int_eq(zero_tier_forecast(&sizing, AUTO, taken + 16384, M), ZERO_TIER_DEVICE);
	ck_assert_int_eq(zero_tier_forecast(&sizing, AUTO, taken + 16383, M),
			 ZERO_TIER_DISTRIBUTED);
	ck_assert_int_eq(zero_tier_forecast(&sizing, AUTO, taken + 4096, M), ZERO_TIER_DISTRIBUTED);
	ck_assert_int_eq(zero_tier_forecast(&sizing, AUTO, taken + 4095, M), ZERO_TIER_HOST);
	ck_assert_int_eq(zero_tier_forecast(&sizing, AUTO, taken - 1, M), ZERO_TIER_HOST);
	ck_assert_int_eq(zero_tier_forecast(&sizing, ZERO_FLATTEN_DEVICE, 0, M), ZERO_TIER_DEVICE);
}
END_TEST

/* At stages 1 and 2 ranks that share memory have one buffer between them, but tensors of their
   own. */
START_TEST(shared_device_tier)
{
	struct zero_sizing sizing = {.world = 4, .share = 4, .stage = 2};
	uint64_t taken;

	zero_sizing_group(&sizing, second_segments, 2, 0);
	ck_assert_uint_eq(sizing.all_flats, 2 * 16384);
	ck_assert_uint_eq(sizing.shards, 2 * 4096);
	taken = zero_sizing_total(&sizing) - 2 * 4096 + 2 * 16384;
	ck_assert_int_eq(zero_tier_forecast(&sizing, AUTO, taken + 4096, 1), ZERO_TIER_DEVICE);
	ck_assert_int_eq(zero_tier_forecast(&sizing, AUTO, taken + 4095, 1), ZERO_TIER_HOST);
}
END_TEST

static void most_is(const struct zero_packing *packing, uint64_t device, uint64_t distributed,
		    uint64_t host)
{
	ck_assert_uint_eq(packing->most[ZERO_TIER_DEVICE], device);
	ck_assert_uint_eq(packing->most[ZERO_TIER_DISTRIBUTED], distributed);
	ck_assert_uint_eq(packing->most[ZERO_TIER_HOST], host);
}

/* Buffers of 100 and 60 bytes, whose tensors have 90 and 60; 3 are held before, chunks are of 7. */
START_TEST(packing)
{
	struct zero_packing device = {.chunk = 7, .held = {3, 3, 3}, .most = {3, 3, 3}};
	struct zero_packing host = device;

	zero_packing_add(&device, 100, 25, 90);
	most_is(&device, 3 + 100, 3 + 25 + 10, 3 + 14);
	zero_packing_add(&device, 60, 15, 60);
	most_is(&device, 3 + 100, 3 + 25 + 10, 3 + 10 + 14);
	/* tensors that are kept: only copies */
	zero_packing_add(&device, 200, 50, 0);
	most_is(&device, 3 + 10 + 200, 3 + 10 + 250, 3 + 10 + 200);
	/* laid straight, each its part */
	device = (struct zero_packing){.chunk = 7, .held = {3, 3, 3}, .most = {3, 3, 3}};
	zero_packing_add(&device, 25, 0, 100);
	zero_packing_add(&device, 10, 0, 40);
	most_is(&device, 3 + 25, 3 + 25, 3 + 14);

	host.on_host = true;
	zero_packing_add(&host, 100, 25, 0);
	zero_packing_add(&host, 60, 15, 0);
	most_is(&host, 3 + 160 + 14, 3 + 160 + 14, 3);
	zero_packing_add(&host, UINT64_MAX - 1, 1, 0);
	ck_assert_uint_eq(host.most[ZERO_TIER_DEVICE], UINT64_MAX);
}
END_TEST

/* ---- models ---------------------------------------------------------------------------------- */

START_TEST(groups_by_name)
{
	static const struct {
		const char *name, *group;
	} names[] = {
		{"transformer.h.0.attn.weight", "transformer.h.0."},
		{"transformer.h.11.mlp.2.bias", "transformer.h.11."},
		{"0.weight", "0."},
		{"transformer.wte.weight", "transformer.wte.weight"},
		{"h2.w", "h2.w"},
		{"2h.w", "2h.w"},
		{"a..b", "a..b"},
		/* a number at the end names a tensor */
		{"experts.3", "experts.3"},
		{"a.", "a."},
		{"", ""},
	};

	for (size_t i = 0; i < COUNT_OF(names); i++)
		ck_assert_msg(model_group_length(names[i].name) == strlen(names[i].group),
			      "%s: %zu", names[i].name, model_group_length(names[i].name));
}
END_TEST

START_TEST(a_model)
{
	/* the layers' tensors are not side by side, and "h.1" is no part of "h.10" */
	static const zero_tensor tensors[] = {
		{.name = "h.1.w", .dtype = ZERO_F32, .ndim = 2, .shape = {64, 64}},
		{.name = "h.10.w", .dtype = ZERO_F32, .ndim = 1, .shape = {2048}},
		{.name = "steps", .dtype = ZERO_I64, .ndim = 0},
		{.name = "h.1.b", .dtype = ZERO_F32, .ndim = 1, .shape = {4096}},
		{.name = "h.10.none", .dtype = ZERO_F32, .ndim = 2, .shape = {SIZE_MAX, 0}},
		{.name = "twice", .dtype = ZERO_F64, .ndim = 1, .shape = {1024}},
	};
	struct zero_settings settings = {0};
	struct zero_sizing sizing;
	uint64_t bytes[ZERO_MEM_KINDS];
	struct model model = {0};

	settings.value[ZERO_OPT_STAGE].number = 3;
	settings.value[ZERO_OPT_BUCKET].number = M;
	settings.value[ZERO_OPT_ALLGATHER].number = ZERO_ALLGATHER_GROUPED;
	zero_planned_begin(&model.of, &settings, 2, 1);
	for (size_t i = 0; i < COUNT_OF(tensors); i++)
		ck_assert_int_eq(model_add(&model, &tensors[i]), ZERO_OK);
	ck_assert_uint_eq(model.tensors, 6);
	ck_assert_uint_eq(model.elements, 8192 + 2048 + 1 + 1024);
	ck_assert_uint_eq(model.bytes, 4 * (8192 + 2048) + 8 + 8192);
	ck_assert_int_eq(zero_grid_measure(&model.of.job, 2, &sizing), ZERO_OK);
	ck_assert_uint_eq(sizing.groups, 4);
	zero_sizing_bytes(&sizing, bytes);
	ck_assert_uint_eq(bytes[ZERO_MEM_SHARDS], 16384 + 4096 + 4096 + 4096);
	/* "h.1." has 32768 bytes, "h.10." and "twice" 8192 */
	ck_assert_uint_eq(bytes[ZERO_MEM_GATHERED], 32768 + 8192);
	/* neither f64 nor integers are trained */
	ck_assert_uint_eq(bytes[ZERO_MEM_OPTIMIZER], 2 * (16384 + 4096));
	ck_assert_uint_eq(bytes[ZERO_MEM_GRADIENTS], 16384 + 4096 + 32768 + 8192);

	model.of.job.settings.value[ZERO_OPT_ALLGATHER].number = ZERO_ALLGATHER_SINGLE;
	ck_assert_int_eq(zero_grid_measure(&model.of.job, 2, &sizing), ZERO_OK);
	ck_assert_uint_eq(sizing.largest_flat, 16384);
	zero_planned_end(&model.of);
	ck_assert_int_eq(zero_grid_measure(&model.of.job, 2, &sizing), ZERO_OK);
	ck_assert_uint_eq(sizing.shards, 0);
}
END_TEST

/* By name, and by which of a node's ranks each is where containers have one name. */
START_TEST(nodes_of_ranks)
{
	static const struct {
		struct zero_rank_node ranks[6];
		size_t nodes, of[6];
	} cases[] = {
		{{{7, 0}, {7, 1}, {7, 2}, {9, 0}, {9, 1}, {9, 2}}, 2, {0, 0, 0, 1, 1, 1}},
		{{{7, 0}, {9, 0}, {8, 0}, {7, 1}, {9, 1}, {8, 1}}, 3, {0, 1, 2, 0, 1, 2}},
		{{{7, 0}, {7, 1}, {7, 2}, {7, 0}, {7, 1}, {7, 2}}, 2, {0, 0, 0, 1, 1, 1}},
		{{{7, 0}, {7, 0}, {7, 0}, {7, 1}, {7, 1}, {7, 1}}, 3, {0, 1, 2, 0, 1, 2}},
		{{{7, 0}, {7, 1}, {9, 0}, {7, 0}, {9, 1}, {7, 1}}, 3, {0, 0, 1, 2, 1, 2}},
		{{{7, 5}, {7, 4}, {7, 3}, {7, 2}, {7, 1}, {7, 0}}, 1, {0, 0, 0, 0, 0, 0}},
	};

	for (size_t c = 0; c < COUNT_OF(cases); c++) {
		struct zero_nodes nodes;
		size_t ranks[6] = {0};

		ck_assert_int_eq(zero_nodes_number(cases[c].ranks, 6, &nodes), ZERO_OK);
		ck_assert_uint_eq(nodes.count, cases[c].nodes);
		for (size_t rank = 0; rank < 6; rank++) {
			ck_assert_uint_eq(nodes.of[rank], cases[c].of[rank]);
			ranks[cases[c].of[rank]]++;
		}
		for (size_t node = 0; node < nodes.count; node++)
			ck_assert_uint_eq(nodes.ranks[node], ranks[node]);
		zero_nodes_free(&nodes);
	}
}
END_TEST

/* Divisors of all nodes; and where all have as many, whole nodes that divide them. */
START_TEST(sizes_of_grids)
{
	static const struct {
		size_t ranks[4], nodes, sizes[10];
	} cases[] = {
		{{8, 8, 8, 8}, 4, {1, 2, 4, 8, 16, 32, 32}},
		{{6, 6, 6}, 3, {1, 2, 3, 6, 18}},
		{{8, 4}, 2, {1, 2, 4, 12}},
		{{3, 5}, 2, {1, 8}},
		{{1, 1, 1, 1}, 4, {1, 2, 4}},
		{{1}, 1, {1, 1}},
	};

	for (size_t c = 0; c < COUNT_OF(cases); c++) {
		size_t size = 0;

		for (size_t i = 0; cases[c].sizes[i]; i++) {
			size = zero_grid_size_above(cases[c].ranks, cases[c].nodes, size);
			ck_assert_uint_eq(size, cases[c].sizes[i]);
		}
	}
}
END_TEST

/* Llama 3 8B: at 64 ranks the busiest one is 1.06 of the mean, by hand. */
START_TEST(balance_of_muon)
{
	static const size_t shapes[][2] = {{4096, 4096},  {1024, 4096},  {1024, 4096}, {4096, 4096},
					   {14336, 4096}, {14336, 4096}, {4096, 14336}};
	enum { LAYERS = 32 };
	static const zero_tensor others[] = {
		/* neither an embedding nor what is no matrix is Muon's */
		{.name = "embedding", .dtype = ZERO_F32, .ndim = 2, .shape = {64, 64}},
		{.name = "layers.0.norm", .dtype = ZERO_F32, .ndim = 1, .shape = {64}},
		{.name = "layers.0.steps", .dtype = ZERO_I64, .ndim = 2, .shape = {64, 64}},
	};
	/* one stack of 64 experts is 64 equal matrices */
	static const zero_tensor stack = {
		.name = "layers.0.experts", .dtype = ZERO_F32, .ndim = 3, .shape = {64, 30, 20}};
	struct zero_settings settings = {0};
	struct model model = {0};
	size_t matrices;
	double balance;

	zero_planned_begin(&model.of, &settings, 64, 1);
	for (size_t i = 0; i < LAYERS * COUNT_OF(shapes); i++) {
		const size_t *shape = shapes[i % COUNT_OF(shapes)];
		zero_tensor tensor = {.dtype = ZERO_BF16, .ndim = 2, .shape = {shape[0], shape[1]}};
		char name[40];

		snprintf(name, sizeof name, "layers.%zu.%zu", i / COUNT_OF(shapes),
			 i % COUNT_OF(shapes));
		tensor.name = name;
		ck_assert_int_eq(model_add(&model, &tensor), ZERO_OK);
	}
	for (size_t i = 0; i < COUNT_OF(others); i++)
		ck_assert_int_eq(model_add(&model, &others[i]), ZERO_OK);
	ck_assert_int_eq(zero_muon_balance(&model.of.job, &matrices, &balance), ZERO_OK);
	ck_assert_uint_eq(matrices, LAYERS * COUNT_OF(shapes));
	ck_assert_double_eq_tol(balance, 1.06, 0.02);
	zero_planned_end(&model.of);
	ck_assert_int_eq(model_add(&model, &stack), ZERO_OK);
	ck_assert_int_eq(zero_muon_balance(&model.of.job, &matrices, &balance), ZERO_OK);
	ck_assert_uint_eq(matrices, 64);
	ck_assert_double_eq(balance, 1);
	zero_planned_end(&model.of);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("sizing");

	tcase_add_test(tcase, automatic_sizes);
	tcase_add_loop_test(tcase, bytes_by_kind, 0, COUNT_OF(expectations));
	tcase_add_test(tcase, two_largest);
	tcase_add_test(tcase, nothing_and_too_much);
	tcase_add_loop_test(tcase, tiers, 0, COUNT_OF(tier_cases));
	tcase_add_test(tcase, device_tier);
	tcase_add_test(tcase, shared_device_tier);
	tcase_add_test(tcase, packing);
	tcase_add_test(tcase, groups_by_name);
	tcase_add_test(tcase, a_model);
	tcase_add_test(tcase, nodes_of_ranks);
	tcase_add_test(tcase, sizes_of_grids);
	tcase_add_test(tcase, balance_of_muon);
	return run_cases(tcase, NULL);
}
