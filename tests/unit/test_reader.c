/* SPDX-License-Identifier: Apache-2.0 */
#include "configs.h"

START_TEST(the_form_of_the_file)
{
	static const struct refusal refusals[] = {
		{"", ":1:1: the file is empty: it must contain version: 1"},
		{"# only this\n\n", ":1:1: the file is empty: it must contain version: 1"},
		{"---\n", ":1:1: the key version is missing: add version: 1"},
		{"enabled: on\n", ":1:1: the key version is missing: add version: 1"},
		{"version: 2\n", ":1:10: version '2' is not supported: only 1 is"},
		{"version: 1.0\n", ":1:10: version '1.0' is not supported: only 1 is"},
		{"version: [1]\n", ":1:10: version must be a single value, not a list"},
		{"version:\n", ":1:9: version '' is not supported: only 1 is"},
		{"- version\n",
		 ":1:1: the file must be a map with lines such as 'key: value', not a list"},
		{"version\n", ":1:1: the file must be a map with lines such as 'key: value', not a "
			      "single value"},
		{"version: 1\nenabled: yes\n",
		 ":2:10: enabled: 'yes' is not one of off, opt-in, on"},
		{"version: 1\nenabled: {}\n", ":2:10: enabled must be a single value, not a map"},
		{"version: 1\nversion: 1\n", ":2:1: 'version' appears twice: line 1 has it too"},
		{"version: 1\ndefualts: {}\n",
		 ":2:1: there is no key 'defualts' here: did you mean defaults?"},
		{"version: 1\n? [a]\n: b\n", ":2:3: a key must be a single value, not a list"},
		{"version: 1\nx: 1\n",
		 ":2:1: there is no key 'x' here: the keys are version, enabled, telemetry, "
		 "defaults, limits, locked, env, gpus, partitions, accounts, qos, nodes"},
		{"version: 1\nstage: 3\n", ":2:1: stage belongs under defaults"},
		{"version: 1\n<<: {}\n",
		 ":2:1: there is no key '<<' here: the keys are version, enabled, telemetry, "
		 "defaults, limits, locked, env, gpus, partitions, accounts, qos, nodes"},
		{"version: 1\n---\nversion: 1\n",
		 ":2:1: a second document starts here: only one is allowed"},
		{"version: 1\n...\n---\nversion: 1\n",
		 ":3:1: a second document starts here: only one is allowed"},
	};

	check_refusals(refusals, COUNT_OF(refusals));
	zero_config_free(site_of("%YAML 1.1\n--- # first\nversion: '1'\n...\n"));
	zero_config_free(site_of("{\"version\": \"1\", enabled: off}"));
	zero_config_free(site_of("version: 1\r\nenabled: on\r\n"));
	zero_config_free(site_of("\xef\xbb\xbfversion: 1\n"));
}
END_TEST

/* For messages of libyaml, which differ between releases. */
static void refused_at(const char *text, size_t length, const char *place)
{
	char why[WHY] = "";

	write_bytes(site_path, text, length);
	ck_assert_msg(!zero_config_read(site_path, ZERO_CONFIG_SITE, why, sizeof why), "%s", text);
	ck_assert_msg(strncmp(why + strlen(site_path), place, strlen(place)) == 0, "%s\ngives %s",
		      text, why);
	ck_assert_uint_gt(strlen(why), strlen(site_path) + strlen(place) + 8);
}

