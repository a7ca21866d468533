/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for NCCL: results against references of their own, and in double_nccl_errors.c that
   it finds what is wrong. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double_nccl.h"

enum { ROUNDS = 40, GUARD = 64, POISON = 0xa5 };

/* ---- values ---------------------------------------------------------------------------------- */

struct form {
	ncclDataType_t type;
	size_t size;
	int digits, exponent_bits; /* 0: an integer type */
};

static const struct form forms[] = {
	{ncclFloat32, 4, 24, 8}, {ncclFloat16, 2, 11, 5}, {ncclBfloat16, 2, 8, 8},
	{ncclInt32, 4, 0, 0},    {ncclUint8, 1, 0, 0},    {ncclFloat64, 8, 53, 11},
};

static uint64_t load(const struct form *form, const char *data, size_t i)
{
	uint64_t bits = 0;

	memcpy(&bits, data + i * form->size, form->size);
	return bits;
}

static double decode(const struct form *form, uint64_t bits)
{
	int places = form->digits - 1, bias = (1 << (form->exponent_bits - 1)) - 1;
	uint64_t one = UINT64_C(1) << places, sign = bits >> (form->size * 8 - 1);
	int exponent = (int)(bits >> places & ((UINT64_C(1) << form->exponent_bits) - 1));
	double value = (double)((bits & (one - 1)) | (exponent ? one : 0));

	value = ldexp(value, (exponent ? exponent : 1) - bias - places);
	return sign ? -value : value;
}

/* Rounds x to so many digits. It does not overflow. */
static double rounded(const struct form *form, double x)
{
	int exponent, least = 3 - (1 << (form->exponent_bits - 1)) - form->digits, place;

	frexp(x, &exponent);
	place = exponent - form->digits > least ? exponent - form->digits : least;
	return ldexp(nearbyint(ldexp(x, -place)), place);
}

/* The value of element i of what a rank sends, as bits: finite, of small exponents. */
static uint64_t value_of(const struct form *form, uint64_t mark, int rank, size_t i)
{
	uint64_t state = mark ^ (uint64_t)(rank + 1) * 7919 ^ (uint64_t)i * 1000003;
	uint64_t bits = draw(&state),
		 mask = form->size == 8 ? UINT64_MAX : (UINT64_C(1) << form->size * 8) - 1;
	int places = form->digits - 1;

	bits &= mask;
	if (!form->digits)
		return bits;
	/* the exponent's highest bit alone, and three of the lowest */
	bits &= ~((((UINT64_C(1) << (form->exponent_bits - 3)) - 1)) << (places + 3));
	bits &= ~(UINT64_C(1) << (places + form->exponent_bits - 1));
	return bits | ((UINT64_C(1) << (form->exponent_bits - 4)) - 1) << (places + 3);
}

/* Summed from the rank after `first` to `first`, rounded at each step. */
static bool is_sum(const struct form *form, uint64_t bits, uint64_t mark, int first, int world,
		   size_t i)
{
	uint32_t whole = 0;
	double sum = 0;

	for (int k = 1; k <= world; k++) {
		uint64_t value = value_of(form, mark, (first + k) % world, i);

		whole += (uint32_t)value;
		if (form->digits && form->size < 8)
			sum = rounded(form, sum + decode(form, value));
		else if (form->digits)
			sum += decode(form, value);
	}
	return form->digits ? decode(form, bits) == sum : (uint32_t)bits == whole;
}

/* ---- operations ------------------------------------------------------------------------------ */

struct buffer {
	char *data; /* the device's */
	size_t bytes;
};

static struct buffer buffer_new(size_t bytes)
{
	struct buffer buffer = {device_alloc(bytes + GUARD), bytes};

	memset(seen(buffer.data, bytes + GUARD), POISON, bytes + GUARD);
	return buffer;
}

static void buffer_free(struct buffer buffer)
{
	const char *host = seen(buffer.data, buffer.bytes + GUARD);

	for (int i = 0; i < GUARD; i++)
		WANT((unsigned char)host[buffer.bytes + (size_t)i] == POISON);
	device_free(buffer.data);
}

