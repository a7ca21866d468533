/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scatters of many parameters at once, between up to 64 ranks: what each rank gets, and the
 * messages, which are not short where a slice is long.
 */
#include "nccl_record.h"

enum { LEAST = 64 << 10, MOST_PARAMS = 600 };

static uint64_t state;
static bool pageable;

bool zero_device_can_read(const void *data, bool *on_device)
{
	(void)data;
	*on_device = !pageable;
	return !pageable;
}

zero_status zero_event_synchronize(struct zero_device *device, const struct zero_event *event)
{
	(void)device;
	keep_sent(recording, (size_t)event);
	return ZERO_OK;
}

/* Parameters, one after the other in groups of which each rank has a shard. */
struct model {
	int world;
	size_t count;
	struct zero_op ops[MOST_PARAMS]; /* without buffers */
	char *values[MOST_PARAMS];
};

static size_t size_of(const struct zero_op *op)
{
	return record_dtype_size(op->from);
}

/* The bytes of a rank's slice. */
static size_t slice_bytes(const struct zero_op *op, int rank)
{
	return (zero_op_slice(op, rank + 1) - zero_op_slice(op, rank)) * size_of(op);
}

/* `each` parameters a group, of `elements` each or up to that many. */
static void make_model(struct model *model, size_t each, size_t elements, bool equal, int roots)
{
	for (size_t begin = 0, at = 0; begin < model->count; begin += each, at = 0) {
		size_t shard, end = begin + each < model->count ? begin + each : model->count;

		for (size_t p = begin; p < end; p++) {
			struct zero_op *op = &model->ops[p];
			uint64_t random = next_random(&state);

			op->kind = ZERO_OP_SCATTER;
			op->from = begin / each % 2 ? ZERO_BF16 : ZERO_F32;
			op->root = (int)(random % (uint64_t)roots);
			op->count = equal ? elements : 1 + (size_t)(random >> 20) % elements;
			op->piece = op->count;
			op->first = at;
			at += (op->count + 63) / 64 * 64;
			model->values[p] = malloc(op->count * 4);
			for (size_t i = 0; i < op->count * size_of(op); i++)
				model->values[p][i] = (char)next_random(&state);
		}
		shard = (at / 64 + (size_t)model->world - 1) / (size_t)model->world * 64;
		for (size_t p = begin; p < end; p++)
			model->ops[p].shard = shard;
	}
}

struct member {
	struct zero_cuda_comm comm;
	struct zero_device device;
	struct zero_op ops[MOST_PARAMS];
};

static void scatter(struct member *member, const struct model *model, int rank,
		    struct record *record)
{
	struct zero_cuda_comm *comm = &member->comm;

	comm->comm.place.world = model->world;
	comm->comm.place.rank = rank;
	comm->device = &member->device;
	memcpy(member->ops, model->ops, sizeof(member->ops));
	for (size_t p = 0; p < model->count; p++) {
		struct zero_op *op = &member->ops[p];

		op->send = op->root == rank ? model->values[p] : NULL;
		op->recv = malloc(slice_bytes(op, rank) + 1);
		memset(op->recv, 0x5a, slice_bytes(op, rank) + 1);
	}
	recording = record;
	ck_assert_int_eq(zero_cuda_reserve_pinned(comm, member->ops, model->count), ZERO_OK);
	ck_assert_int_eq(zero_cuda_scatter(comm, member->ops, model->count), ZERO_OK);
	keep_sent(record, record->count);
	zero_cuda_free_pinned(comm);
}

static void check_received(const struct member *member, const struct model *model, int rank)
{
	for (size_t p = 0; p < model->count; p++) {
		const struct zero_op *op = &member->ops[p];
		size_t bytes = slice_bytes(op, rank), begin = zero_op_slice(op, rank) * size_of(op);

		must(!memcmp(op->recv, model->values[p] + begin, bytes),
		     "rank %d of %d: parameter %zu of rank %d", rank, model->world, p, op->root);
		must(((char *)op->recv)[bytes] == 0x5a, "rank %d is written beyond", rank);
		free(op->recv);
	}
}

/* What a root sends. A message is a whole slice, or long. Returns how many rounds that may take. */
static size_t check_messages(const struct record *record, const struct model *model, int root)
{
	size_t slices = 0, sent = 0, short_slices = 0, want = 0, bytes = 0;

	for (size_t p = 0; p < model->count; p++)
		for (int rank = 0; model->ops[p].root == root && rank < model->world; rank++) {
			size_t slice = rank == root ? 0 : slice_bytes(&model->ops[p], rank);

			slices += slice > 0;
			short_slices += slice && slice < LEAST;
			want += slice;
		}
	for (size_t i = 0; i < record->count; i++) {
		if (record->ops[i].kind != SEND)
			continue;
		sent++;
		bytes += record->ops[i].bytes;
		if (record->ops[i].bytes < LEAST)
			must(short_slices--, "a message has %zu bytes", record->ops[i].bytes);
	}
	ck_assert_uint_eq(bytes, want);
	ck_assert_uint_le(sent, slices + record->group_count);
	/* rounds of 4 MB at least, of which messages have more than half, or 1000 messages */
	return bytes / (2 << 20) + slices / 1000 + 2;
}

/* From rank 0, or from `roots` ranks. */
static void check_model(int world, size_t count, size_t each, size_t elements, bool equal,
			int roots)
{
	struct member *members = calloc((size_t)world, sizeof(*members));
	struct record *records = calloc((size_t)world, sizeof(*records));
	struct model *model = calloc(1, sizeof(*model));
	size_t rounds = 0;

	model->world = world;
	model->count = count;
	make_model(model, each, elements, equal, roots);
	for (int rank = 0; rank < world; rank++)
		scatter(&members[rank], model, rank, &records[rank]);
	for (int rank = 0; rank < world; rank++) {
		size_t own = check_messages(&records[rank], model, rank);

		rounds = own > rounds ? own : rounds;
	}
	/* roots send at the same time */
	for (int rank = 0; rank < world; rank++)
		ck_assert_uint_le(records[rank].group_count, rounds);
	run_records(records, world);
	for (int rank = 0; rank < world; rank++) {
		check_received(&members[rank], model, rank);
		free_record(&records[rank]);
	}
	for (size_t p = 0; p < count; p++)
		free(model->values[p]);
	free(model);
	free(records);
	free(members);
}

START_TEST(each_rank_gets_its_slices)
{
	for (int from = 0; from < 2; from++) {
		pageable = from;
		/* 500 parameters of 64 GPUs, of equal size, and of any; ten of each group */
		check_model(64, 500, 10, 16384, true, 1);
		check_model(64, 500, 10, 60000, false, 1);
		/* slices longer than a round, and just longer */
		check_model(2, 3, 3, 6000000, true, 1);
		check_model(3, 40, 2, (4 << 20) / 4 + 20000, false, 1);
		/* many that are short */
		check_model(5, MOST_PARAMS, 3, 50, false, 1);
		check_model(64, 1, 1, 7, true, 1);
		/* from several ranks at the same time */
		check_model(4, 200, 7, 100000, false, 3);
		check_model(7, 30, 30, 900000, false, 7);
	}
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("scatter");

	tcase_add_test(tests, each_rank_gets_its_slices);
	return run_cases(tests, NULL);
}
