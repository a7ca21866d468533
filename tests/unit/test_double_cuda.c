/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in for CUDA sees what would go wrong on a device: work without an order, memory that is
 * not there (yet, or any more), leaks. Without it a fault of the library would pass all tests that
 * run on the stand-in.
 */
#include "core/clock.h"
#include "double_cuda.h"

/* ---- order ----------------------------------------------------------------------------------- */

/* A wait is for the record at the time of the call, not for a later one. */
START_TEST(a_record_is_a_snapshot)
{
	CUstream first = new_stream(), second = new_stream(), third = new_stream();
	CUevent event = new_event();
	float *x = new_pinned(4);

	*x = 1;
	GOOD(twice((CUdeviceptr)x, 1, first));
	GOOD(cu.event_record(event, first));
	GOOD(cu.stream_wait(second, event, 0));
	hold(true);
	GOOD(cu.event_record(event, third));
	GIVES(cu.event_query(event), CUDA_ERROR_NOT_READY);
	hold(false);
	GOOD(twice((CUdeviceptr)x, 1, second));
	GOOD(cu.stream_finish(second));
	ck_assert(*x == 4);
}
END_TEST

/* An event with timing has the time at which the stream came to it. */
START_TEST(events_have_times)
{
	CUstream stream = new_stream();
	CUevent begin, end, never, untimed = new_event();
	double before, between, after, late;
	float milliseconds;

	GOOD(cu.event_new(&begin, CU_EVENT_DEFAULT));
	GOOD(cu.event_new(&end, CU_EVENT_DEFAULT));
	GOOD(cu.event_new(&never, CU_EVENT_DEFAULT));
	before = zero_seconds();
	GOOD(cu.event_record(begin, stream));
	GOOD(cu.stream_finish(stream));
	between = zero_seconds();
	hold(true);
	GOOD(cu.event_record(end, stream));
	GOOD(cu.event_record(untimed, stream));
	GIVES(cu.event_elapsed(&milliseconds, begin, end), CUDA_ERROR_NOT_READY);
	after = zero_seconds();
	hold(false);
	GOOD(cu.stream_finish(stream));
	late = zero_seconds();
	GOOD(cu.event_elapsed(&milliseconds, begin, end));
	ck_assert((double)milliseconds >= 999 * (after - between));
	ck_assert((double)milliseconds <= 1001 * (late - before));
	GIVES(cu.event_elapsed(&milliseconds, begin, untimed), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cu.event_elapsed(&milliseconds, never, end), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

/* Pinned memory is read when the copy runs, pageable memory when the copy is called. */
START_TEST(copies_with_the_host)
{
	CUstream stream = new_stream();
	CUdeviceptr x = new_block(8, stream);
	int pinned_is, *pinned = new_pinned(4), pageable = 1, both[2];

	*pinned = 1;
	GOOD(cu.stream_finish(stream));
	hold(true);
	GOOD(cu.copy(x, (CUdeviceptr)pinned, 4, stream));
	GOOD(cu.copy(x + 4, (CUdeviceptr)&pageable, 4, stream));
	*pinned = pageable = 2;
	hold(false);
	GOOD(cu.copy((CUdeviceptr)both, x, 8, stream));
	ck_assert_int_eq(both[0], 2);
	ck_assert_int_eq(both[1], 1);
	GOOD(cu.copy((CUdeviceptr)&pinned_is, (CUdeviceptr)pinned, 4, stream));
	ck_assert_int_eq(pinned_is, 2);
}
END_TEST

/* ---- random programs ------------------------------------------------------------------------- */

/*
 * Random work on a few buffers by a few streams. Whether each two steps that touch the same buffer
 * are in an order is found here by closing over all of what orders them; the stand-in must agree,
 * whatever ran first. In some programs waits are left out.
 */
enum { STEPS = 120, STREAMS = 4, BUFFERS = 5, WORDS = 16 };

static struct program {
	uint64_t random;
	bool forgetful, raced;
	CUstream streams[STREAMS];
	CUevent events[STEPS];
	int stream_of[STEPS], last_of[STREAMS];
	bool after[STEPS][STEPS], waited[STREAMS][STEPS], host[STEPS];
	int touched[STEPS][BUFFERS]; /* 1 read, 2 written */
	CUdeviceptr x[BUFFERS];
	float is[BUFFERS][WORDS];
} p;

static unsigned draw(unsigned below)
{
	return (unsigned)random_below(&p.random, below);
}

static void add_after(bool *set, int step)
{
	if (step < 0)
		return;
	set[step] = true;
	for (int j = 0; j < step; j++)
		set[j] = set[j] || p.after[step][j];
}

/* Orders step i on stream s after the steps that it needs, or omits an event on purpose. */
static void order(int i, int s)
{
	for (int j = i - 1; j >= 0; j--) {
		bool needed = false;

		for (int b = 0; b < BUFFERS; b++)
			needed = needed || (p.touched[i][b] && p.touched[j][b] &&
					    p.touched[i][b] + p.touched[j][b] > 2);
		if (!needed || p.stream_of[j] == s || (p.forgetful && !draw(40)))
			continue;
		GOOD(cu.stream_wait(p.streams[s], p.events[j], 0));
		add_after(p.waited[s], j);
	}
	add_after(p.after[i], p.last_of[s]);
	for (int j = 0; j < i; j++)
		p.after[i][j] = p.after[i][j] || p.waited[s][j] || p.host[j];
	for (int j = 0; j < i; j++)
		for (int b = 0; b < BUFFERS; b++)
			if (p.touched[i][b] && p.touched[j][b] &&
			    p.touched[i][b] + p.touched[j][b] > 2 && !p.after[i][j])
				p.raced = true;
	p.stream_of[i] = s;
	p.last_of[s] = i;
}

static void renew(int b, CUstream stream)
{
	GOOD(cu.free(p.x[b], stream));
	GOOD(cu.alloc(&p.x[b], sizeof(p.is[b]), pool, stream));
	GOOD(cu.set(p.x[b], 0, sizeof(p.is[b]), stream));
	memset(p.is[b], 0, sizeof(p.is[b]));
}

static void add(int to, int a, int b, CUstream stream)
{
	struct zero_device_sum arguments = {.out = (float *)p.x[to],
					    .own = (void *)p.x[a],
					    .others = (void *)p.x[b],
					    .count = WORDS,
					    .n = 2,
					    .from = ZERO_F32};

	GOOD(launch("zero_device_sum", 1, &arguments, stream));
	for (int k = 0; k < WORDS; k++)
		p.is[to][k] = p.is[a][k] + p.is[b][k];
}

static void fill(int to, float value, CUstream stream)
{
	struct zero_device_fill arguments = {.out = (void *)p.x[to], .count = WORDS, .size = 4};

	memcpy(&arguments.pattern, &value, sizeof(value));
	GOOD(launch("zero_device_fill", 1, &arguments, stream));
	for (int k = 0; k < WORDS; k++)
		p.is[to][k] = value;
}

static void step(int i)
{
	int s = (int)draw(STREAMS), a = (int)draw(BUFFERS), b = (int)draw(BUFFERS);
	int to = (int)draw(BUFFERS), what = (int)draw(8);

	p.touched[i][to] = 2;
	if (what < 6) {
		p.touched[i][a] = to == a ? 2 : 1;
		if (what < 4)
			p.touched[i][b] = to == b ? 2 : 1;
	}
	order(i, s);
	if (what < 4) {
		/* in and out are the same buffer, or different ones */
		add(to, a, b, p.streams[s]);
	} else if (what < 6) {
		GOOD(cu.copy(p.x[to], p.x[a], sizeof(p.is[a]), p.streams[s]));
		memmove(p.is[to], p.is[a], sizeof(p.is[a]));
	} else if (what < 7) {
		fill(to, (float)draw(1000), p.streams[s]);
	} else {
		renew(to, p.streams[s]);
	}
	p.events[i] = new_event();
	GOOD(cu.event_record(p.events[i], p.streams[s]));
	if (!draw(30)) {
		int j = (int)draw((unsigned)i + 1);

		GOOD(event_finish(p.events[j]));
		add_after(p.host, j);
	}
}

static void run_program(void)
{
	float got[WORDS];

	open_device();
	for (int s = 0; s < STREAMS; s++) {
		p.streams[s] = new_stream();
		p.last_of[s] = -1;
	}
	for (int b = 0; b < BUFFERS; b++) {
		p.x[b] = new_block(sizeof(p.is[b]), p.streams[0]);
		for (int k = 0; k < WORDS; k++)
			p.is[b][k] = (float)draw(1000);
		GOOD(cu.copy(p.x[b], (CUdeviceptr)p.is[b], sizeof(p.is[b]), p.streams[0]));
	}
	GOOD(cu.stream_finish(p.streams[0]));
	for (int i = 0; i < STEPS && !p.raced; i++)
		step(i);
	for (int s = 0; s < STREAMS; s++)
		GOOD(cu.stream_finish(p.streams[s]));
	if (p.raced)
		exit(9);
	for (int b = 0; b < BUFFERS; b++) {
		GOOD(cu.copy((CUdeviceptr)got, p.x[b], sizeof(got), p.streams[b % STREAMS]));
		if (memcmp(got, p.is[b], sizeof(got)))
			exit(8);
	}
	exit(p.forgetful ? 7 : 6);
}

/* A child that made a race on purpose and was not ended by it exits with 9. */
START_TEST(random_programs)
{
	uint64_t seed = seed_of_test();
	int raced = 0, good = 0, status;
	char text[4096];

	for (int i = 0; i < 20; i++) {
		memset(&p, 0, sizeof(p));
		p.random = seed * 1000 + (uint64_t)i;
		p.forgetful = i % 2 == 0;
		status = in_child(run_program, text, sizeof(text));
		if (WIFEXITED(status)) {
			ck_assert_msg(WEXITSTATUS(status) == (p.forgetful ? 7 : 6),
				      "program %d: status %d: %s", i, WEXITSTATUS(status), text);
			good++;
		} else {
			ck_assert_msg(p.forgetful && WTERMSIG(status) == SIGABRT &&
					      strstr(text, "stand-in for CUDA"),
				      "program %d: signal %d: %s", i, WTERMSIG(status), text);
			raced++;
		}
	}
	ck_assert_int_ge(good, 10);
	ck_assert_int_gt(raced, 0);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t bytes_free(void)
{
	size_t unused, total;

	GOOD(cu.memory_info(&unused, &total));
	return unused;
}

/* What is freed stays with its pool until it is trimmed. */
START_TEST(memory_has_a_budget)
{
	const size_t all = 1 << 20;
	cuuint64_t keep = SIZE_MAX;
	CUdeviceptr x, y;

	setenv("DOUBLE_CUDA_MEMORY", "1M", 1);
	open_device();
	GOOD(cu.pool_set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	GIVES(cu.alloc(&x, all + 1, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	hold(true);
	GOOD(cu.alloc(&x, all, pool, NULL));
	GIVES(cu.alloc(&y, 1, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	GOOD(cu.free(x, NULL));
	GOOD(cu.pool_trim(pool, 0));
	GIVES(plain_alloc(&y, 1), CUDA_ERROR_OUT_OF_MEMORY);
	hold(false);
	GOOD(cu.stream_finish(NULL));
	GIVES(plain_alloc(&y, 1), CUDA_ERROR_OUT_OF_MEMORY);
	GOOD(cu.pool_trim(pool, 0));
	ck_assert_uint_eq(bytes_free(), all);
	GOOD(plain_alloc(&y, all));
}
END_TEST

START_TEST(fresh_memory_is_poisoned)
{
	unsigned char *pinned = new_pinned(1000), device[1000];
	CUdeviceptr x = new_block(1000, NULL);

	GOOD(cu.copy((CUdeviceptr)device, x, 1000, NULL));
	for (int i = 0; i < 1000; i++)
		ck_assert(pinned[i] == 0xcb && device[i] == 0xcb);
}
END_TEST

static void reads_device_memory(void)
{
	CUdeviceptr x;

	setenv("DOUBLE_CUDA_PROTECT", "1", 1);
	open_device();
	x = new_block(4, NULL);
	GOOD(cu.set(x, 1, 4, NULL));
	GOOD(twice(x, 1, NULL));
	GOOD(cu.stream_finish(NULL));
	if (*(int *)reach(x, 4, false) == 0x01810101)
		exit(*(volatile int *)x ? 1 : 2);
}

START_TEST(device_memory_can_be_out_of_reach)
{
	char text[4096];
	int status = in_child(reads_device_memory, text, sizeof(text));

	/* a sanitizer turns the signal into an exit status */
	ck_assert_msg(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV
					  : strstr(text, "SEGV") != NULL,
		      "status %d: %s", status, text);
}
END_TEST

/* After a kernel touches memory that does not exist, the context cannot be used any more. */
static const struct {
	size_t offset, count;
	bool plain;
	CUresult error;
} bad[] = {
	{0, 101, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{4, 100, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{0, SIZE_MAX, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{1, 50, false, CUDA_ERROR_MISALIGNED_ADDRESS},
	{0, 1, true, CUDA_ERROR_ILLEGAL_ADDRESS},
};

START_TEST(faults_stay)
{
	static float plain[100];
	CUdeviceptr x = new_block(400, NULL), y;
	CUstream stream = new_stream();
	CUevent event = new_event();

	GOOD(twice((bad[_i].plain ? (CUdeviceptr)plain : x) + bad[_i].offset, bad[_i].count, NULL));
	GIVES(cu.stream_finish(NULL), bad[_i].error);
	GIVES(cu.stream_finish(stream), bad[_i].error);
	GIVES(cu.event_query(event), bad[_i].error);
	GIVES(cu.alloc(&y, 4, pool, stream), bad[_i].error);
}
END_TEST

/* ---- what ends the process ------------------------------------------------------------------- */

static void uses_freed(void)
{
	CUdeviceptr x;

	open_device();
	x = new_block(4, NULL);
	GOOD(cu.free(x, NULL));
	cu.set(x, 0, 4, NULL);
}

static void launches_on_freed(void)
{
	CUdeviceptr x;

	open_device();
	x = new_block(400, NULL);
	GOOD(cu.free(x, NULL));
	GOOD(cu.stream_finish(NULL));
	twice(x + 40, 10, NULL);
}

static void frees_pinned_in_use(void)
{
	float *x;

	open_device();
	x = new_pinned(4);
	hold(true);
	GOOD(twice((CUdeviceptr)x, 1, NULL));
	cu.host_free(x);
}

static void allocates_without_an_order(void)
{
	CUstream stream;
	CUdeviceptr x;

	open_device();
	stream = new_stream();
	x = new_block(4, NULL);
	GOOD(cu.set(x, 0, 4, stream));
	GOOD(cu.stream_finish(stream));
	GOOD(cu.stream_finish(NULL));
}

START_TEST(misuse_ends_the_process)
{
	dies(uses_freed, "cuMemsetD8Async");
	dies(launches_on_freed, "cuLaunchKernel zero_device_sum");
	dies(frees_pinned_in_use, "is still used by");
	dies(allocates_without_an_order, "cuMemsetD8Async");
}
END_TEST

static void leaves_all_behind(void)
{
	CUstream stream;

	setenv("DOUBLE_CUDA_LEAKS", "1", 1);
	open_device();
	stream = new_stream();
	new_event();
	new_block(1234, stream);
	new_pinned(4321);
}

START_TEST(leaks_are_told)
{
	static const char *const words[] = {"stream", "event",         "pool",
					    "module", "retained 1",    "device memory",
					    "1234",   "pinned memory", "4321"};
	char text[4096];
	int status = in_child(leaves_all_behind, text, sizeof(text));

	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 97, "%d: %s", status, text);
	for (size_t i = 0; i < COUNT_OF(words); i++)
		ck_assert_msg(strstr(text, words[i]), "no \"%s\" in: %s", words[i], text);
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("device"), *own = tcase_create("own");

	tcase_set_timeout(own, 300);
	tcase_add_checked_fixture(test, open_device, NULL);
	tcase_add_test(test, a_record_is_a_snapshot);
	tcase_add_test(test, events_have_times);
	tcase_add_test(test, copies_with_the_host);
	tcase_add_test(own, random_programs);
	tcase_add_test(own, memory_has_a_budget);
	tcase_add_test(test, fresh_memory_is_poisoned);
	tcase_add_test(own, device_memory_can_be_out_of_reach);
	tcase_add_loop_test(test, faults_stay, 0, (int)COUNT_OF(bad));
	tcase_add_test(own, misuse_ends_the_process);
	tcase_add_test(own, leaks_are_told);
	return run_cases(test, own, NULL);
}