START_TEST(what_the_parser_refuses)
{
	static const struct refusal at[] = {
		{"version: 1\n\tenabled: on\n", ":2:1: "},
		{"version: 1\nversion\n", ":3:1: "},
		{"version: 1\n...\nversion: 1\n", ":3:1: "},
		{"version: 1\ndefaults: {stage: 3\n", ":3:1: "},
		{"version: 1\nenabled: 'on\n", ":3:1: "},
		{"version: 1\nenabled: \"\\q\"\n", ":2:11: "},
		{"version: 1\nenabled: \xc3\xa4\xe4\n", ":2:11: this is not valid UTF-8 text: "},
		{"version: 1\n# \xff\n", ":2:3: this is not valid UTF-8 text: "},
		{"version: 1\n# \xed\xa0\x80\n", ":2:3: this is not valid UTF-8 text: "},
		{"version: 1\nenabled: \x1b[2J\n", ":2:10: this is not valid UTF-8 text: "},
	};
	static const char nul[] = "version: 1\nenabled: o\0n\n";
	static const char utf16[] = "\xff\xfev\0e\0r\0";

	for (size_t i = 0; i < COUNT_OF(at); i++)
		refused_at(at[i].text, strlen(at[i].text), at[i].why);
	refused_at(nul, sizeof nul - 1, ":2:11: this is not valid UTF-8 text: ");
	refused_at(utf16, sizeof utf16 - 1, ":1:1: this is not valid UTF-8 text: ");
}
END_TEST

START_TEST(anchors_aliases_and_tags_are_refused)
{
	static const struct refusal refusals[] = {
		{"version: 1\ndefaults: &a {stage: 3}\n", ":2:11: the anchor 'a' is not allowed"},
		{"version: 1\ndefaults: {stage: &a 3}\n", ":2:19: the anchor 'a' is not allowed"},
		{"version: 1\nlocked: &b [stage]\n", ":2:9: the anchor 'b' is not allowed"},
		{"version: 1\n&k enabled: on\n", ":2:1: the anchor 'k' is not allowed"},
		{"version: 1\ndefaults: *a\n",
		 ":2:11: the alias 'a' is not allowed: write out its value"},
		{"!x\nversion: 1\n", ":1:1: the tag '!x' is not allowed"},
		{"version: !!int 1\n", ":1:10: the tag 'tag:yaml.org,2002:int' is not allowed"},
		{"version: ! 1\n", ":1:10: the tag '!' is not allowed"},
		{"version: 1\nlocked: !!seq [stage]\n",
		 ":2:9: the tag 'tag:yaml.org,2002:seq' is not allowed"},
		/* control characters from escape sequences are not printed */
		{"version: 1\n\"\\e[2J\\x9b\": on\n",
		 ":2:1: there is no key '?[2J?' here: the keys are version, enabled, telemetry, "
		 "defaults, limits, locked, env, gpus, partitions, accounts, qos, nodes"},
		{"version: 1\nenabled: \"on\\0\"\n", ":2:10: enabled contains a NUL byte"},
		{"version: 1\n\"enabled\\0\": on\n", ":2:1: a key contains a NUL byte"},
	};

	check_refusals(refusals, COUNT_OF(refusals));
}
END_TEST

START_TEST(deep_and_exponential_files_are_refused)
{
	size_t length = 1 << 20;
	char *text = malloc(length + 1);

	refused("version: 1\nenv: &a {x: &b [1, 1], y: *b}\n",
		":2:6: the anchor 'a' is not allowed");
	ck_assert_ptr_nonnull(text);
	memset(text, '[', length);
	text[length] = '\0';
	refused_bytes(ZERO_CONFIG_SITE, text, length,
		      ":1:1: the file must be a map with lines such as 'key: value', not a list");
	memcpy(text, "defaults: ", 10);
	refused_bytes(ZERO_CONFIG_SITE, text, length,
		      ":1:11: defaults must be a map with lines such as 'key: value', not a list");
	memset(text, '{', length);
	refused_bytes(ZERO_CONFIG_SITE, text, length,
		      ":1:2: a key must be a single value, not a map");
	for (size_t i = 0; i + 2 <= length; i += 2)
		memcpy(text + i, "- ", 2);
	refused_bytes(ZERO_CONFIG_SITE, text, length,
		      ":1:1: the file must be a map with lines such as 'key: value', not a list");
	free(text);
}
END_TEST

