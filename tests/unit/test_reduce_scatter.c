/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatters between up to 512 ranks on nodes of any sizes, on a NCCL that is recorded: each
 * owner's sum with reduce=ordered bit for bit in rank order, and else within what rounding may do;
 * calls of NCCL, messages and bytes. All ranks enqueue the same things in the same order, so that
 * they run in lock step afterwards.
 */
#include <math.h>
#include <stdio.h>

#include "nccl_record.h"

static uint64_t state;

/* ---- in place of kernels, windows and communicators ------------------------------------------ */

void zero_launch(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
		 const void *arguments)
{
	(void)device, (void)stream;
	ck_assert_int_eq(kernel, ZERO_K_SUM);
	add_record(SUM)->sum = *(const struct zero_device_sum *)arguments;
}

void zero_launch_blocks(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
			const void *arguments, size_t blocks)
{
	const struct zero_device_pack *pack = arguments;

	(void)device, (void)stream;
	ck_assert_int_eq(kernel, ZERO_K_PACK);
	ck_assert(!pack->bytes || blocks > 0);
	add_record(PACK)->pack = *pack;
}

void zero_launch_cast(struct zero_device *device, CUstream stream, zero_dtype to, void *out,
		      zero_dtype from, const void *in, size_t count)
{
	(void)device, (void)stream;
	add_record(CAST)->cast = (struct zero_device_cast){
		.out = out, .in = in, .count = count, .to = to, .from = from};
}

zero_status zero_memory_count(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes)
{
	(void)memory, (void)kind, (void)bytes;
	return ZERO_OK;
}

void zero_memory_uncount(struct zero_memory_pool *memory, enum zero_memory_kind kind, size_t bytes)
{
	(void)memory, (void)kind, (void)bytes;
}

/* The address space of a window that is not touched costs nothing. */
zero_status zero_window_new(struct zero_device *device, struct zero_memory_pool *memory,
			    enum zero_memory_kind kind, size_t bytes, struct zero_window *window)
{
	(void)device, (void)memory, (void)kind;
	*window = (struct zero_window){.base = malloc(bytes), .bytes = bytes};
	ck_assert_ptr_nonnull(window->base);
	return ZERO_OK;
}

void zero_window_delete(struct zero_window *window)
{
	free(window->base);
	*window = (struct zero_window){0};
}

zero_status zero_nccl_split(struct zero_nccl_comm *from, int color, int key, double seconds,
			    bool copy_engines, struct zero_nccl_comm *made)
{
	(void)from, (void)color, (void)key, (void)seconds, (void)copy_engines, (void)made;
	return ZERO_OK;
}

void zero_nccl_close(struct zero_nccl_comm *nccl, bool failed)
{
	(void)nccl, (void)failed;
}

zero_status zero_nccl_register(struct zero_nccl_comm *nccl, void *data, size_t bytes,
			       bool symmetric, void **handle)
{
	(void)nccl, (void)data, (void)bytes, (void)symmetric, (void)handle;
	return ZERO_OK;
}