static void fill(const struct form *form, char *data, size_t count, uint64_t mark, int rank,
		 size_t first)
{
	char *host = count ? seen(data, count * form->size) : NULL;

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = value_of(form, mark, rank, first + i);

		memcpy(host + i * form->size, &bits, form->size);
	}
}

static void want_values(const struct form *form, char *data, size_t count, uint64_t mark, int rank)
{
	char *host = count ? seen(data, count * form->size) : NULL;

	for (size_t i = 0; i < count; i++)
		WANT(load(form, host, i) == value_of(form, mark, rank, i));
}

struct trial {
	const struct form *form;
	size_t count;
	uint64_t mark;
	bool in_place;
	int root;
};

static void try_all_gather(ncclComm_t comm, cudaStream_t stream, const struct trial *trial,
			   int rank, int world)
{
	size_t part = trial->count * trial->form->size;
	struct buffer recv = buffer_new(part * (size_t)world), send = {NULL, 0};
	char *from = recv.data + (size_t)rank * part;

	if (!trial->in_place) {
		send = buffer_new(part);
		from = send.data;
	}
	fill(trial->form, from, trial->count, trial->mark, rank, 0);
	WELL(comm, ncclAllGather(from, recv.data, trial->count, trial->form->type, comm, stream));
	stream_finish(stream);
	for (int i = 0; i < world; i++)
		want_values(trial->form, recv.data + (size_t)i * part, trial->count, trial->mark,
			    i);
	if (send.data)
		buffer_free(send);
	buffer_free(recv);
}

static void try_reduce_scatter(ncclComm_t comm, cudaStream_t stream, const struct trial *trial,
			       int rank, int world)
{
	const struct form *form = trial->form;
	size_t part = trial->count * form->size;
	struct buffer send = buffer_new(part * (size_t)world), recv = {NULL, 0};
	char *into = send.data + (size_t)rank * part, *host;

	if (!trial->in_place) {
		recv = buffer_new(part);
		into = recv.data;
	}
	fill(form, send.data, trial->count * (size_t)world, trial->mark, rank, 0);
	WELL(comm,
	     ncclReduceScatter(send.data, into, trial->count, form->type, ncclSum, comm, stream));
	stream_finish(stream);
	host = part ? seen(into, part) : NULL;
	for (size_t i = 0; i < trial->count; i++)
		WANT(is_sum(form, load(form, host, i), trial->mark, rank, world,
			    (size_t)rank * trial->count + i));
	if (recv.data)
		buffer_free(recv);
	buffer_free(send);
}

static void try_all_reduce(ncclComm_t comm, cudaStream_t stream, const struct trial *trial,
			   int rank, int world)
{
	const struct form *form = trial->form;
	size_t bytes = trial->count * form->size, n = (size_t)world;
	size_t part = (trial->count + n - 1) / n;
	struct buffer send = buffer_new(bytes), recv = {NULL, 0};
	char *into = send.data, *host;

	if (!trial->in_place) {
		recv = buffer_new(bytes);
		into = recv.data;
	}
	fill(form, send.data, trial->count, trial->mark, rank, 0);
	WELL(comm, ncclAllReduce(send.data, into, trial->count, form->type, ncclSum, comm, stream));
	stream_finish(stream);
	host = bytes ? seen(into, bytes) : NULL;
	for (size_t i = 0; i < trial->count; i++)
		WANT(is_sum(form, load(form, host, i), trial->mark, (int)(i / part), world, i));
	if (recv.data)
		buffer_free(recv);
	buffer_free(send);
}

