/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange of a reduce-scatter between up to 512 ranks on nodes of any sizes: each owner's sum,
 * bit for bit in the order that reduce_schedule.h states, and the peers, messages and bytes.
 */
#include "backend/exchange.h"
#include "nccl_record.h"

void zero_launch(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
		 const void *arguments)
{
	const struct zero_device_sum *sum = arguments;

	(void)device, (void)stream, (void)kernel;
	add_record(SUM)->sum = *sum;
}

void zero_stream_wait(struct zero_device *device, CUstream stream, const struct zero_event *event)
{
	(void)device, (void)stream, (void)event;
}

static uint64_t state;

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

static void join(struct member *member, const struct ranks *ranks, int rank, uint64_t *nodes)
{
	struct zero_cuda_comm *comm = &member->comm;

	comm->comm.place.world = ranks->world;
	comm->comm.place.rank = rank;
	comm->first = comm;
	comm->nodes = nodes;
	comm->device = &member->device;
	comm->ordered = true;
	ck_assert_int_eq(zero_cuda_alloc_exchange_buffers(comm), ZERO_OK);
	ck_assert_int_eq(comm->grid.rows, ranks->rows);
	ck_assert_int_eq(comm->grid.columns, ranks->columns);
}

static void reduce(struct member *member, const struct zero_op *op)
{
	recording = &member->record;
	ck_assert_int_eq(zero_cuda_reduce_scatter(&member->comm, op), ZERO_OK);
}

static void leave(struct member *member)
{
	zero_cuda_free_exchange_buffers(&member->comm);
	free_record(&member->record);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Of very different size, so that another order has other bits. */
static void random_value(zero_dtype dtype, void *element)
{
	uint64_t bits = next_random(&state);
	double value = (double)(int64_t)(bits >> 8) * 0x1p-55;

	ref_narrow(dtype, ldexp(value, (int)(bits % 12)), element);
}

/* The sum of element i of an owner's part over a row, in rank order. */
static float row_sum(const struct ranks *ranks, char *const *send, zero_dtype from, size_t element,
		     int row)
{
	size_t size = record_dtype_size(from);
	float sum = 0;

	for (int column = 0; column < ranks->columns; column++) {
		float value = ref_widen(from, send[rank_at(ranks, row, column)] + element * size);

		sum = column ? sum + value : value;
	}
	return sum;
}

static void check_owner(const struct ranks *ranks, char *const *send, const struct zero_op *op,
			const float *before, int row, int column)
{
	const int owner = rank_at(ranks, row, column);
	const float *got = op->recv;

	for (size_t i = 0; i < op->count; i++) {
		size_t element = (size_t)owner * op->count + i;
		float want = row_sum(ranks, send, op->from, element, row);

		want = op->accumulate ? before[element] + want : want;
		for (int back = 1; back < ranks->rows; back++)
			want += row_sum(ranks, send, op->from, element,
					(row - back + ranks->rows) % ranks->rows);
		must(!memcmp(&want, &got[i], sizeof(want)),
		     "%d ranks in %d rows: element %zu of rank %d is %a, not %a", ranks->world,
		     ranks->rows, i, owner, (double)got[i], (double)want);
	}
}

/* Sums `count` elements of each owner, with buffers of so many bytes. In place, an owner's sum
   replaces its own values. */
static void check_values(const struct ranks *ranks, zero_dtype from, size_t count, size_t bytes,
			 bool accumulate, bool in_place)
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
		if (in_place)
			memcpy(&before[(size_t)rank * count], ops[rank].recv, count * size);
		else
			memcpy(&before[(size_t)rank * count], ops[rank].recv,
			       count * sizeof(float));
		join(&members[rank], ranks, rank, nodes);
		members[rank].comm.exchange_bytes = bytes;
		reduce(&members[rank], &ops[rank]);
		records[rank] = members[rank].record;
	}
	run_records(records, ranks->world);
	for (int row = 0; row < ranks->rows; row++)
		for (int column = 0; column < ranks->columns; column++)
			check_owner(ranks, kept, &ops[rank_at(ranks, row, column)], before, row,
				    column);
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