void zero_nccl_deregister(struct zero_nccl_comm *nccl, void *handle, bool symmetric)
{
	(void)nccl, (void)handle, (void)symmetric;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Ranks, and the grid that they must become. */
struct ranks {
	int world, rows, columns;
	const uint64_t *nodes; /* NULL: consecutive ranks are on one node */
	const int *grid;       /* [rows][columns]; NULL: in the order of the ranks */
};

static int rank_at(const struct ranks *ranks, int row, int column)
{
	int at = row * ranks->columns + column;

	return ranks->grid ? ranks->grid[at] : at;
}

struct member {
	struct zero_cuda_comm comm;
	struct zero_device device;
	struct record record;
};

static uint64_t *nodes_of(const struct ranks *ranks)
{
	uint64_t *nodes = calloc((size_t)ranks->world, sizeof(*nodes));

	for (int rank = 0; rank < ranks->world; rank++)
		nodes[rank] = 77 + (ranks->nodes ? ranks->nodes[rank]
						 : (uint64_t)(rank / ranks->columns));
	return nodes;
}

/* Communicators are known by one of these addresses. */
static char near_comm, far_comm;

static void join(struct member *member, const struct ranks *ranks, int rank, uint64_t *nodes,
		 bool ordered, size_t bytes)
{
	struct zero_cuda_comm *comm = &member->comm;
	const struct zero_reduce_grid *grid = &comm->grid;

	comm->comm.place.world = ranks->world;
	comm->comm.place.rank = rank;
	comm->first = comm;
	comm->nodes = nodes;
	comm->device = &member->device;
	comm->device->most_blocks[ZERO_K_PACK] = 4;
	comm->ordered = ordered;
	comm->near.comm = (ncclComm_t)(void *)&near_comm;
	comm->far.comm = (ncclComm_t)(void *)&far_comm;
	recording = &member->record;
	ck_assert_int_eq(zero_reduce_grid_new(comm), ZERO_OK);
	ck_assert_int_eq(zero_cuda_prepare_reduces(comm), ZERO_OK);
	if (grid->device_order)
		memcpy(grid->device_order, grid->order, (size_t)ranks->world * sizeof(int));
	recording->count = 0;
	comm->window_bytes = bytes;
	ck_assert_int_eq(grid->rows, ordered ? 1 : ranks->rows);
	ck_assert_int_eq(grid->columns, ordered ? ranks->world : ranks->columns);
	for (int r = 0; !ordered && r < grid->rows; r++)
		for (int c = 0; c < grid->columns; c++)
			ck_assert_int_eq(grid->order[c * grid->rows + r], rank_at(ranks, r, c));
}

static void reduce(struct member *member, const struct zero_op *op)
{
	recording = &member->record;
	ck_assert_int_eq(zero_cuda_reduce_scatter(&member->comm, op), ZERO_OK);
}

static void leave(struct member *member)
{
	zero_cuda_close_reduces(&member->comm, false);
	free_record(&member->record);
}

/* ---- running what was recorded --------------------------------------------------------------- */

/* Sums in place what the ranks of one communicator have. As NCCL does in a symmetric window: in
   f32, rounded once. */
static void run_reduces(struct member *members, const int *ranks, int count, size_t at)
{
	const struct recorded *first = &members[ranks[0]].record.ops[at];
	zero_dtype dtype = first->dtype;
	size_t size = record_dtype_size(dtype), part = first->bytes / size;
	float *sums = calloc(part, sizeof(*sums));

	for (int owner = 0; owner < count; owner++) {
		struct recorded *own = &members[ranks[owner]].record.ops[at];

		memset(sums, 0, part * sizeof(*sums));
		ck_assert_ptr_eq(own->to, (const char *)own->from + (size_t)owner * own->bytes);
		for (int k = 0; k < count; k++) {
			const struct recorded *op = &members[ranks[k]].record.ops[at];

			must(op->kind == REDUCE && op->bytes == first->bytes &&
				     op->dtype == dtype && op->comm == first->comm,
			     "ranks %d and %d reduce what differs", ranks[0], ranks[k]);
			for (size_t i = 0; i < part; i++)
				sums[i] +=
					ref_widen(dtype, (const char *)op->from +
								 ((size_t)owner * part + i) * size);
		}
		for (size_t i = 0; i < part; i++)
			ref_narrow(dtype, (double)sums[i], (char *)own->to + i * size);
	}
	free(sums);
}

/* The reduces number `at` of all ranks, by rows or by columns. */
static void run_all_reduces(const struct ranks *ranks, struct member *members, size_t at)
{
	bool near = members[0].record.ops[at].comm == (void *)&near_comm;
	int groups = near ? ranks->rows : ranks->columns;
	int each = near ? ranks->columns : ranks->rows;
	int *of_group = calloc((size_t)each, sizeof(*of_group));

	for (int group = 0; group < groups; group++) {
		for (int k = 0; k < each; k++)
			of_group[k] = near ? rank_at(ranks, group, k) : rank_at(ranks, k, group);
		run_reduces(members, of_group, each, at);
	}
	free(of_group);
}

static void run_in_step(const struct ranks *ranks, struct member *members)
{
	for (size_t at = 0; at < members[0].record.count; at++) {
		if (members[0].record.ops[at].kind == REDUCE) {
			run_all_reduces(ranks, members, at);
			continue;
		}
		for (int rank = 0; rank < ranks->world; rank++) {
			ck_assert_int_ne(members[rank].record.ops[at].kind, REDUCE);
			run_rest(&members[rank].record, at, at + 1);
		}
	}
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Of very different size, so that another order has other bits. */
static void random_value(zero_dtype dtype, void *element)
{
	uint64_t bits = next_random(&state);
	double value = (double)(int64_t)(bits >> 8) * 0x1p-55;

	ref_narrow(dtype, ldexp(value, (int)(bits % 12)), element);
}

struct sums {
	float ordered;
	double exact, sizes; /* the sum, and that of the absolute values */
};

static struct sums sums_of(const struct ranks *ranks, char *const *send, zero_dtype from,
			   size_t element, bool accumulate, float before)
{
	struct sums sums = {0};

	for (int rank = 0; rank < ranks->world; rank++) {
		float value = ref_widen(from, send[rank] + element * record_dtype_size(from));

		sums.ordered = rank ? sums.ordered + value : value;
		sums.exact += (double)value;
		sums.sizes += fabs((double)value);
	}
	if (accumulate) {
		sums.ordered = before + sums.ordered;
		sums.exact += (double)before;
		sums.sizes += fabs((double)before);
	}
	return sums;
}

static void check_owner(const struct ranks *ranks, char *const *send, const struct zero_op *op,
			const float *before, int owner, bool ordered)
{
	/* 16-bit values are rounded once, on each node */
	const double step = op->from == ZERO_F32 ? 0 : op->from == ZERO_F16 ? 0x1p-11 : 0x1p-8;
	const double most = ordered ? 0 : step + (double)(ranks->world + 2) * 0x1p-24;
	const float *got = op->recv;

	for (size_t i = 0; i < op->count; i++) {
		size_t element = (size_t)owner * op->count + i;
		struct sums want =
			sums_of(ranks, send, op->from, element, op->accumulate, before[element]);

		must(ordered ? !memcmp(&want.ordered, &got[i], sizeof(float))
			     : fabs((double)got[i] - want.exact) <= most * want.sizes,
		     "%d ranks in %d rows: element %zu of rank %d is %a, not %a", ranks->world,
		     ranks->rows, i, owner, (double)got[i],
		     ordered ? (double)want.ordered : want.exact);
	}
}

/* Sums `count` elements of each owner, with so many bytes of the window. In place, an owner's sum
   replaces its own values. */
static void check_values(const struct ranks *ranks, zero_dtype from, size_t count, size_t bytes,
			 bool accumulate, bool in_place, bool ordered)
{
	size_t world = (size_t)ranks->world, all = world * count, size = record_dtype_size(from);
	struct member *members = calloc(world, sizeof(*members));
	struct record *records = calloc(world, sizeof(*records));
	struct zero_op *ops = calloc(world, sizeof(*ops));
	char **send = calloc(world, sizeof(char *)), **kept = calloc(world, sizeof(char *));
	float *recv = malloc(all * sizeof(float)), *before = malloc(all * sizeof(float));
	uint64_t *nodes = nodes_of(ranks);

	for (size_t i = 0; i < all; i++)
		random_value(ZERO_F32, &recv[i]);
	for (int rank = 0; rank < ranks->world; rank++) {
		send[rank] = malloc(all * size);
		for (size_t i = 0; i < all; i++)
			random_value(from, send[rank] + i * size);
		kept[rank] = malloc(all * size);
		memcpy(kept[rank], send[rank], all * size);
		ops[rank] = (struct zero_op){.from = from,
					     .send = send[rank],
					     .recv = recv + (size_t)rank * count,
					     .count = count,
					     .accumulate = accumulate};
		if (in_place)
			ops[rank].recv = (float *)send[rank] + (size_t)rank * count;
		memcpy(&before[(size_t)rank * count], ops[rank].recv, count * sizeof(float));
		join(&members[rank], ranks, rank, nodes, ordered, bytes);
		reduce(&members[rank], &ops[rank]);
		records[rank] = members[rank].record;
	}
	if (ordered)
		run_records(records, ranks->world);
	else
		run_in_step(ranks, members);
	for (int rank = 0; rank < ranks->world; rank++)
		check_owner(ranks, kept, &ops[rank], before, rank, ordered);
	for (int rank = 0; rank < ranks->world; rank++) {
		leave(&members[rank]);
		free(send[rank]);
		free(kept[rank]);
	}
	free(nodes);
	free(before);
	free(recv);
	free(kept);
	free(send);
	free(ops);
	free(records);
	free(members);
}

START_TEST(sums_are_right)
{
	static const uint64_t cyclic[] = {0, 1, 2, 0, 1, 2}, uneven[] = {0, 0, 0, 1, 1},
			      even[] = {0, 1, 0, 0, 1, 0};
	static const int cyclic_grid[] = {0, 3, 1, 4, 2, 5}, even_grid[] = {0, 2, 1, 4, 3, 5};
	static const struct ranks all[] = {
		{2, 1, 2, NULL, NULL},          {2, 2, 1, NULL, NULL},   {8, 1, 8, NULL, NULL},
		{8, 2, 4, NULL, NULL},          {8, 4, 2, NULL, NULL},   {8, 8, 1, NULL, NULL},
		{6, 3, 2, cyclic, cyclic_grid}, {5, 5, 1, uneven, NULL}, {6, 3, 2, even, even_grid},
	};
	static const zero_dtype types[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

	for (size_t r = 0; r < COUNT_OF(all); r++)
		for (size_t t = 0; t < COUNT_OF(types); t++)
			for (int ordered = 0; ordered < 2; ordered++) {
				/* one piece, and several, of which the last may be short */
				check_values(&all[r], types[t], 64, 1 << 20, false, false, ordered);
				check_values(&all[r], types[t], 0, 1 << 20, false, false, ordered);
				check_values(&all[r], types[t], 1, 1 << 20, true, false, ordered);
				check_values(&all[r], types[t], 77, 1 << 20, true, t == 0, ordered);
				check_values(&all[r], types[t], 128, 6000, true, false, ordered);
				check_values(&all[r], types[t], 1030, 6000, false, t == 0, ordered);
				check_values(&all[r], types[t], 333, 16, true, t == 0, ordered);
			}
}
END_TEST

START_TEST(many_ranks)
{
	const struct ranks nodes = {64, 8, 8, NULL, NULL}, many = {512, 64, 8, NULL, NULL},
			   single = {300, 1, 300, NULL, NULL};

	check_values(&nodes, ZERO_BF16, 192, 1 << 14, false, false, false);
	check_values(&many, ZERO_BF16, 64, 1 << 14, false, false, false);
	check_values(&nodes, ZERO_BF16, 192, 1 << 14, false, false, true);
	/* what one launch sums is not bounded */
	check_values(&single, ZERO_F32, 64, 1 << 20, false, true, true);
}
END_TEST

/* ---- calls, messages and bytes --------------------------------------------------------------- */

struct counts {
	size_t calls, launches, near_bytes, far_bytes;
};

/* Of rank 0, for 16-bit parts of `count` elements. Nothing is moved. */
static struct counts counts_of(const struct ranks *ranks, size_t count, bool ordered)
{
	struct member *member = calloc(1, sizeof(*member));
	uint64_t *nodes = nodes_of(ranks);
	struct zero_op op = {.from = ZERO_BF16,
			     .send = (void *)(uintptr_t)0x1000000,
			     .recv = (void *)(uintptr_t)0x1000000,
			     .count = count};
	struct counts counts = {0};

	join(member, ranks, 0, nodes, ordered, ZERO_REDUCE_WINDOW);
	reduce(member, &op);
	for (size_t i = 0; i < member->record.count; i++) {
		const struct recorded *one = &member->record.ops[i];
		bool near = one->kind == SEND ? nodes[one->peer] == nodes[0]
					      : one->comm == (void *)&near_comm;
		size_t times = one->kind != REDUCE ? one->kind == SEND
			       : near              ? (size_t)ranks->columns - 1
						   : (size_t)ranks->rows - 1;

		counts.calls += one->kind == REDUCE || one->kind == SEND || one->kind == RECV;
		counts.launches += one->kind == SUM || one->kind == PACK || one->kind == CAST;
		*(near ? &counts.near_bytes : &counts.far_bytes) += times * one->bytes;
	}
	ck_assert_uint_eq(counts.near_bytes + counts.far_bytes, member->comm.comm.bytes_sent);
	leave(member);
	free(nodes);
	free(member);
	return counts;
}

START_TEST(calls_are_few)
{
	static const struct ranks all[] = {
		{8, 1, 8, NULL, NULL}, {64, 8, 8, NULL, NULL}, {512, 64, 8, NULL, NULL}};
	static const size_t groups[] = {1 << 20, 50 << 20, 435 << 20};

	for (size_t r = 0; r < COUNT_OF(all); r++)
		for (size_t g = 0; g < COUNT_OF(groups); g++) {
			const struct ranks *ranks = &all[r];
			size_t part = groups[g] / (size_t)ranks->world;
			size_t rows = (size_t)ranks->rows, levels = rows > 1 ? 2 : 1;
			struct counts counts = counts_of(ranks, part, false);
			struct counts ordered = counts_of(ranks, part, true);
			/* the sums of a node need as much again as 2 / L of the values */
			size_t bytes = groups[g] * 2 + (rows > 1 ? part * rows * 4 : 0);
			size_t pieces = bytes / (ZERO_REDUCE_WINDOW - ZERO_REDUCE_WINDOW / 8) + 1;

			printf("%3d ranks, %4zu MB of bf16: %2zu calls of NCCL, %2zu kernels, %4zu "
			       "MB within the node, %3zu MB to others; ordered: %5zu calls, %4zu "
			       "MB to others\n",
			       ranks->world, groups[g] * 2 >> 20, counts.calls, counts.launches,
			       counts.near_bytes >> 20, counts.far_bytes >> 20, ordered.calls,
			       ordered.far_bytes >> 20);
			ck_assert_uint_le(counts.calls, pieces * levels);
			ck_assert_uint_le(counts.launches, pieces * (1 + levels));
			ck_assert_uint_eq(counts.near_bytes,
					  (size_t)(ranks->columns - 1) * rows * part * 2);
			ck_assert_uint_eq(counts.far_bytes, (rows - 1) * part * 4);
			ck_assert_uint_eq(ordered.far_bytes,
					  (size_t)(ranks->world - ranks->columns) * part * 2);
		}
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("reduce-scatter");

	tcase_add_test(tests, sums_are_right);
	tcase_add_test(tests, many_ranks);
	tcase_add_test(tests, calls_are_few);
	return run_cases(tests, NULL);
}
