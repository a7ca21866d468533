/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a matrix product beside gathers, and the time to the first collective. */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "transfers.h"

/* ---- a product beside gathers ---------------------------------------------------------------- */

enum { SIDE = 8192, PRODUCTS = 24, GROUPS = 4, ROUNDS = 7 };

struct engines {
	zero_job *job;
	zero_group *groups[GROUPS];
	void *stream, *a, *b, *c; /* of products */
	void *comm, *out, *own;   /* of bare gathers, which run on `side` */
	void *side;
	size_t bytes; /* of a group */
	device_mark *begin, *end;
};

static void gather_all(void *context)
{
	struct engines *e = context;

	ok(zero_prefetch(e->groups, GROUPS, ZERO_DTYPE_PARAM));
	for (size_t g = 0; g < GROUPS; g++) {
		ok(zero_gather(e->groups[g], ZERO_DTYPE_PARAM));
		ok(zero_release(e->groups[g]));
	}
}

static void bare_gather_all(void *context)
{
	struct engines *e = context;

	for (size_t g = 0; g < GROUPS; g++)
		nccl_gather(e->comm, e->own, e->out, e->bytes / (size_t)world, e->side);
	stream_finish(e->side);
}

/* Milliseconds of the products alone, or beside so many rounds of gathers. */
static double products(struct engines *e, void (*gathers)(void *context), size_t rounds)
{
	synchronise();
	ok(zero_agree(e->job, NULL));
	mark_on(e->begin, e->stream);
	for (int i = 0; i < PRODUCTS; i++)
		blas_product(e->stream, false, false, SIDE, SIDE, SIDE, e->a, e->b, e->c, false,
			     false);
	mark_on(e->end, e->stream);
	for (size_t i = 0; i < rounds; i++)
		gathers(e);
	synchronise();
	return agreed(e->job, marks_between(e->begin, e->end));
}

static void engines_row(struct engines *e, const char *row, void (*gathers)(void *context))
{
	double one = timed_often(e->job, 5, gathers, e), alone[ROUNDS], beside[ROUNDS];
	size_t rounds;

	products(e, NULL, 0);
	/* enough gathers to last as long as the products */
	rounds = (size_t)(products(e, NULL, 0) / one) + 1;
	for (int i = 0; i < ROUNDS; i++) {
		alone[i] = products(e, NULL, 0);
		beside[i] = products(e, gathers, rounds);
	}
	if (rank == 0)
		record(row, world, median(beside, ROUNDS) / median(alone, ROUNDS),
		       median(beside, ROUNDS), median(alone, ROUNDS), "ms");
}

static void share_id(zero_job *job, void *id)
{
	double bytes[NCCL_ID_BYTES] = {0};

	if (rank == 0)
		nccl_new_id(id);
	for (int i = 0; i < NCCL_ID_BYTES && rank == 0; i++)
		bytes[i] = (double)world * ((unsigned char *)id)[i];
	ok(zero_mean(job, bytes, NCCL_ID_BYTES, 1));
	for (int i = 0; i < NCCL_ID_BYTES; i++)
		((unsigned char *)id)[i] = (unsigned char)bytes[i];
}

void measure_engines(void)
{
	static const char *const rows[] = {"product beside the library's gathers",
					   "product beside ordinary gathers"};
	const char *why = blas_open();
	struct engines e = {.job = open_cuda("stage=3 allgather=grouped"),
			    .bytes = scaled((size_t)256 << 20)};
	size_t matrix = (size_t)SIDE * SIDE * 2;
	unsigned char id[NCCL_ID_BYTES];

	world = zero_world(e.job);
	rank = zero_rank(e.job);
	if (!why)
		why = nccl_open();
	if (!why && world == 1)
		why = "one rank gathers nothing";
	for (int i = 0; why && rank == 0 && i < 2; i++)
		record_missing(rows[i], world, why);
	if (why) {
		ok(zero_close(e.job));
		return;
	}
	for (size_t g = 0; g < GROUPS; g++) {
		char name[2] = {(char)('a' + g), 0};

		e.groups[g] = new_group(e.job, name);
		new_param(e.groups[g], name, ZERO_F32, e.bytes / 4, false);
	}
	ok(zero_layout(e.job));
	e.a = device_alloc(matrix);
	e.b = device_alloc(matrix);
	e.c = device_alloc(matrix);
	e.own = device_alloc(e.bytes / (size_t)world);
	e.out = device_alloc(e.bytes);
	check(e.a && e.b && e.c && e.own && e.out, "no memory on the device");
	random_on_device(ZERO_BF16, e.a, matrix / 2);
	random_on_device(ZERO_BF16, e.b, matrix / 2);
	e.stream = stream_new();
	e.side = stream_new();
	e.begin = mark_new();
	e.end = mark_new();
	share_id(e.job, id);
	e.comm = nccl_join(world, rank, id);
	engines_row(&e, rows[0], gather_all);
	engines_row(&e, rows[1], bare_gather_all);
	nccl_leave(e.comm);
	ok(zero_close(e.job));
}

