/* SPDX-License-Identifier: Apache-2.0 */
/* Writes files of options for tests, and reads the installed one. */
#ifndef TEST_CONFIGS_H
#define TEST_CONFIGS_H

#include <string.h>
#include <sys/stat.h>

#include "spank/yaml/site_config.h"
#include "unit.h"

enum { WHY = 1024 };

static char folder[64], site_path[80], user_path[80];

static inline void make_folder(void)
{
	strcpy(folder, "/tmp/test_config.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(site_path, sizeof site_path, "%s/site", folder);
	snprintf(user_path, sizeof user_path, "%s/user", folder);
}

static inline void remove_folder(void)
{
	unlink(site_path);
	unlink(user_path);
	rmdir(folder);
}

static inline void write_bytes(const char *path, const char *text, size_t length)
{
	FILE *out = fopen(path, "w");

	ck_assert_ptr_nonnull(out);
	ck_assert_uint_eq(fwrite(text, 1, length, out), length);
	ck_assert_int_eq(fclose(out), 0);
	ck_assert_int_eq(chmod(path, 0644), 0);
}

/* `expected` is the message without the path. */
static inline void refused_bytes(enum zero_config_kind kind, const char *text, size_t length,
				 const char *expected)
{
	struct zero_config *config;
	char why[WHY] = "";

	write_bytes(site_path, text, length);
	config = zero_config_read(site_path, kind, why, sizeof why);
	ck_assert_msg(config == NULL, "accepted:\n%s", text);
	ck_assert_mem_eq(why, site_path, strlen(site_path));
	ck_assert_msg(strcmp(why + strlen(site_path), expected) == 0, "%s\ngives %s\nnot   %s",
		      text, why + strlen(site_path), expected);
}

static inline void refused(const char *text, const char *expected)
{
	refused_bytes(ZERO_CONFIG_SITE, text, strlen(text), expected);
}

struct refusal {
	const char *text, *why;
};

static inline void check_refusals(const struct refusal *refusals, size_t count)
{
	for (size_t i = 0; i < count; i++)
		refused(refusals[i].text, refusals[i].why);
}

static inline struct zero_config *accepted(enum zero_config_kind kind, const char *text)
{
	const char *path = kind == ZERO_CONFIG_SITE ? site_path : user_path;
	struct zero_config *config;
	char why[WHY] = "";

	write_bytes(path, text, strlen(text));
	config = zero_config_read(path, kind, why, sizeof why);
	ck_assert_msg(config != NULL, "%s\n%s", why, text);
	return config;
}

static inline struct zero_config *site_of(const char *text)
{
	return accepted(ZERO_CONFIG_SITE, text);
}

static inline char *installed(size_t *length)
{
	const char *top = getenv("top_srcdir");
	char path[4096], *text = calloc(1, 1 << 16);
	FILE *in;

	snprintf(path, sizeof path, "%s/etc/zero.yaml", top ? top : ".");
	in = fopen(path, "r");
	ck_assert_msg(in != NULL, "%s", path);
	ck_assert_ptr_nonnull(text);
	*length = fread(text, 1, (1 << 16) - 1, in);
	fclose(in);
	return text;
}

/* Removes the "#" of examples: in the first column, before an even number of spaces. */
static inline char *uncommented(const char *text)
{
	char *all = calloc(1, strlen(text) + 1), *to = all;

	ck_assert_ptr_nonnull(all);
	while (*text) {
		size_t length = strcspn(text, "\n") + 1;
		size_t blanks = text[0] == '#' ? strspn(text + 1, " ") : 1;

		if (blanks % 2 == 0 && length > 2) {
			text++;
			length--;
		}
		memcpy(to, text, length);
		to += length;
		text += length;
	}
	return all;
}

#endif
