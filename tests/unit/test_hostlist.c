/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "spank/yaml/hostlist.h"
#include "unit.h"

enum { WHY = 256, HOSTS = 4096 };

static void check_has(const char *list, const char *host, bool expected)
{
	char why[WHY] = "";

	ck_assert_msg(zero_hostlist_check(list, why, sizeof why), "%s: %s", list, why);
	ck_assert_msg(zero_hostlist_has(list, host) == expected, "%s %s %s", list,
		      expected ? "lacks" : "has", host);
}

START_TEST(names_and_ranges)
{
	static const struct {
		const char *list, *has, *lacks;
	} cases[] = {
		{"n1", "n1", "n11"},
		{"n1", "n1", "n"},
		{"a,b,c", "c", "d"},
		{"login,n[1-3,7]", "login", "n4"},
		{"login,n[1-3,7]", "n2", "n02"},
		{"n[1-3,7]", "n7", "n[1-3,7]"},
		{"n[1-10]", "n10", "n01"},
		{"n[01-10]", "n01", "n1"},
		{"n[01-10]", "n10", "n010"},
		{"n[1-3,07]", "n07", "n7"},
		{"n[08-11]", "n09", "n9"},
		{"n[98-101]", "n101", "n0101"},
		{"n[098-101]", "n099", "n99"},
		{"n[0-3]", "n0", "n00"},
		{"n[00]", "n00", "n0"},
		{"n[1]x", "n1x", "n1"},
		{"r[1-2]c[0-9]", "r2c0", "r3c0"},
		{"r[1-2]c[0-9]", "r1c9", "r1c10"},
		{"r[1-12][1-2]", "r112", "r13"},
		{"r[1-12][1-2]", "r122", "r125"},
		{"[1-3]", "2", "4"},
		{"n[999999999999999999]", "n999999999999999999", "n999999999999999998"},
		{"n[1-999999999999999999]", "n123456789012345678", "n0"},
		{"n[1-999999999999999999]", "n1", "n1000000000000000000"},
		{"kn\xc3\xb6t[1-2].dom-x_y", "kn\xc3\xb6t2.dom-x_y", "knot2.dom-x_y"},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		check_has(cases[i].list, cases[i].has, true);
		check_has(cases[i].list, cases[i].lacks, false);
		check_has(cases[i].list, "", false);
	}
}
END_TEST

START_TEST(malformed_lists_are_refused)
{
	static const char *const cases[][2] = {
		{"", "'' contains an empty name"},
		{",", "',' contains an empty name"},
		{"a,,b", "'a,,b' contains an empty name"},
		{"a,", "'a,' contains an empty name"},
		{",a", "',a' contains an empty name"},
		{"a b", "'a b' contains a space or a control character"},
		{"a, b", "'a, b' contains a space or a control character"},
		{"a\tb", "'a?b' contains a space or a control character"},
		{"a\x7f", "'a?' contains a space or a control character"},
		{"n[1-3", "'[1-3' has no closing bracket"},
		{"n[", "'[' has no closing bracket"},
		{"n[1,", "'[1,' has no closing bracket"},
		{"n1]", "'n1]' has a closing bracket without an opening one"},
		{"a,n[1]]", "'n[1]]' has a closing bracket without an opening one"},
		{"n[]", "'' is not a range: two numbers of at most 18 digits, such as 1-16"},
		{"n[1,]", "'' is not a range: two numbers of at most 18 digits, such as 1-16"},
		{"n[-3]", "'-3' is not a range: two numbers of at most 18 digits, such as 1-16"},
		{"n[3-]", "'3-' is not a range: two numbers of at most 18 digits, such as 1-16"},
		{"n[1-2-3]",
		 "'1-2-3' is not a range: two numbers of at most 18 digits, such as 1-16"},
		{"n[1 -2]",
		 "'1 -2' is not a range: two numbers of at most 18 digits, such as 1-16"},
		{"n[a]", "'a' is not a range: two numbers of at most 18 digits, such as 1-16"},
		{"n[[1]]", "'[1' is not a range: two numbers of at most 18 digits, such as 1-16"},
		{"n[1234567890123456789]", "'1234567890123456789' is not a range: two numbers of "
					   "at most 18 digits, such as 1-16"},
		{"n[1,5-3]", "the range '5-3' is descending"},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		char why[WHY] = "";

		ck_assert_msg(!zero_hostlist_check(cases[i][0], why, sizeof why), "'%s'",
			      cases[i][0]);
		ck_assert_str_eq(why, cases[i][1]);
		zero_hostlist_has(cases[i][0], "n1");
	}
}
END_TEST

