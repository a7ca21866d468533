/* SPDX-License-Identifier: Apache-2.0 */
/* Names and figures of a report in words; part of zero_files.so. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/options.h"
#include "report/words.h"

const char *zero_report_kind_name(enum zero_report_kind kind)
{
	static const char *const names[ZERO_REPORT_KINDS] = {
		[ZERO_REPORT_GATHER] = "gather",
		[ZERO_REPORT_REDUCE] = "reduce",
		[ZERO_REPORT_UPDATE] = "update",
		[ZERO_REPORT_STEP] = "step",
		[ZERO_REPORT_LOAD] = "load",
		[ZERO_REPORT_FLATTEN] = "flatten",
		[ZERO_REPORT_CHECKPOINT] = "checkpoint",
		[ZERO_REPORT_PROGRAM] = "program",
		[ZERO_REPORT_OTHER] = "other",
	};

	return names[kind];
}

const char *words_memory(enum zero_memory_kind kind)
{
	static const char *const names[ZERO_MEM_KINDS] = {
		[ZERO_MEM_SHARDS] = "shards",         [ZERO_MEM_GATHERED] = "gathered",
		[ZERO_MEM_GRADIENTS] = "gradients",   [ZERO_MEM_OPTIMIZER] = "optimizer",
		[ZERO_MEM_STAGING] = "staging",       [ZERO_MEM_CALLER] = "caller",
		[ZERO_MEM_PINNED] = "pinned",         [ZERO_MEM_OFFLOAD] = "offload",
		[ZERO_MEM_CHECKPOINT] = "checkpoint",
	};

	return names[kind];
}

const char *words_source(int source)
{
	switch (source) {
	case ZERO_VRAM_NVML:
		return "nvml";
	case ZERO_VRAM_STEP_MEMORY:
		return "step_memory";
	case ZERO_VRAM_JOB_MEMORY:
		return "job_memory";
	case ZERO_VRAM_MEM_AVAILABLE:
		return "mem_available";
	default:
		return "unknown";
	}
}

struct words words_bytes(double bytes)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
	struct words words;
	size_t unit = 0;

	while (bytes >= 999.5 && unit + 1 < sizeof(units) / sizeof(*units)) {
		bytes /= 1000;
		unit++;
	}
	snprintf(words.text, sizeof(words.text), "%.3g %s", bytes, units[unit]);
	return words;
}

struct words words_size(uint64_t bytes)
{
	static const char units[] = "KMGT";
	struct words words;
	int unit = -1;

	while (bytes && bytes % 1024 == 0 && unit < 3) {
		bytes /= 1024;
		unit++;
	}
	if (bytes >= 1000000)
		return words_bytes((double)bytes);
	snprintf(words.text, sizeof(words.text), "%llu%.*s", (unsigned long long)bytes, unit >= 0,
		 unit >= 0 ? units + unit : "");
	return words;
}

struct words words_seconds(double seconds)
{
	struct words words;

	if (seconds >= 999.5)
		snprintf(words.text, sizeof(words.text), "%.0f s", seconds);
	else if (seconds >= 0.9995 || seconds <= 0)
		snprintf(words.text, sizeof(words.text), "%.3g s", seconds);
	else if (seconds >= 0.9995e-3)
		snprintf(words.text, sizeof(words.text), "%.3g ms", seconds * 1e3);
	else
		snprintf(words.text, sizeof(words.text), "%.3g µs", seconds * 1e6);
	return words;
}

struct words words_count(uint64_t count)
{
	char plain[24];
	struct words words;
	size_t length = (size_t)snprintf(plain, sizeof(plain), "%llu", (unsigned long long)count);
	size_t at = 0;

	for (size_t i = 0; i < length; i++) {
		if (i && (length - i) % 3 == 0)
			words.text[at++] = ' ';
		words.text[at++] = plain[i];
	}
	words.text[at] = '\0';
	return words;
}

struct words words_time(int64_t seconds)
{
	time_t time = (time_t)seconds;
	struct words words = {""};
	struct tm parts;

	if (gmtime_r(&time, &parts))
		strftime(words.text, sizeof(words.text), "%Y-%m-%dT%H:%M:%SZ", &parts);
	return words;
}

/* Bytes of the UTF-8 character at `text`; 0: it is none, or a control character. */
static size_t character_at(const unsigned char *text)
{
	uint32_t code;
	size_t length;

	if (text[0] < 0x80)
		return text[0] >= ' ' && text[0] != 0x7f;
	length = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
	if (text[0] < 0xc2 || text[0] > 0xf4)
		return 0;
	code = text[0] & (0x7fu >> length);
	for (size_t i = 1; i < length; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (text[i] & 0x3f);
	}
	/* Not the shortest form, halves of pairs, none at all, controls, no characters. */
	if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000) || code > 0x10ffff ||
	    (code >= 0xd800 && code <= 0xdfff) || code < 0xa0 || (code & 0xfffe) == 0xfffe)
		return 0;
	return length;
}

char *words_clean(const char *text)
{
	const unsigned char *from = (const unsigned char *)(text ? text : "");
	char *clean = malloc(strlen((const char *)from) + 1), *to = clean;
	size_t length;

	if (!clean)
		return NULL;
	while (*from) {
		length = character_at(from);
		if (length)
			memcpy(to, from, length);
		else
			*to = '?';
		length = length ? length : 1;
		to += length;
		from += length;
	}
	*to = '\0';
	return clean;
}

void words_escape(FILE *out, const char *text)
{
	static const char *const names[] = {
		['<'] = "&lt;", ['>'] = "&gt;", ['&'] = "&amp;", ['"'] = "&quot;"};
	char *clean = words_clean(text);

	for (const char *c = clean ? clean : "?"; *c; c++) {
		size_t code = (unsigned char)*c;

		if (code < sizeof(names) / sizeof(*names) && names[code])
			fputs(names[code], out);
		else
			putc(*c, out);
	}
	free(clean);
}

uint64_t words_waited(const struct zero_report_rank *rank)
{
	uint64_t sum = 0;

	for (int kind = 0; kind < ZERO_REPORT_KINDS; kind++)
		if (zero_report_trains((enum zero_report_kind)kind))
			sum += rank->kinds[kind].wait;
	return sum;
}

uint64_t words_own(const struct zero_report_rank *rank)
{
	uint64_t sum = 0;

	for (int kind = 0; kind < ZERO_REPORT_KINDS; kind++)
		if (zero_report_trains((enum zero_report_kind)kind))
			sum += rank->kinds[kind].own;
	return sum;
}

double words_total(const struct zero_report_sample *sample)
{
	double total = 0;

	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		if (zero_on_device((enum zero_memory_kind)kind))
			total += (double)sample->peak[kind];
	return total;
}

const struct zero_report_rank *words_highest(const struct zero_report *report)
{
	const struct zero_report_rank *most = report->ranks;

	for (size_t i = 1; i < report->rank_count; i++)
		if (report->ranks[i].memory.total.peak > most->memory.total.peak)
			most = &report->ranks[i];
	return most;
}
