/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of GPUs on several nodes: the sums, and the bytes that each rank sends.
 * DOUBLE_RANKS_OF_NODE says how many consecutive ranks are on a node, see tests/double/nodes.c. In
 * a window the stand-in for NCCL sums in f32, in the order of its ranks, and rounds once.
 */
#include <math.h>

#include "../ranks/ranks.h"
#include "../ranks/reference.h"

/* LARGE elements go through the window in two pieces. */
enum { SMALL = 20011, LARGE = 8 * 2200000, MICRO_BATCHES = 2, MOST = 8 };

/* The ranks of a group as rows of a node's, all as long: ranks[row * columns + column]. */
struct grid {
	int rows, columns, ranks[MOST];
};

static zero_job *job;
static int ranks_of_node;
static bool ordered; /* ZERO_REDUCE */

static bool divides_all(int columns, const int *on_node)
{
	for (int node = 0; node < MOST; node++)
		if (on_node[node] % columns)
			return false;
	return true;
}

/* Rank r of a team is rank r * `apart` + `apart` - 1 of the job. */
static struct grid make_grid(int world, int apart)
{
	struct grid grid = {.columns = world};
	int on_node[MOST] = {0};

	for (int r = 0; r < world; r++)
		on_node[(r * apart + apart - 1) / ranks_of_node]++;
	while (!ordered && !divides_all(grid.columns, on_node))
		grid.columns--;
	grid.rows = world / grid.columns;
	for (int r = 0; r < world; r++)
		grid.ranks[r] = r;
	return grid;
}

/* Of very different size, so that another order has other bits. */
static float gradient_of(zero_dtype dtype, int rank, int batch, size_t i)
{
	uint64_t bits =
		mixed(test_seed() + ((i * MOST + (size_t)rank) * MICRO_BATCHES) + (uint64_t)batch);
	unsigned char element[4];

	ref_narrow(dtype, ldexp((double)signed_unit(bits), (int)(bits % 12) - 6), element);
	return ref_widen(dtype, element);
}

static float row_sum(const struct grid *grid, zero_dtype dtype, int row, int batch, size_t i)
{
	const int *ranks = &grid->ranks[row * grid->columns];
	float sum = gradient_of(dtype, ranks[0], batch, i);

	for (int column = 1; column < grid->columns; column++)
		sum += gradient_of(dtype, ranks[column], batch, i);
	return sum;
}

/* With one row of all ranks, and nothing that is rounded, this is the sum in the order of the
   ranks. */
static float right_sum(const struct grid *grid, zero_dtype dtype, size_t i)
{
	float sum = 0;

	for (int batch = 0; batch < MICRO_BATCHES; batch++) {
		float all = 0;

		for (int row = 0; row < grid->rows; row++) {
			float of_row = row_sum(grid, dtype, row, batch, i);
			unsigned char element[4];

			ref_narrow(ordered ? ZERO_F32 : dtype, (double)of_row, element);
			of_row = ref_widen(ordered ? ZERO_F32 : dtype, element);
			all = row ? all + of_row : of_row;
		}
		sum = batch ? sum + all : all;
	}
	return sum;
}

static void check_bytes(const struct grid *grid, zero_dtype dtype, size_t part, uint64_t sent)
{
	size_t near = (size_t)grid->columns - 1, far = (size_t)grid->rows - 1;
	size_t want = near * (size_t)grid->rows * part * zero_dtype_size(dtype) +
		      far * part * sizeof(float);

	check(sent == want * MICRO_BATCHES, "%s: %llu bytes, not %zu", zero_dtype_name(dtype),
	      (unsigned long long)sent, want * MICRO_BATCHES);
}

static void reduce(zero_param *param, size_t count, zero_dtype dtype, int rank)
{
	for (int batch = 0; batch < MICRO_BATCHES; batch++) {
		float *wide = malloc(count * sizeof(*wide));
		void *gradient = zero_gradient_as(param, dtype);

		check(wide && gradient, "%s", zero_last_error());
		for (size_t i = 0; i < count; i++)
			wide[i] = gradient_of(dtype, rank, batch, i);
		ref_cast(dtype, gradient, ZERO_F32, wide, count);
		free(wide);
		ok(zero_reduce(zero_param_group(param)));
	}
}

/* Steps so that a parameter becomes its mean gradient, which is exact: the ranks are a power of
   two. */
static void run(size_t count, zero_dtype dtype, int apart)
{
	zero_adamw adamw = {.lr = 0x1p60F, .eps = 0x1p60F};
	int world = zero_world(job) / apart, members[MOST], rank = zero_rank(job) / apart;
	bool member = zero_rank(job) % apart == apart - 1;
	struct grid grid = make_grid(world, apart);
	size_t part = (count + 256 * (size_t)world - 1) / (256 * (size_t)world) * 256;
	zero_source zero = zero_from_constant(0);
	zero_traffic before, after;
	zero_team *team = NULL;
	zero_group *group;
	zero_param *param;
	const float *got;

	for (int r = 0; r < world; r++)
		members[r] = r * apart + apart - 1;
	if (apart > 1)
		ok(zero_team_new(job, members, (size_t)world, &team));
	ok(zero_group_new(job, "g", team, &group));
	param = new_param(group, "p", ZERO_F32, count, true);
	ok(zero_group_gradient_dtype(group, dtype));
	ok(zero_layout(job));
	if (member)
		ok(zero_load(param, &zero));
	ok(zero_traffic_now(job, &before));
	if (member)
		reduce(param, count, dtype, rank);
	adamw.micro_batches = 1;
	ok(zero_step(job, &adamw, NULL));
	ok(zero_traffic_now(job, &after));
	if (!member)
		return;
	check_bytes(&grid, dtype, part, after.bytes_sent - before.bytes_sent);
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	got = zero_data(param);
	for (size_t i = 0; i < count; i += count == LARGE ? 61 : 1) {
		float want = -right_sum(&grid, dtype, i) / (float)zero_world(job);

		check(want == got[i], "%s, %d rows of %d: element %zu is %a, not %a",
		      zero_dtype_name(dtype), grid.rows, grid.columns, i, (double)got[i],
		      (double)want);
	}
	ok(zero_release(group));
}

int main(void)
{
	static const zero_dtype types[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

	ranks_of_node = atoi(getenv("DOUBLE_RANKS_OF_NODE"));
	ordered = !strcmp(getenv("ZERO_REDUCE"), "ordered");
	for (size_t t = 0; t < 3; t++)
		for (int apart = 1; apart < 3; apart++) {
			job = open_job("stage=3 share=1");
			run(SMALL, types[t], apart);
			ok(zero_close(job));
		}
	if (ranks_of_node == MOST / 2) {
		job = open_job("stage=3 share=1");
		run(LARGE, ZERO_F32, 1);
		ok(zero_close(job));
	}
	return 0;
}