/* Backtracking over thirty brackets would exceed the time limit of the test. */
START_TEST(many_brackets_take_linear_time)
{
	char list[4096] = "", host[256] = "";

	for (int i = 0; i < 120; i++) {
		strcat(list, "[1-99999,1-99999]");
		strcat(host, "11");
	}
	check_has(list, host, true);
	strcat(host, "x");
	check_has(list, host, false);
	memset(host, '1', 255);
	host[255] = '\0';
	check_has(list, host, true);
}
END_TEST

START_TEST(names_that_are_too_long)
{
	char host[257] = "";

	memset(host, 'a', 255);
	check_has(host, host, true);
	host[255] = 'a';
	check_has(host, host, false);
}
END_TEST

static char hosts[HOSTS][64];
static size_t host_count;

struct numbers {
	unsigned low, high;
	int width;
};

/* Appends each number of the ranges to each of the hosts, of which the last number varies first. */
static void add_numbers(size_t first, const struct numbers *of, size_t ranges)
{
	size_t before = host_count;

	for (size_t h = first; h < before; h++) {
		for (size_t r = 0; r < ranges; r++) {
			for (unsigned number = of[r].low; number <= of[r].high; number++)
				sprintf(hosts[host_count++], "%s%0*u", hosts[h], of[r].width,
					number);
		}
	}
	/* the shorter ones are only prefixes */
	memmove(hosts[first], hosts[before], (host_count - before) * sizeof hosts[0]);
	host_count -= before - first;
}

/* Appends one random name to the list, and the hosts that it stands for to the hosts. */
static void add_name(uint64_t *state, char *list)
{
	size_t first = host_count;
	size_t parts = next_random(state) % 4 + 1;

	hosts[host_count++][0] = '\0';
	for (size_t p = 0; p < parts; p++) {
		size_t ranges = next_random(state) % 2 + 1;
		struct numbers of[2];

		if (next_random(state) % 2) {
			static const char *const plain[] = {"a", "1", "0", "b-"};
			const char *text = plain[next_random(state) % 4];

			strcat(list, text);
			for (size_t h = first; h < host_count; h++)
				strcat(hosts[h], text);
			continue;
		}
		strcat(list, "[");
		for (size_t r = 0; r < ranges; r++) {
			unsigned low = (unsigned)(next_random(state) % 13);
			unsigned high = low + (unsigned)(next_random(state) % 3);
			int width = (int)(next_random(state) % 3 + 1);
			char text[64];

			width = snprintf(text, sizeof text, "%0*u", width, low);
			sprintf(list + strlen(list), "%s%s", r ? "," : "", text);
			if (high > low)
				sprintf(list + strlen(list), "-%u", high);
			of[r] = (struct numbers){low, high, width};
		}
		strcat(list, "]");
		add_numbers(first, of, ranges);
	}
}

static bool expanded_has(const char *host)
{
	for (size_t i = 0; i < host_count; i++) {
		if (strcmp(hosts[i], host) == 0)
			return true;
	}
	return false;
}

START_TEST(random_lists_match_their_expansion)
{
	uint64_t state = seed_of_test();

	for (int round = 0; round < 400; round++) {
		size_t names = next_random(&state) % 2 + 1;
		char list[512] = "", host[64];

		host_count = 0;
		for (size_t i = 0; i < names; i++) {
			if (i)
				strcat(list, ",");
			add_name(&state, list);
		}
		for (size_t i = 0; i < host_count; i += 1 + host_count / 100) {
			size_t at = next_random(&state) % strlen(hosts[i]);

			check_has(list, hosts[i], true);
			/* similar names: a byte changed, removed or doubled */
			strcpy(host, hosts[i]);
			host[at] = "01a29-b"[next_random(&state) % 7];
			check_has(list, host, expanded_has(host));
			strcpy(host, hosts[i]);
			memmove(host + at, host + at + 1, strlen(host + at));
			check_has(list, host, expanded_has(host));
			strcpy(host, hosts[i]);
			memmove(host + at + 1, hosts[i] + at, strlen(hosts[i] + at) + 1);
			check_has(list, host, expanded_has(host));
		}
	}
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("hostlist");

	tcase_add_test(tests, names_and_ranges);
	tcase_add_test(tests, malformed_lists_are_refused);
	tcase_add_test(tests, many_brackets_take_linear_time);
	tcase_add_test(tests, names_that_are_too_long);
	tcase_add_test(tests, random_lists_match_their_expansion);
	return run_cases(tests, NULL);
}
