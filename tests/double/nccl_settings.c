/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the environment, decides which calls fail, and reports errors. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "nccl.h"

struct rule {
	enum trouble trouble;
	bool async;
	char function[48];
	unsigned nth;
	int result;
	int rank; /* -1: all */
	_Atomic unsigned seen;
};

enum { RULES = 16 };

static struct {
	pthread_once_t once;
	bool leaks, seed;
	_Atomic int rank; /* -1: not known */
	struct rule rule[RULES];
	unsigned rules;
	_Atomic unsigned operations;
	pthread_mutex_t mutex; /* of the last error */
	char last_error[512];
} own = {.once = PTHREAD_ONCE_INIT, .rank = -1, .mutex = PTHREAD_MUTEX_INITIALIZER};

/* Lets other ranks read this process's memory where the kernel allows only its parent to. */
__attribute__((constructor)) static void let_ranks_read(void)
{
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
}

_Noreturn void die(const char *format, ...)
{
	char text[1024];
	int at = snprintf(text, sizeof text, "double NCCL: ");
	va_list arguments;

	va_start(arguments, format);
	at += vsnprintf(text + at, sizeof text - (size_t)at - 1, format, arguments);
	va_end(arguments);
	if (at > (int)sizeof text - 2)
		at = sizeof text - 2;
	text[at++] = '\n';
	/* one write, so that lines of several ranks do not mix */
	if (write(STDERR_FILENO, text, (size_t)at) < 0)
		_exit(97);
	_exit(96);
}

static int number_of(const char *text, const char *rule)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (end == text || *end || value < 0 || value > 1 << 30)
		die("DOUBLE_NCCL_FAIL: '%s' in '%s' is not a number", text, rule);
	return (int)value;
}

static void read_rule(const char *text)
{
	struct rule *rule = &own.rule[own.rules];
	char copy[128], *word[5] = {NULL}, *rest = copy;
	int words = 0, at = 0;

	snprintf(copy, sizeof copy, "%s", text);
	while (words < 5 && (word[words] = strsep(&rest, ":")))
		words++;
	if (own.rules == RULES || rest || words < 3 || words > 4)
		die("DOUBLE_NCCL_FAIL: '%s' is not a rule", text);
	rule->trouble = FAIL;
	rule->async = strcmp(word[0], "async") == 0;
	if (strcmp(word[0], "kill") == 0)
		rule->trouble = KILL;
	if (strcmp(word[0], "hang") == 0)
		rule->trouble = HANG;
	if (strcmp(word[0], "slow") == 0)
		rule->trouble = SLOW;
	if (rule->trouble != FAIL)
		at = 1;
	if (!rule->async && strncmp(word[at], "nccl", 4) != 0)
		die("DOUBLE_NCCL_FAIL: '%s' in '%s' is not a function", word[at], text);
	snprintf(rule->function, sizeof rule->function, "%s", word[at++]);
	rule->nth = (unsigned)number_of(word[at++], text);
	if (rule->trouble == FAIL)
		rule->result = number_of(word[at++], text);
	rule->rank = at < words ? number_of(word[at++], text) : -1;
	if (at < words)
		die("DOUBLE_NCCL_FAIL: '%s' is not a rule", text);
	own.rules++;
}

static bool is_on(const char *name)
{
	const char *value = getenv(name);

	return value && *value && strcmp(value, "0") != 0;
}

static void read_settings(void)
{
	const char *rank = getenv("PMIX_RANK");
	const char *rules = getenv("DOUBLE_NCCL_FAIL");
	char copy[1024], *rest = copy, *rule;

	own.seed = is_on("DOUBLE_SEED");
	own.leaks = is_on("DOUBLE_NCCL_LEAKS");
	if (rank && *rank)
		own.rank = atoi(rank);
	if (!rules)
		return;
	snprintf(copy, sizeof copy, "%s", rules);
	while ((rule = strsep(&rest, ",")))
		if (*rule)
			read_rule(rule);
}

static void settle(void)
{
	pthread_once(&own.once, read_settings);
}

bool setting_seed(void)
{
	settle();
	return own.seed;
}

int setting_rank(void)
{
	return own.rank;
}

bool setting_leaks(void)
{
	settle();
	return own.leaks;
}

void know_rank(int rank)
{
	int none = -1;

	settle();
	atomic_compare_exchange_strong(&own.rank, &none, rank);
}

static bool is_here(const struct rule *rule)
{
	return rule->rank < 0 || rule->rank == own.rank;
}

enum trouble trouble_in(const char *function, bool operation, ncclResult_t *result)
{
	enum trouble trouble = NO_TROUBLE;

	settle();
	count_add(function, 1);
	for (unsigned i = 0; i < own.rules; i++) {
		struct rule *rule = &own.rule[i];

		if (rule->async || !is_here(rule) || strcmp(rule->function, function) != 0)
			continue;
		if (atomic_fetch_add(&rule->seen, 1) + 1 != rule->nth)
			continue;
		trouble = rule->trouble;
		*result = (ncclResult_t)rule->result;
		if (trouble == FAIL)
			refuse(*result, "%s was told to fail", function);
	}
	if (trouble == KILL && !operation)
		kill(getpid(), SIGKILL);
	return trouble;
}

void count_operation(void)
{
	atomic_fetch_add(&own.operations, 1);
}

ncclResult_t injected_async(void)
{
	settle();
	for (unsigned i = 0; i < own.rules; i++) {
		struct rule *rule = &own.rule[i];

		if (rule->async && is_here(rule) && own.operations >= rule->nth)
			return (ncclResult_t)rule->result;
	}
	return ncclSuccess;
}

ncclResult_t refuse(ncclResult_t result, const char *format, ...)
{
	va_list arguments;

	pthread_mutex_lock(&own.mutex);
	va_start(arguments, format);
	vsnprintf(own.last_error, sizeof own.last_error, format, arguments);
	va_end(arguments);
	pthread_mutex_unlock(&own.mutex);
	return result;
}

const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	return own.last_error;
}
