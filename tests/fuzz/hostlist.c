/* SPDX-License-Identifier: Apache-2.0 */
/* Hostlists, compared with a simple expansion. The input is a list, a line "@@" and a host. */
#include "fuzz.h"
#include "spank/yaml/hostlist.h"

enum { MOST = 500, HOST = 256, LIST = 512 };

static char hosts[MOST][HOST];
static size_t count;

static bool expand(const char *at, char *name, size_t length);

/* Expands the rest with each number of the bracket that starts at `at`. */
static bool expand_bracket(const char *at, char *name, size_t length)
{
	const char *rest = strchr(at, ']') + 1;

	while (*at != ']') {
		char *end;
		int width = (int)strspn(++at, "0123456789");
		unsigned long long low = strtoull(at, &end, 10), high = low;

		if (*end == '-')
			high = strtoull(end + 1, &end, 10);
		if (high - low >= MOST)
			return false;
		for (; low <= high; low++) {
			int more = snprintf(name + length, HOST - length, "%0*llu", width, low);

			if ((size_t)more >= HOST - length ||
			    !expand(rest, name, length + (size_t)more))
				return false;
		}
		at = end;
	}
	return true;
}

/* Expands a name of a valid list. Returns false if there are too many names, or too long ones. */
static bool expand(const char *at, char *name, size_t length)
{
	while (*at && *at != ',') {
		if (*at == '[')
			return expand_bracket(at, name, length);
		if (length == HOST - 1)
			return false;
		name[length++] = *at++;
	}
	if (count == MOST)
		return false;
	memcpy(hosts[count], name, length);
	hosts[count++][length] = '\0';
	return true;
}

/* Expands each name of the list, in Slurm's order. */
static bool expand_all(const char *list)
{
	char name[HOST];
	int depth = 0;

	count = 0;
	if (strlen(list) > LIST || !expand(list, name, 0))
		return false;
	for (; *list; list++) {
		depth += *list == '[' ? 1 : *list == ']' ? -1 : 0;
		if (*list == ',' && !depth && !expand(list + 1, name, 0))
			return false;
	}
	return true;
}

static bool is_among(const char *host)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(hosts[i], host) == 0)
			return true;
	return false;
}

static void check_good(const char *list, const char *host)
{
	bool found = zero_hostlist_has(list, host);

	if (!expand_all(list))
		return;
	must(count, "%s is no host", list);
	must(found == is_among(host), "%s %s %s", list, found ? "has" : "lacks", host);
	for (size_t i = 0; i < count; i++)
		must(zero_hostlist_has(list, hosts[i]), "%s lacks %s", list, hosts[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz fuzz = {data, size};
	char *list = fuzz_text(&fuzz), *host = fuzz_text(&fuzz), *why = fuzz_why(256);

	if (list && zero_hostlist_check(list, why, 256)) {
		check_good(list, host ? host : "n1");
	} else if (list) {
		fuzz_sentence(why, 256);
		zero_hostlist_has(list, host ? host : "n1"); /* undefined, but must return */
	}
	free(list);
	free(host);
	free(why);
	return 0;
}