START_TEST(sums_are_in_the_order_that_is_stated)
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
		for (size_t t = 0; t < COUNT_OF(types); t++) {
			/* one round for all, one for several rows, and several for each row */
			check_values(&all[r], types[t], 64, 1 << 20, false, false);
			check_values(&all[r], types[t], 128, 6000, true, false);
			check_values(&all[r], types[t], 1024, 6000, false, t == 0);
			check_values(&all[r], types[t], 320, 1, true, t == 0);
		}
}
END_TEST

START_TEST(many_ranks)
{
	const struct ranks nodes = {64, 8, 8, NULL, NULL}, many = {512, 64, 8, NULL, NULL},
			   single = {300, 1, 300, NULL, NULL};

	check_values(&nodes, ZERO_BF16, 192, 1 << 14, false, false);
	check_values(&many, ZERO_BF16, 64, 1 << 14, false, false);
	/* what one launch sums is not bounded */
	check_values(&single, ZERO_F32, 64, 1 << 20, false, true);
}
END_TEST

/* ---- peers, messages and bytes --------------------------------------------------------------- */

struct counts {
	int peers;
	size_t messages, bytes, far_bytes, least, groups;
};

/* Of rank 0, for 16-bit parts of `count` elements. Nothing is moved. */
static struct counts counts_of(const struct ranks *ranks, size_t count)
{
	struct member *member = calloc(1, sizeof(*member));
	uint64_t *nodes = nodes_of(ranks);
	bool *met = calloc((size_t)ranks->world, sizeof(*met));
	struct zero_op op = {.from = ZERO_BF16,
			     .send = (void *)(uintptr_t)0x1000000,
			     .recv = (void *)(uintptr_t)0x1000000,
			     .count = count};
	struct counts counts = {.least = SIZE_MAX};

	join(member, ranks, 0, nodes);
	reduce(member, &op);
	for (size_t i = 0; i < member->record.count; i++) {
		const struct recorded *one = &member->record.ops[i];

		if (one->kind != SEND)
			continue;
		counts.peers += !met[one->peer];
		met[one->peer] = true;
		counts.messages++;
		counts.bytes += one->bytes;
		counts.far_bytes += nodes[one->peer] == nodes[0] ? 0 : one->bytes;
		counts.least = one->bytes < counts.least ? one->bytes : counts.least;
	}
	counts.groups = member->record.group_count;
	ck_assert_uint_eq(counts.bytes, member->comm.comm.bytes_sent);
	leave(member);
	free(met);
	free(nodes);
	free(member);
	return counts;
}

START_TEST(messages_are_long_and_peers_few)
{
	static const struct ranks all[] = {
		{8, 1, 8, NULL, NULL}, {64, 8, 8, NULL, NULL}, {512, 64, 8, NULL, NULL}};
	static const size_t parts[] = {6400, 640000, 6400000};

	for (size_t r = 0; r < COUNT_OF(all); r++)
		for (size_t p = 0; p < COUNT_OF(parts); p++) {
			const struct ranks *ranks = &all[r];
			size_t rows = (size_t)ranks->rows, near = (size_t)ranks->columns - 1;
			size_t part = 2 * parts[p], message = part < 1 << 20 ? part : 1 << 20;
			struct counts counts = counts_of(ranks, parts[p]);

			ck_assert_int_eq(counts.peers, ranks->columns + ranks->rows - 2);
			ck_assert_uint_eq(counts.far_bytes, (rows - 1) * 2 * part);
			ck_assert_uint_eq(counts.bytes, counts.far_bytes + near * rows * part);
			ck_assert_uint_ge(counts.least, message);
			ck_assert_uint_le(counts.messages,
					  (rows - 1) * (2 * part / message + 1) +
						  near * rows * (part / message + 1));
			/* as few groups as the buffers allow, and two until what is far is there */
			ck_assert_uint_le(counts.groups,
					  (near + 4) * rows * part / (ZERO_EXCHANGE_SET / 2) + 4);
		}
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("reduce-scatter");

	tcase_add_test(tests, sums_are_in_the_order_that_is_stated);
	tcase_add_test(tests, many_ranks);
	tcase_add_test(tests, messages_are_long_and_peers_few);
	return run_cases(tests, NULL);
}