static void try_broadcast(ncclComm_t comm, cudaStream_t stream, const struct trial *trial, int rank,
			  int world)
{
	size_t bytes = trial->count * trial->form->size;
	struct buffer buffer = buffer_new(bytes), send = {NULL, 0};
	bool own = rank == trial->root && !trial->in_place;
	char *from = buffer.data;

	(void)world;
	if (own) {
		send = buffer_new(bytes);
		from = send.data;
	}
	if (rank == trial->root)
		fill(trial->form, from, trial->count, trial->mark, rank, 0);
	/* only the root's buffer is read */
	WELL(comm, ncclBroadcast(rank == trial->root ? from : NULL, buffer.data, trial->count,
				 trial->form->type, trial->root, comm, stream));
	stream_finish(stream);
	want_values(trial->form, buffer.data, trial->count, trial->mark, trial->root);
	if (own)
		buffer_free(send);
	buffer_free(buffer);
}

static void operations(int rank, int world, bool blocking)
{
	ncclComm_t comm = join(rank, world, blocking);
	cudaStream_t stream = stream_new();
	uint64_t state = seed + (uint64_t)world;

	for (int i = 0; i < ROUNDS; i++) {
		const size_t counts[] = {0, 1, draw(&state) % 50, draw(&state) % 3000, 40000};
		struct trial trial = {.form = &forms[draw(&state) % 6],
				      .count = counts[draw(&state) % 5],
				      .mark = draw(&state),
				      .in_place = draw(&state) & 1,
				      .root = (int)(draw(&state) % (uint64_t)world)};

		try_all_gather(comm, stream, &trial, rank, world);
		try_broadcast(comm, stream, &trial, rank, world);
		if (trial.form->type == ncclUint8)
			continue;
		try_reduce_scatter(comm, stream, &trial, rank, world);
		try_all_reduce(comm, stream, &trial, rank, world);
	}
	leave(comm);
}

static void blocking_operations(int rank, int world)
{
	operations(rank, world, true);
}

static void other_operations(int rank, int world)
{
	operations(rank, world, false);
}

START_TEST(test_operations)
{
	run_well(_i, blocking_operations);
	run_well(_i, other_operations);
}
END_TEST

/* ---- order of sums --------------------------------------------------------------------------- */

static void order(int rank, int world)
{
	ncclComm_t comm = join(rank, world, true);
	cudaStream_t stream = stream_new();
	float *send = device_alloc(12), *recv = device_alloc(4);
	const float value[] = {1e8f, -1e8f, 1};

	for (int i = 0; i < 3; i++)
		((float *)seen(send, 12))[i] = value[rank];
	WELL(comm, ncclReduceScatter(send, recv, 1, ncclFloat32, ncclSum, comm, stream));
	stream_finish(stream);
	/* summed in rank order the result is 1 everywhere */
	WANT(*(float *)seen(recv, 4) == (rank == 2 ? 1.0f : 0.0f));
	leave(comm);
}

START_TEST(test_order)
{
	run_well(3, order);
}
END_TEST

/* ---- groups ---------------------------------------------------------------------------------- */

/* Each rank sends two messages to each rank, itself included, in a nested group. */
static void messages(int rank, int world)
{
	const struct form *form = &forms[0];
	ncclComm_t comm = join(rank, world, false);
	cudaStream_t stream = stream_new();
	size_t n = (size_t)world, count = 1000;
	char *send = device_alloc(2 * n * count * 4), *recv = device_alloc(2 * n * count * 4);

	for (size_t i = 0; i < 2 * n; i++)
		fill(form, send + i * count * 4, count - i, seed + i, rank, 0);
	WANT(!ncclGroupStart());
	for (size_t i = 0; i < 2 * n; i++) {
		int peer = (int)(i % n);

		WANT(!ncclGroupStart());
		WANT(!ncclSend(send + i * count * 4, count - i, ncclFloat32, peer, comm, stream));
		WANT(!ncclGroupEnd());
	}
	/* the peers are in another order, and the messages of each in the same order */
	for (size_t i = 0; i < 2 * n; i++) {
		int peer = world - 1 - (int)(i % n);
		size_t sent = (size_t)rank + (i < n ? 0 : n);
		size_t at = (size_t)peer + (i < n ? 0 : n);

		WANT(!ncclRecv(recv + at * count * 4, count - sent, ncclFloat32, peer, comm,
			       stream));
	}
	WELL(comm, ncclGroupEnd());
	stream_finish(stream);
	for (size_t i = 0; i < 2 * n; i++) {
		size_t sent = (size_t)rank + (i < n ? 0 : n);

		want_values(form, recv + i * count * 4, count - sent, seed + sent, (int)(i % n));
	}
	leave(comm);
}