/* ---- the first collective -------------------------------------------------------------------- */

/* Shared memory of the ranks of one node, without the library. */
struct meeting {
	atomic_int arrived;
	unsigned char id[NCCL_ID_BYTES];
	_Atomic double worst;
};

enum { TIMES = 9, SMALL = 4096 };

static struct meeting *meeting;

static void meet(void)
{
	static int times;

	times++;
	atomic_fetch_add(&meeting->arrived, 1);
	while (atomic_load(&meeting->arrived) < times * world)
		sched_yield();
}

static double worst_of(double mine)
{
	double seen, all;

	meet();
	if (rank == 0)
		atomic_store(&meeting->worst, 0);
	meet();
	seen = atomic_load(&meeting->worst);
	while (mine > seen && !atomic_compare_exchange_weak(&meeting->worst, &seen, mine))
		;
	meet();
	all = atomic_load(&meeting->worst);
	meet();
	return all;
}

/* From zero_open until a small group is gathered on all ranks. */
static double open_and_gather(void)
{
	double begin;
	zero_group *group;
	zero_job *job;

	meet();
	begin = wall_ms();
	job = open_cuda("stage=3");
	group = new_group(job, "g");
	new_param(group, "p", ZERO_F32, (size_t)SMALL * (size_t)world, false);
	ok(zero_layout(job));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	synchronise();
	begin = wall_ms() - begin;
	ok(zero_release(group));
	ok(zero_close(job));
	return worst_of(begin);
}

/* The same with NCCL alone, when all ranks have the id already. */
static double join_and_gather(char *send, char *recv)
{
	double begin;
	void *comm;

	if (rank == 0)
		nccl_new_id(meeting->id);
	meet();
	begin = wall_ms();
	comm = nccl_join(world, rank, meeting->id);
	nccl_gather(comm, send, recv, SMALL * 4, NULL);
	synchronise();
	begin = wall_ms() - begin;
	nccl_leave(comm);
	return worst_of(begin);
}

/* Ranks of several nodes cannot share memory. */
static const char *open_meeting(void)
{
	zero_job *job = open_cuda("stage=3");
	const char *why = zero_local_world(job) < zero_world(job) ? "ranks on several nodes" : NULL;
	int file;

	world = zero_world(job);
	rank = zero_rank(job);
	file = open(file_path("meeting"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, sizeof(*meeting)))
		check(false, "the ranks' file cannot be made");
	meeting = mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	check(meeting != MAP_FAILED, "the ranks' file cannot be mapped");
	close(file);
	ok(zero_close(job));
	return why;
}

void measure_connect(void)
{
	const char *row = "zero_open to the first gather", *why = nccl_open();
	const char *nodes = open_meeting();
	double ours[TIMES], bare[TIMES];
	char *send, *recv;

	why = why ? why : world == 1 ? "one rank needs no NCCL" : nodes;
	if (why) {
		if (rank == 0)
			record_missing(row, world, why);
		return;
	}
	send = device_alloc(SMALL * 4);
	recv = device_alloc((size_t)SMALL * 4 * (size_t)world);
	check(send && recv, "no memory on the device");
	/* In both measurements NCCL has finished what it does once in a process. */
	open_and_gather();
	join_and_gather(send, recv);
	for (int i = 0; i < TIMES; i++) {
		ours[i] = open_and_gather();
		bare[i] = join_and_gather(send, recv);
	}
	if (rank == 0)
		record(row, world, median(ours, TIMES) / median(bare, TIMES), median(ours, TIMES),
		       median(bare, TIMES), "ms");
	device_free(send);
	device_free(recv);
}
