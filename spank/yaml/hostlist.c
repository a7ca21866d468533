/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/text.h"
#include "hostlist.h"

enum {
	MAX_HOST = 255, /* bytes of the name of a host */
	MAX_DIGITS = 18 /* of a number, so that each fits 64 bits */
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* True for a byte of a host name outside brackets. */
static bool is_plain(char c)
{
	return (unsigned char)c > ' ' && c != 0x7f && !strchr("[],", c);
}

/* Reads 1 to 18 digits. Returns what follows them, NULL on error. */
static const char *read_number(const char *at, uint64_t *number)
{
	const char *start = at;

	for (*number = 0; is_digit(*at); at++) {
		if (at - start == MAX_DIGITS)
			return NULL;
		*number = *number * 10 + (uint64_t)(*at - '0');
	}
	return at == start ? NULL : at;
}

/* "7", "07" or "01-16": the numbers from low to high, padded with zeros to the width of low. */
struct range {
	uint64_t low, high;
	size_t width;
};

/* Returns what follows the range, NULL on error. */
static const char *read_range(const char *at, struct range *range)
{
	const char *end = read_number(at, &range->low);

	if (!end)
		return NULL;
	range->width = (size_t)(end - at);
	range->high = range->low;
	return *end == '-' ? read_number(end + 1, &range->high) : end;
}

static bool in_range(const struct range *range, const char *digits, size_t length)
{
	uint64_t number = 0;

	if (length < range->width || (length > range->width && digits[0] == '0'))
		return false;
	for (size_t i = 0; i < length; i++)
		number = number * 10 + (uint64_t)(digits[i] - '0');
	return number >= range->low && number <= range->high;
}

/* Checks what follows a '['. Returns what follows its ']'; NULL and *why on error. */
static const char *check_bracket(const char *at, char *why, size_t size)
{
	const char *inside = at;

	for (;;) {
		const char *start = at;
		struct range range;

		at = read_range(start, &range);
		if (!at || !strchr("],", *at) || !*at) {
			size_t length = strcspn(start, ",]");

			if (!strchr(inside, ']'))
				zero_refuse(why, size, "%s has no closing bracket",
					    zero_quote(inside - 1, strlen(inside - 1)).text);
			else
				zero_refuse(why, size,
					    "%s is not a range: two numbers of at most %d digits, "
					    "such as "
					    "1-16",
					    zero_quote(start, length).text, MAX_DIGITS);
			return NULL;
		}
		if (range.low > range.high) {
			zero_refuse(why, size, "the range %s is descending",
				    zero_quote(start, (size_t)(at - start)).text);
			return NULL;
		}
		if (*at++ == ']')
			return at;
	}
}

bool zero_hostlist_check(const char *list, char *why, size_t size)
{
	const char *at = list;

	for (;;) {
		const char *name = at;

		while (*at == '[' || is_plain(*at)) {
			if (*at++ == '[')
				at = check_bracket(at, why, size);
			if (!at)
				return false;
		}
		if (*at == ']')
			return zero_refuse(why, size,
					   "%s has a closing bracket without an opening one",
					   zero_quote(name, (size_t)(at + 1 - name)).text);
		if (*at && *at != ',')
			return zero_refuse(why, size, "%s contains a space or a control character",
					   zero_quote(list, strlen(list)).text);
		if (at == name)
			return zero_refuse(why, size, "%s contains an empty name",
					   zero_quote(list, strlen(list)).text);
		if (!*at++)
			return true;
	}
}

/* possible[i]: the pattern, as far as it was read, matches the first i bytes of the host. */
struct prefixes {
	bool possible[MAX_HOST + 1];
};

static void match_byte(struct prefixes *prefixes, const char *host, size_t length, char byte)
{
	for (size_t i = length; i > 0; i--)
		prefixes->possible[i] = prefixes->possible[i - 1] && host[i - 1] == byte;
	prefixes->possible[0] = false;
}

/* Matches the ranges from `at` up to the ']'. Returns what follows it, NULL on error. */
static const char *match_bracket(struct prefixes *prefixes, const char *host, size_t length,
				 const char *at)
{
	struct prefixes next = {{false}};

	do {
		struct range range;

		at = read_range(at, &range);
		if (!at || (*at != ',' && *at != ']'))
			return NULL;
		for (size_t i = 0; i < length; i++) {
			for (size_t digits = 1; prefixes->possible[i] && digits <= MAX_DIGITS &&
						is_digit(host[i + digits - 1]);
			     digits++) {
				if (in_range(&range, host + i, digits))
					next.possible[i + digits] = true;
			}
		}
	} while (*at++ == ',');
	*prefixes = next;
	return at;
}

/*
 * Follows all ways to split the digits of the host among the brackets at once: r[1-12][1-2] matches
 * r112 in two ways, and backtracking would take exponential time over many brackets.
 */
bool zero_hostlist_has(const char *list, const char *host)
{
	size_t length = strlen(host);
	const char *at = list;

	if (!length || length > MAX_HOST)
		return false;
	for (;;) {
		struct prefixes prefixes = {{true}};

		while (at && (*at == '[' || is_plain(*at))) {
			if (*at == '[')
				at = match_bracket(&prefixes, host, length, at + 1);
			else
				match_byte(&prefixes, host, length, *at++);
		}
		if (!at || (*at && *at != ','))
			return false;
		if (prefixes.possible[length])
			return true;
		if (!*at++)
			return false;
	}
}
