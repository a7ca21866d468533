/* SPDX-License-Identifier: Apache-2.0 */
/* CLOCK_MONOTONIC: it never jumps, and every thread and process of a machine reads the same. */
#ifndef ZERO_CLOCK_H
#define ZERO_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t zero_nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline double zero_seconds(void)
{
	return 1e-9 * (double)zero_nanoseconds();
}

/* The moment `seconds` from now, for zero_cond_init's conditions and pthread_cond_timedwait. */
static inline struct timespec zero_deadline(double seconds)
{
	const double longest = 1e6;
	uint64_t at = zero_nanoseconds();

	/* NaN counts as 0. */
	if (seconds > 0)
		at += (uint64_t)(1e9 * (seconds < longest ? seconds : longest));
	return (struct timespec){.tv_sec = (time_t)(at / 1000000000u),
				 .tv_nsec = (long)(at % 1000000000u)};
}

/* A condition whose timed waits end at a moment of this clock. */
static inline void zero_cond_init(pthread_cond_t *condition)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(condition, &attributes);
	pthread_condattr_destroy(&attributes);
}

#endif
