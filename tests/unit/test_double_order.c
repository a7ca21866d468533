/* SPDX-License-Identifier: Apache-2.0 */
/* Order in the stand-in for CUDA: streams, events, and the detection of unordered accesses. */
#include <pthread.h>

#include "double_cuda.h"

/* ---- streams and events ---------------------------------------------------------------------- */

START_TEST(work_runs_later)
{
	CUstream stream = new_stream();
	CUevent event = new_event();
	float *x = new_pinned(4);

	*x = 3;
	hold(true);
	GOOD(twice((CUdeviceptr)x, 1, stream));
	GOOD(cu.event_record(event, stream));
	GIVES(cu.event_query(event), CUDA_ERROR_NOT_READY);
	ck_assert(*x == 3);
	hold(false);
	GOOD(cu.event_finish(event));
	GOOD(cu.event_query(event));
	ck_assert(*x == 6);
}
END_TEST

START_TEST(a_stream_keeps_its_order)
{
	CUstream stream = new_stream();
	unsigned char *from = new_pinned(256), to[256];
	CUdeviceptr x = new_block(256, stream);

	for (int i = 0; i < 256; i++)
		GOOD(cu.set(x + i, (unsigned char)i, 256 - i, stream));
	GOOD(cu.copy((CUdeviceptr)from, x, 256, stream));
	GOOD(cu.copy((CUdeviceptr)to, x, 256, stream));
	for (int i = 0; i < 256; i++)
		ck_assert_int_eq(to[i], i);
	ck_assert_mem_eq(from, to, 256);
}
END_TEST

START_TEST(events_never_recorded_are_no_wait)
{
	CUstream stream = new_stream();
	CUevent event = new_event();

	GOOD(cu.stream_wait(stream, event, 0));
	GOOD(cu.event_query(event));
	GOOD(cu.event_finish(event));
	GOOD(cu.stream_finish(stream));
}
END_TEST

/* A wait is for the record at the time of the call, not for a later one. */
START_TEST(a_record_is_a_snapshot)
{
	CUstream first = new_stream(), second = new_stream(), third = new_stream();
	CUevent event = new_event(), never = new_event();
	float *x = new_pinned(4);

	*x = 1;
	GOOD(twice((CUdeviceptr)x, 1, first));
	GOOD(cu.event_record(event, first));
	GOOD(cu.stream_wait(second, event, 0));
	GOOD(cu.stream_finish(first));
	hold(true);
	GOOD(cu.event_record(never, third));
	GOOD(cu.event_record(event, third));
	GIVES(cu.event_query(event), CUDA_ERROR_NOT_READY);
	GOOD(cu.event_delete(event));
	GOOD(cu.stream_delete(third));
	hold(false);
	GOOD(twice((CUdeviceptr)x, 1, second));
	GOOD(cu.stream_finish(second));
	GOOD(cu.event_finish(never));
	ck_assert(*x == 4);
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

START_TEST(the_legacy_stream_is_like_the_others)
{
	CUdeviceptr x = new_block(4, NULL);
	float *pinned = new_pinned(4);

	*pinned = 1;
	hold(true);
	GOOD(cu.copy(x, (CUdeviceptr)pinned, 4, CU_STREAM_LEGACY));
	GOOD(twice(x, 1, NULL));
	GOOD(cu.copy((CUdeviceptr)pinned, x, 4, NULL));
	ck_assert(*pinned == 1);
	hold(false);
	GOOD(cu.stream_finish(NULL));
	ck_assert(*pinned == 2);
	GIVES(cu.stream_delete(NULL), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

START_TEST(the_legacy_stream_can_wait)
{
	float *x;

	setenv("DOUBLE_CUDA_LEGACY", "wait", 1);
	open_device();
	for (int i = 0; i < 50; i++) {
		x = (float *)new_block(4, NULL);
		*x = 1;
		GOOD(twice((CUdeviceptr)x, 1, NULL));
		ck_assert(*x == 2);
	}
}
END_TEST

static void add_one(void *count)
{
	*(int *)count += *(int *)count >= 0;
	if (cu.stream_finish(NULL) != CUDA_ERROR_NOT_PERMITTED)
		*(int *)count = -1;
}

START_TEST(host_functions_run_in_order)
{
	CUstream stream = new_stream();
	int count = 0;

	for (int i = 0; i < 10; i++)
		GOOD(host_function(stream, add_one, &count));
	GOOD(cu.stream_finish(stream));
	ck_assert_int_eq(count, 10);
}
END_TEST

/* Each thread has its own stream, and events order the streams. */
static void *one_thread(void *result)
{
	CUstream stream, other;
	CUdeviceptr x;
	CUevent event;
	float y = 1;

	if (cu.stream_new(&stream, CU_STREAM_NON_BLOCKING, 0) != CUDA_ERROR_INVALID_CONTEXT ||
	    cu.context_push(context))
		return NULL;
	for (int i = 0; i < 20; i++) {
		if (cu.stream_new(&stream, CU_STREAM_NON_BLOCKING, 0) ||
		    cu.stream_new(&other, CU_STREAM_NON_BLOCKING, 0) || cu.event_new(&event, 0) ||
		    cu.alloc(&x, 4, pool, stream) || cu.copy(x, (CUdeviceptr)&y, 4, stream) ||
		    twice(x, 1, stream) || cu.event_record(event, stream) ||
		    cu.stream_wait(other, event, 0) || cu.copy((CUdeviceptr)&y, x, 4, other) ||
		    cu.free(x, other) || cu.event_delete(event) || cu.stream_delete(stream) ||
		    cu.stream_delete(other))
			return NULL;
	}
	*(float *)result = y;
	return result;
}

START_TEST(threads_work_side_by_side)
{
	pthread_t threads[4];
	float results[4] = {0};

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, one_thread, &results[i]);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 4; i++)
		ck_assert(results[i] == 0x1p20f);
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
	uint64_t z = p.random += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (unsigned)((z ^ z >> 31) >> 33) % below;
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
					    .in = {(void *)p.x[a], (void *)p.x[b]},
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

		GOOD(cu.event_finish(p.events[j]));
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

	for (int i = 0; i < 60; i++) {
		memset(&p, 0, sizeof(p));
		p.random = seed * 1000 + (uint64_t)i;
		p.forgetful = i % 3 == 0;
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
	printf("%d programs are in order, %d are not\n", good, raced);
	ck_assert_int_ge(good, 40);
	ck_assert_int_gt(raced, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("double_order");
	TCase *test = tcase_create("device"), *own = tcase_create("own");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(test, 60);
	tcase_set_timeout(own, 300);
	tcase_add_checked_fixture(test, open_device, NULL);
	tcase_add_test(test, work_runs_later);
	tcase_add_test(test, a_stream_keeps_its_order);
	tcase_add_test(test, events_never_recorded_are_no_wait);
	tcase_add_test(test, a_record_is_a_snapshot);
	tcase_add_test(test, copies_with_the_host);
	tcase_add_test(test, the_legacy_stream_is_like_the_others);
	tcase_add_test(test, host_functions_run_in_order);
	tcase_add_test(test, threads_work_side_by_side);
	tcase_add_test(own, the_legacy_stream_can_wait);
	tcase_add_test(own, random_programs);
	suite_add_tcase(suite, test);
	suite_add_tcase(suite, own);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
