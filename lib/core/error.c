/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses in words, and each thread's last error. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

#include "config.h"

/*
 * A key, not thread-local storage: a library that is loaded late may not get any, and it would cost
 * every thread of programs that never fail.
 */
static pthread_key_t last_error_key;
static pthread_once_t last_error_once = PTHREAD_ONCE_INIT;
/* For errors outside of a job's calls. */
static atomic_int process_rank;

static void make_key(void)
{
	pthread_key_create(&last_error_key, free);
}

/* The thread's last error. NULL if there is none and `make` is false, or without memory. */
static struct zero_saved_error *last_error(bool make)
{
	struct zero_saved_error *last;

	pthread_once(&last_error_once, make_key);
	last = pthread_getspecific(last_error_key);
	if (!last && make) {
		last = calloc(1, sizeof(*last));
		pthread_setspecific(last_error_key, last);
	}
	return last;
}

void zero_process_rank_set(int rank)
{
	atomic_store(&process_rank, rank);
}

int zero_process_rank(void)
{
	return atomic_load(&process_rank);
}

zero_status zero_fail(zero_status status, const char *format, ...)
{
	struct zero_saved_error *last = last_error(true);
	/* Formatted in a buffer, since an argument may be the last error itself. */
	char text[sizeof(last->text)];
	va_list arguments;

	if (!last)
		return status;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	memcpy(last->text, text, sizeof(text));
	last->status = status;
	last->rank = zero_process_rank();
	last->shared = false;
	return status;
}

zero_status zero_fail_on(int rank, zero_status status, const char *text)
{
	struct zero_saved_error *last;

	zero_fail(status, "%s", text);
	last = last_error(false);
	if (last) {
		last->rank = rank;
		last->shared = true;
	}
	return status;
}

zero_status zero_last_error_status(void)
{
	const struct zero_saved_error *last = last_error(false);

	return last ? last->status : ZERO_OK;
}

bool zero_last_error_shared(void)
{
	const struct zero_saved_error *last = last_error(false);

	return last && last->shared;
}

void zero_error_save(struct zero_saved_error *saved)
{
	const struct zero_saved_error *last = last_error(false);

	*saved = last ? *last : (struct zero_saved_error){.rank = zero_process_rank()};
}

void zero_error_restore(const struct zero_saved_error *saved)
{
	struct zero_saved_error *last = last_error(*saved->text);

	if (last)
		*last = *saved;
}

const char *zero_last_error(void)
{
	const struct zero_saved_error *last = last_error(false);

	return last ? last->text : "";
}

int zero_last_error_rank(void)
{
	const struct zero_saved_error *last = last_error(false);

	return last ? last->rank : zero_process_rank();
}

const char *zero_strerror(zero_status status)
{
	switch (status) {
	case ZERO_OK:
		return "success";
	case ZERO_E_INVALID:
		return "value not allowed";
	case ZERO_E_STATE:
		return "call not allowed in this state";
	case ZERO_E_MEMORY:
		return "out of memory";
	case ZERO_E_FILE:
		return "file cannot be read or written";
	case ZERO_E_FORMAT:
		return "file damaged, or does not match the model";
	case ZERO_E_UNSUPPORTED:
		return "not supported here";
	case ZERO_E_ORDER:
		return "ranks began different operations";
	case ZERO_E_COMM:
		return "communication failed";
	case ZERO_E_APPLICATION:
		return "the program reported an error";
	}
	return "unknown status";
}

uint64_t zero_hash(const void *data, size_t bytes, uint64_t seed)
{
	const unsigned char *byte = data;
	uint64_t hash = seed ^ UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
	return hash;
}

const char *zero_version(void)
{
	return PACKAGE_VERSION;
}