START_TEST(too_many_entries_are_refused)
{
	static const struct {
		const char *begin, *line;
		int lines;
		const char *why;
	} files[] = {
		{"nodes:\n", " n%d:\n", 1025,
		 ":1027:2: there are too many entries: at most 1024 are allowed"},
		{"env:\n", " n%d:\n", 1025,
		 ":1027:2: there are too many entries: at most 1024 are allowed"},
		{"env: {A: x}\nnodes:\n n1:\n  env:\n", "   V%d:\n", 1024,
		 ":1029:4: there are too many variables: at most 1024 are allowed"},
	};

	for (size_t i = 0; i < COUNT_OF(files); i++) {
		char *text = NULL;
		size_t length;
		FILE *out = open_memstream(&text, &length);

		fprintf(out, "version: 1\n%s", files[i].begin);
		for (int line = 1; line <= files[i].lines; line++)
			fprintf(out, files[i].line, line);
		fclose(out);
		refused(text, files[i].why);
		/* one less is accepted */
		text[length - 1] = '\0';
		*strrchr(text, '\n') = '\0';
		zero_config_free(site_of(text));
		free(text);
	}
}
END_TEST

/* Writes a file with a key of so many characters, quotes included, in place of its '@'. */
static char *with_key(const char *form, size_t characters)
{
	const char *at = strchr(form, '@');
	char *text = NULL;
	size_t length;
	FILE *out = open_memstream(&text, &length);

	ck_assert_ptr_nonnull(out);
	fprintf(out, "%.*s\"n", (int)(at - form), form);
	for (size_t i = 3; i < characters; i++)
		fputc(i == characters - 1 ? '2' : "n1,"[i % 3], out);
	fprintf(out, "\"%s", at + 1);
	ck_assert_int_eq(fclose(out), 0);
	return text;
}

START_TEST(long_keys_get_a_hint)
{
	static const char hint[] =
		"; a key of more than 1024 characters must be written as '? KEY', and its value as "
		"': VALUE' on the next line";
	static const char *const forms[] = {
		"version: 1\nnodes:\n  @: {locked: [stage]}\n",
		"version: 1\nnodes:\n  m: {}\n  @: {locked: [stage]}\n",
		"version: 1\nnodes: {\n  @: {locked: [stage]}}\n",
		"version: 1\nnodes: {\n  m: {}, @: {locked: [stage]}}\n",
		"@: 1\n",
		"version: 1\nnodes:\n  m:\n    @: {}\n",
	};

	for (size_t turn = 0; turn < 2 * COUNT_OF(forms); turn++) {
		const bool too_long = turn % 2;
		char *text = with_key(forms[turn / 2], too_long ? 1025 : 1024), why[WHY] = "";
		struct zero_config *config;
		const char *found;

		write_bytes(site_path, text, strlen(text));
		config = zero_config_read(site_path, ZERO_CONFIG_SITE, why, sizeof why);
		found = strstr(why, hint);
		ck_assert_msg(too_long ? found && found > why && !strcmp(found, hint) : !found,
			      "%s gives %s", forms[turn / 2], why);
		/* what is read as a key is refused unless hosts are allowed */
		ck_assert((config != NULL) == (!too_long && turn / 2 < 4));
		zero_config_free(config);
		free(text);
	}
	{
		char *text = with_key("version: 1\nnodes:\n  ? @\n  : locked: [stage]\n", 60000);

		zero_config_free(site_of(text));
		free(text);
	}
	/* a long value is not a key, and an error below it gets no hint about keys */
	{
		char *text = with_key("version: 1\nenv:\n  A: @\nnodes: 3\n", 2000);

		refused(text, ":4:8: nodes must be a map with lines such as 'key: value', not a "
			      "single value");
		free(text);
	}
}
END_TEST

static void refused_file(const char *path, enum zero_config_kind kind, const char *expected)
{
	char why[WHY] = "", whole[WHY];

	ck_assert_ptr_null(zero_config_read(path, kind, why, sizeof why));
	snprintf(whole, sizeof whole, "%s: %s", path, expected);
	ck_assert_str_eq(why, whole);
}