START_TEST(test_messages)
{
	run_well(_i, messages);
}
END_TEST

/* Two communicators, three streams and a split in groups. */
static void groups(int rank, int world)
{
	const struct form *form = &forms[0];
	ncclComm_t one = join(rank, world, false), other = join(world - 1 - rank, world, false);
	cudaStream_t streams[3] = {stream_new(), stream_new(), stream_new()};
	size_t n = (size_t)world, count = 5000;
	char *data[4];

	for (int i = 0; i < 4; i++)
		data[i] = device_alloc(n * count * 4);
	for (int i = 0; i < 4; i++) {
		int as = i == 3 ? world - 1 - rank : rank;

		fill(form, data[i] + (size_t)as * count * 4, count, seed + (uint64_t)i, as, 0);
	}
	WANT(!ncclGroupStart());
	for (int i = 0; i < 3; i++)
		WANT(!ncclAllGather(data[i] + (size_t)rank * count * 4, data[i], count, ncclFloat32,
				    one, streams[i]));
	WANT(!ncclAllGather(data[3] + (n - 1 - (size_t)rank) * count * 4, data[3], count,
			    ncclFloat32, other, streams[1]));
	WELL(one, ncclGroupEnd());
	WELL(other, ncclInProgress);
	/* a stream of the group is done only when the whole group is */
	stream_finish(streams[2]);
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < world; k++)
			want_values(form, data[i] + (size_t)k * count * 4, count,
				    seed + (uint64_t)i, k);
	stream_finish(streams[1]);
	for (int k = 0; k < world; k++)
		want_values(form, data[3] + (size_t)k * count * 4, count, seed + 3, k);
	leave(other);
	leave(one);
}

START_TEST(test_groups)
{
	run_well(_i, groups);
}
END_TEST

/* Operations of a communicator run in the order of the calls, even on unordered streams. */
static void streams(int rank, int world)
{
	ncclComm_t comm = join(rank, world, true);
	cudaStream_t late = stream_new(), early = stream_new();
	char *data = device_alloc(4096 * (size_t)world);

	for (size_t i = 0; i < 3; i++) {
		if (rank == 0)
			stream_delay(late);
		WELL(comm, ncclAllGather(data + (size_t)rank * 8, data, 8, ncclUint8, comm, late));
		WELL(comm, ncclAllGather(data + 1000 + (size_t)rank * 16, data + 1000, 16,
					 ncclUint8, comm, early));
	}
	stream_finish(early);
	stream_finish(late);
	leave(comm);
}

START_TEST(test_streams)
{
	run_well(3, streams);
}
END_TEST

/* ---- communicators --------------------------------------------------------------------------- */

/* Splits by parity, in reverse order, and excludes rank 3. */
static void split(int rank, int world)
{
	const struct form *form = &forms[0];
	ncclComm_t comm = join(rank, world, false), child = (ncclComm_t)&comm;
	cudaStream_t stream = stream_new();
	int color = rank == 3 ? NCCL_SPLIT_NOCOLOR : rank % 2;
	int count = rank % 2 ? world / 2 - (world > 3) : (world + 1) / 2;
	int own = count - 1 - rank / 2;
	char *data = device_alloc(4096 * 8);

	WANT(ncclCommSplit(comm, color, -rank, &child, NULL) == ncclInProgress);
	WELL(comm, ncclInProgress);
	if (rank == 3) {
		WANT(!child);
	} else {
		fill(form, data + own * 4096, 1024, seed, own, 0);
		WELL(child,
		     ncclAllGather(data + own * 4096, data, 1024, ncclFloat32, child, stream));
		stream_finish(stream);
		for (int i = 0; i < count; i++)
			want_values(form, data + i * 4096, 1024, seed, i);
		leave(child);
	}
	leave(comm);
}

