/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When operations run. Without a seed most are delayed a little. With one each stream changes its
 * pace at random: it runs at once, or slowly, or stands until the host waits for something, so that
 * other streams are far ahead of it.
 */
#include <stdlib.h>
#include <time.h>

#include "cuda.h"

enum { LATE_NS = 500000, LATEST_NS = 20000000 };

static unsigned host_waits;

static uint64_t draw(CUstream stream)
{
	uint64_t x = stream->random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	stream->random = x;
	return x;
}

void double_schedule_begin(CUstream stream, uint64_t number)
{
	const char *rank = getenv("PMIX_RANK");

	stream->random = number * UINT64_C(0xbf58476d1ce4e5b9) +
			 (rank ? strtoull(rank, NULL, 10) : 0) * UINT64_C(0x94d049bb133111eb) +
			 double_settings.seed * UINT64_C(0x9e3779b97f4a7c15);
	stream->random += !stream->random;
	stream->pace = DOUBLE_USUAL;
}

void double_host_waits(bool waits)
{
	host_waits += waits ? 1 : -1;
	double_happened();
}

static void sleep_ns(uint64_t ns)
{
	struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

	double_unlock();
	nanosleep(&time, NULL);
	double_lock();
}

/* Most delays are short, a few are long. */
static void delay(CUstream stream, uint64_t mean)
{
	uint64_t x = draw(stream), ns = x % (1000 * mean + 1);

	if (!mean || (x >> 32) % double_settings.delay_of)
		return;
	sleep_ns(x >> 60 == 0 ? 9 * ns : ns);
}

static void wait_for_host(long most)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_nsec += most;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	while (!host_waits && double_wait_until(&end))
		;
}

static enum double_pace next_pace(uint64_t x)
{
	static const enum double_pace paces[16] = {
		DOUBLE_QUICK, DOUBLE_QUICK, DOUBLE_QUICK, DOUBLE_QUICK, DOUBLE_QUICK,
		DOUBLE_QUICK, DOUBLE_QUICK, DOUBLE_SLOW,  DOUBLE_LATE,
	};

	return paces[x % 16]; /* the others are 0, the usual */
}

void double_schedule(CUstream stream)
{
	if (double_settings.seed && !stream->stretch--) {
		uint64_t x = draw(stream);

		stream->pace = next_pace(x >> 8);
		stream->stretch = (unsigned)(x >> 16) % 12;
	}
	switch (stream->pace) {
	case DOUBLE_USUAL:
		delay(stream, double_settings.delay_us);
		break;
	case DOUBLE_SLOW:
		delay(stream, 10 * double_settings.delay_us);
		break;
	case DOUBLE_LATE:
		wait_for_host(draw(stream) % 32 ? LATE_NS : LATEST_NS);
		break;
	case DOUBLE_QUICK:
		break;
	}
}

void double_write_late(CUstream stream, void *data, size_t bytes)
{
	if (!double_settings.seed || !bytes)
		return;
	double_poison(data, bytes);
	if (draw(stream) % 16 == 0)
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}