START_TEST(other_files_are_refused)
{
	char *text = malloc((1 << 20) + 1), why[WHY];
	struct zero_config *config;

	unlink(site_path);
	unlink(user_path);
	refused_file(site_path, ZERO_CONFIG_SITE, "cannot be opened: No such file or directory");
	refused_file(folder, ZERO_CONFIG_SITE, "is not a regular file");
	refused_file("/dev/null", ZERO_CONFIG_USER, "is not a regular file");
	ck_assert_int_eq(mkfifo(user_path, 0644), 0);
	refused_file(user_path, ZERO_CONFIG_USER, "is not a regular file");
	unlink(user_path);
	/* the umask must not change the modes */
	ck_assert(!zero_config_read("/no\nsuch\x1b", ZERO_CONFIG_USER, why, sizeof why));
	ck_assert_str_eq(why, "/no?such?: cannot be opened: No such file or directory");

	write_bytes(site_path, "version: 1\n", 11);
	ck_assert_int_eq(chmod(site_path, 0664), 0);
	refused_file(site_path, ZERO_CONFIG_SITE,
		     "is writable by others than its owner (mode 0664): run chmod go-w");
	config = zero_config_read(site_path, ZERO_CONFIG_USER, why, sizeof why);
	ck_assert_ptr_nonnull(config);
	zero_config_free(config);
	ck_assert_int_eq(chmod(site_path, 0602), 0);
	refused_file(site_path, ZERO_CONFIG_SITE,
		     "is writable by others than its owner (mode 0602): run chmod go-w");
	ck_assert_int_eq(chmod(site_path, 0640), 0);
	refused_file(site_path, ZERO_CONFIG_SITE,
		     "is not readable by all users (mode 0640): run chmod a+r");
	if (geteuid() != 0) {
		ck_assert_int_eq(chmod(site_path, 0200), 0);
		refused_file(site_path, ZERO_CONFIG_SITE, "cannot be opened: Permission denied");
	} else {
		ck_assert_int_eq(chmod(site_path, 0644), 0);
		ck_assert_int_eq(chown(site_path, 12345, (gid_t)-1), 0);
		refused_file(site_path, ZERO_CONFIG_SITE, "is owned by user 12345: run chown root");
		ck_assert_int_eq(chown(site_path, 0, (gid_t)-1), 0);
	}
	ck_assert_ptr_nonnull(text);
	memset(text, '#', (1 << 20) + 1);
	memcpy(text, "version: 1\n", 11);
	write_bytes(site_path, text, (1 << 20) + 1);
	refused_file(site_path, ZERO_CONFIG_SITE, "is too large: at most 1M is allowed");
	write_bytes(site_path, text, 1 << 20);
	config = zero_config_read(site_path, ZERO_CONFIG_SITE, why, sizeof why);
	ck_assert_ptr_nonnull(config);
	zero_config_free(config);
	free(text);
}
END_TEST

START_TEST(a_short_buffer_is_not_overrun)
{
	static const char text[] = "version: 1\ndefaults: {stge: 3}\n";

	write_bytes(site_path, text, sizeof text - 1);
	for (size_t size = 0; size < 160; size++) {
		char why[200];

		memset(why, '#', sizeof why);
		ck_assert_ptr_null(zero_config_read(site_path, ZERO_CONFIG_SITE, why, size));
		ck_assert_int_eq(why[size], '#');
		ck_assert(!size || memchr(why, '\0', size));
	}
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("reader");

	tcase_add_unchecked_fixture(tests, make_folder, remove_folder);
	tcase_add_test(tests, the_form_of_the_file);
	tcase_add_test(tests, what_the_parser_refuses);
	tcase_add_test(tests, anchors_aliases_and_tags_are_refused);
	tcase_add_test(tests, deep_and_exponential_files_are_refused);
	tcase_add_test(tests, too_many_entries_are_refused);
	tcase_add_test(tests, long_keys_get_a_hint);
	tcase_add_test(tests, other_files_are_refused);
	tcase_add_test(tests, a_short_buffer_is_not_overrun);
	return run_cases(tests, NULL);
}
