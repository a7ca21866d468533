/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the environment, and decides which calls fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

struct double_settings double_settings;

struct rule {
	char call[64];
	unsigned long long first, seen;
	bool onwards;
	CUresult result;
};

enum { RULES = 64 };

static struct rule rules[RULES];
static size_t rule_count;
static _Thread_local bool quiet;

static unsigned long long number_of(const char *name, unsigned long long otherwise)
{
	const char *text = getenv(name);
	unsigned long long value;
	char *end;

	if (!text || !*text)
		return otherwise;
	value = strtoull(text, &end, 0);
	switch (*end) {
	case 'G':
		value *= 1024;
		/* fall through */
	case 'M':
		value *= 1024;
		/* fall through */
	case 'K':
		value *= 1024;
		end++;
	}
	if (*end)
		double_die("%s=%s is no number", name, text);
	return value;
}

/* "cuMemGetInfo" also matches "cuMemGetInfo_v2". */
static bool same_call(const char *said, const char *call)
{
	size_t length = strlen(said);

	return !strcmp(said, "*") ||
	       (!strncmp(said, call, length) && (!call[length] || !strcmp(call + length, "_v2")));
}

/* Parses call:n[+]:result[:rank]. *mine is whether the rule is for this rank. */
static bool read_rule(const char *text, struct rule *rule, bool *mine)
{
	const char *own = getenv("PMIX_RANK");
	char *end;

	*mine = true;
	memset(rule, 0, sizeof(*rule));
	if (sscanf(text, "%63[^:]", rule->call) != 1 || text[strlen(rule->call)] != ':')
		return false;
	text += strlen(rule->call) + 1;
	rule->first = strtoull(text, &end, 10);
	if (end == text || !rule->first)
		return false;
	rule->onwards = *end == '+';
	end += rule->onwards;
	if (*end != ':')
		return false;
	text = end + 1;
	rule->result = (CUresult)strtoul(text, &end, 10);
	if (end == text || !rule->result)
		return false;
	if (*end == ':') {
		text = end + 1;
		*mine = own && strtoul(text, &end, 10) == strtoul(own, NULL, 10);
		if (end == text)
			return !own && text[strspn(text, "0123456789")] == '\0' && *text;
	}
	return !*end;
}

static bool read_rules(const char *text)
{
	char *copy = strdup(text ? text : ""), *rest = copy, *one;
	bool good = copy, mine;

	rule_count = 0;
	while (good && (one = strsep(&rest, ","))) {
		if (!*one)
			continue;
		good = rule_count < RULES && read_rule(one, &rules[rule_count], &mine);
		rule_count += good && mine;
	}
	free(copy);
	return good;
}

void double_settings_read(void)
{
	struct double_settings *s = &double_settings;
	const char *legacy = getenv("DOUBLE_CUDA_LEGACY");
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	if (s->read)
		return;
	s->read = true;
	s->devices = !visible || *visible;
	s->memory = number_of("DOUBLE_CUDA_MEMORY", 1ULL << 30);
	s->grain = number_of("DOUBLE_CUDA_GRAIN", 2 << 20);
	s->delay_us = number_of("DOUBLE_CUDA_DELAY_US", 20);
	s->delay_of = number_of("DOUBLE_CUDA_DELAY_OF", 1);
	s->seed = number_of("DOUBLE_SEED", 0);
	s->legacy_waits = legacy && !strcmp(legacy, "wait");
	s->protect = number_of("DOUBLE_CUDA_PROTECT", 0);
	s->leaks = number_of("DOUBLE_CUDA_LEAKS", 0);
	if (!read_rules(getenv("DOUBLE_CUDA_FAIL")))
		double_die("DOUBLE_CUDA_FAIL=%s: it is call:n:result[:rank],...",
			   getenv("DOUBLE_CUDA_FAIL"));
}

CUresult double_injected(const char *call)
{
	CUresult result = CUDA_SUCCESS;

	if (quiet)
		return CUDA_SUCCESS;
	double_count(call);
	for (size_t i = 0; i < rule_count; i++) {
		struct rule *rule = &rules[i];

		if (!same_call(rule->call, call))
			continue;
		rule->seen++;
		if (rule->seen == rule->first || (rule->onwards && rule->seen > rule->first))
			result = rule->result;
	}
	return result;
}

/* After these errors a context cannot be used any more. */
bool double_is_sticky(CUresult result)
{
	return result == CUDA_ERROR_ECC_UNCORRECTABLE || result == CUDA_ERROR_ILLEGAL_ADDRESS ||
	       (result >= CUDA_ERROR_HARDWARE_STACK_ERROR && result <= CUDA_ERROR_LAUNCH_FAILED) ||
	       result == CUDA_ERROR_LAUNCH_TIMEOUT;
}

bool double_is_quiet(void)
{
	return quiet;
}

void double_cuda_quiet(bool is)
{
	quiet = is;
}