START_TEST(test_split)
{
	run_well(_i, split);
}
END_TEST

static void many(int rank, int world)
{
	ncclConfig_t config = config_of(false);
	ncclUniqueId ids[3];
	ncclComm_t comm;

	share_ids(ids, 3);
	WELL(comm, ncclCommInitRankScalable(&comm, world, rank, 3, ids, &config));
	leave(comm);
}

START_TEST(test_many)
{
	run_well(200, many);
}
END_TEST

static void window(int rank, int world)
{
	ncclComm_t comm = join(rank, world, false);
	cudaStream_t stream = stream_new();
	size_t bytes = 8192 * (size_t)world;
	ncclWindow_t made = NULL;
	void *data;

	WANT(!ncclMemAlloc(&data, bytes));
	WELL(comm, ncclCommWindowRegister(comm, data, bytes, &made, NCCL_WIN_COLL_SYMMETRIC));
	WANT(made);
	memset(seen((char *)data + 8192 * rank, 8192), rank, 8192);
	WELL(comm, ncclAllGather((char *)data + 8192 * rank, data, 8192, ncclUint8, comm, stream));
	stream_finish(stream);
	for (int i = 0; i < world; i++)
		WANT(*seen((char *)data + 8192 * i + 8191, 1) == i);
	WELL(comm, ncclCommWindowDeregister(comm, made));
	WANT(!ncclMemFree(data));
	leave(comm);
}

START_TEST(test_window)
{
	run_well(_i, window);
}
END_TEST

/* ---- libraries ------------------------------------------------------------------------------- */

static void *library(const char *name, int version)
{
	const char *build = getenv("top_builddir");
	ncclResult_t (*get_version)(int *);
	char path[4096];
	void *opened;
	int found = 0;

	snprintf(path, sizeof path, "%s/tests/double/.libs/%s.so", build ? build : ".", name);
	opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(opened, "%s", dlerror());
	*(void **)&get_version = dlsym(opened, "ncclGetVersion");
	ck_assert(!get_version(&found));
	ck_assert_int_eq(found, version);
	return opened;
}

START_TEST(test_libraries)
{
	static const char *const newer[] = {"ncclCommInitRankScalable", "ncclCommWindowRegister",
					    "ncclCommWindowDeregister"};
	void *now = library("nccl", 22809), *old = library("nccl_old", 21903);

	for (int i = 0; i < 3; i++) {
		ck_assert_ptr_nonnull(dlsym(now, newer[i]));
		ck_assert_ptr_null(dlsym(old, newer[i]));
	}
	ck_assert_ptr_null(dlsym(now, "submit_op"));
	ck_assert_ptr_nonnull(dlsym(old, "ncclCommSplit"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("stand-in for NCCL");
	TCase *tests = tcase_create("results");
	const char *given = getenv("ZERO_TEST_SEED");
	SRunner *runner;
	int failed;

	seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 2654435761u;
	printf("ZERO_TEST_SEED=%llu\n", (unsigned long long)seed);
	tcase_set_timeout(tests, 300);
	tcase_add_loop_test(tests, test_operations, 1, 5);
	tcase_add_test(tests, test_order);
	tcase_add_loop_test(tests, test_messages, 1, 5);
	tcase_add_loop_test(tests, test_groups, 1, 4);
	tcase_add_test(tests, test_streams);
	tcase_add_loop_test(tests, test_split, 1, 6);
	tcase_add_test(tests, test_many);
	tcase_add_loop_test(tests, test_window, 1, 4);
	tcase_add_test(tests, test_libraries);
	suite_add_tcase(suite, tests);
	suite_add_tcase(suite, errors_case());
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
