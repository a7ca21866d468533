/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/options.h"
#include "unit.h"

enum { WHY = 512 };

static const struct zero_option *row(enum zero_option_id id)
{
	return &zero_option_table[id];
}

static uint64_t number_of(enum zero_option_id id, const char *text)
{
	struct zero_value value;
	char why[WHY] = "";

	ck_assert_msg(zero_option_parse(row(id), text, &value, why, sizeof why), "%s: %s", text,
		      why);
	ck_assert_int_eq(value.kind, ZERO_VALUE_NUMBER);
	return value.number;
}

static void refused(enum zero_option_id id, const char *text, const char *expected)
{
	struct zero_value value = {.kind = ZERO_VALUE_PERCENT, .number = 77};
	char why[WHY] = "";

	ck_assert_msg(!zero_option_parse(row(id), text, &value, why, sizeof why),
		      "%s accepted '%s'", row(id)->name, text);
	ck_assert_str_eq(why, expected);
	ck_assert(value.kind == ZERO_VALUE_PERCENT && value.number == 77 && !value.text);
}

START_TEST(sizes_are_whole_numbers_with_a_unit)
{
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "1"), 1);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "0040"), 40);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "40M"), UINT64_C(40) << 20);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "40m"), UINT64_C(40) << 20);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "3k"), 3072);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "2g"), UINT64_C(2) << 30);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "1T"), UINT64_C(1) << 40);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "1t"), UINT64_C(1) << 40);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_CHUNK, "1099511627776"), UINT64_C(1) << 40);
	ck_assert_uint_eq(number_of(ZERO_OPT_BUDGET, "18446744073709551615"), UINT64_MAX);
	ck_assert_uint_eq(number_of(ZERO_OPT_BUDGET, "16777215T"), UINT64_C(16777215) << 40);
}
END_TEST

START_TEST(what_is_no_size_is_refused)
{
	static const char *const texts[] = {
		"",      " ",    "M",     "+1",    "-1",       " 1",  "1 ",   "1 M",
		"40MB",  "40MM", "40B",   "0x10",  "1e3",      "4_0", "4,0",  "40M\n",
		"\t40M", "1.5",  "1.5GB", ".5G",   "1.",       "1.G", "1.3G", "40KiB",
		"auto",  "5%",   "40P",   "1..5G", "\xd9\xa3",
	};

	for (size_t i = 0; i < COUNT_OF(texts); i++) {
		struct zero_value value;
		char why[WHY];

		ck_assert_msg(!zero_option_parse(row(ZERO_OPT_STREAM_CHUNK), texts[i], &value, why,
						 sizeof why),
			      "'%s'", texts[i]);
		ck_assert_ptr_nonnull(
			strstr(why, "is not a size: a whole number with K, M, G or T"));
	}
	refused(ZERO_OPT_STREAM_CHUNK, "40MB",
		"'40MB' is not a size: a whole number with K, M, G or T, such as 40M");
	refused(ZERO_OPT_STREAM_CHUNK, "1.5G", "'1.5G' is not a whole number: write 1536M");
	refused(ZERO_OPT_STREAM_CHUNK, "0.5T", "'0.5T' is not a whole number: write 512G");
	refused(ZERO_OPT_STREAM_CHUNK, "2.25k", "'2.25k' is not a whole number: write 2304");
	refused(ZERO_OPT_STREAM_THRESHOLD, "AUTO",
		"'AUTO' is not a size: a whole number with K, M, G or T, such as 40M, or auto");
	refused(ZERO_OPT_VRAM_RESERVE, "5 %",
		"'5 %' is not a size: a whole number with K, M, G or T, such as 40M, or a "
		"percentage, "
		"such as 5%");
}
END_TEST

START_TEST(ranges_are_kept_and_named)
{
	refused(ZERO_OPT_STREAM_CHUNK, "0", "'0' is out of range: 1 to 1T is allowed");
	refused(ZERO_OPT_STREAM_CHUNK, "1025G", "'1025G' is out of range: 1 to 1T is allowed");
	refused(ZERO_OPT_BUCKET, "63K", "'63K' is out of range: 64K to 1T is allowed");
	ck_assert_uint_eq(number_of(ZERO_OPT_BUCKET, "64K"), 65536);
	ck_assert_uint_eq(number_of(ZERO_OPT_STREAM_THRESHOLD, "0"), 0);
	ck_assert_uint_eq(number_of(ZERO_OPT_GATHER_LIMIT, "0"), 0);
	ck_assert_uint_eq(number_of(ZERO_OPT_SHARE, "2147483647"), INT32_MAX);
	refused(ZERO_OPT_SHARE, "2147483648",
		"'2147483648' is out of range: 0 to 2147483647 is allowed");
	refused(ZERO_OPT_SHARE, "-1", "'-1' is not a whole number from 0 to 2147483647");
	refused(ZERO_OPT_CHECK, "2", "'2' is out of range: 0 to 1 is allowed");
	refused(ZERO_OPT_CHECK, "yes", "'yes' is not a whole number from 0 to 1");
	refused(ZERO_OPT_STAGE, "4", "'4' is out of range: 0 to 3 is allowed");
	refused(ZERO_OPT_STAGE, "-1", "'-1' is not a whole number from 0 to 3");
	refused(ZERO_OPT_STAGE, "3 ", "'3 ' is not a whole number from 0 to 3");
	refused(ZERO_OPT_STAGE, "1K", "'1K' is not a whole number from 0 to 3");
	refused(ZERO_OPT_STAGE, "", "'' is not a whole number from 0 to 3");
	refused(ZERO_OPT_VRAM_RESERVE, "101%", "'101%' is out of range: 0% to 100% is allowed");
	refused(ZERO_OPT_VRAM_RESERVE, "18446744073709551621%",
		"'18446744073709551621%' is out of range: 0% to 100% is allowed");
	refused(ZERO_OPT_BUDGET, "18446744073709551616",
		"'18446744073709551616' is out of range: 0 to 18446744073709551615 is allowed");
	refused(ZERO_OPT_BUDGET, "99999999999999999999999999999999999999",
		"'99999999999999999999999999999999999999' is out of range: 0 to "
		"18446744073709551615 is allowed");
	refused(ZERO_OPT_BUDGET, "16777216T",
		"'16777216T' is out of range: 0 to 18446744073709551615 is allowed");
	refused(ZERO_OPT_BUDGET, "18446744073709551615K",
		"'18446744073709551615K' is out of range: 0 to 18446744073709551615 is allowed");
}
END_TEST

START_TEST(words_choices_and_paths)
{
	struct zero_value value;
	char why[WHY], long_path[5000];

	ck_assert(
		zero_option_parse(row(ZERO_OPT_STREAM_THRESHOLD), "auto", &value, why, sizeof why));
	ck_assert_int_eq(value.kind, ZERO_VALUE_AUTO);
	ck_assert(zero_option_parse(row(ZERO_OPT_VRAM_RESERVE), "100%", &value, why, sizeof why));
	ck_assert(value.kind == ZERO_VALUE_PERCENT && value.number == 100);
	ck_assert_uint_eq(number_of(ZERO_OPT_FLATTEN, "distributed"), ZERO_FLATTEN_DISTRIBUTED);
	ck_assert_uint_eq(number_of(ZERO_OPT_ALLGATHER, "grouped"), ZERO_ALLGATHER_GROUPED);
	ck_assert_uint_eq(number_of(ZERO_OPT_GATHER_DTYPE, "bf16"), ZERO_GATHER_BF16);
	ck_assert_uint_eq(number_of(ZERO_OPT_GATHER_DTYPE, "f32"), ZERO_GATHER_F32);
	ck_assert_uint_eq(number_of(ZERO_OPT_OFFLOAD, "optimizer"), ZERO_OFFLOAD_OPTIMIZER);
	ck_assert_uint_eq(number_of(ZERO_OPT_BACKEND, "cuda"), ZERO_BACKEND_CUDA);
	ck_assert_uint_eq(number_of(ZERO_OPT_PRELOAD, "yes"), ZERO_PRELOAD_YES);
	ck_assert_uint_eq(number_of(ZERO_OPT_PRELOAD, "no"), ZERO_PRELOAD_NO);
	ck_assert_uint_eq(number_of(ZERO_OPT_ISA, "scalar"), ZERO_ISA_SCALAR);
	refused(ZERO_OPT_PRELOAD_PATH, "lib/libzero.so",
		"'lib/libzero.so' is not an absolute path");
	refused(ZERO_OPT_VRAM_RESERVE, "5", "'5' has no unit: write 5% or 5M");
	refused(ZERO_OPT_FLATTEN, "gpu", "'gpu' is not one of auto, device, distributed, host");
	refused(ZERO_OPT_FLATTEN, "", "'' is not one of auto, device, distributed, host");
	refused(ZERO_OPT_PRELOAD, "Yes", "'Yes' is not one of yes, no");
	ck_assert(zero_option_parse(row(ZERO_OPT_REPORT), "/a b%\n", &value, why, sizeof why));
	ck_assert(value.kind == ZERO_VALUE_TEXT);
	ck_assert_str_eq(value.text, "/a b%\n");
	zero_value_clear(&value);
	zero_value_clear(&value);
	memset(long_path, 'a', sizeof long_path - 1);
	long_path[sizeof long_path - 1] = '\0';
	ck_assert(!zero_option_parse(row(ZERO_OPT_REPORT), long_path, &value, why, sizeof why));
	ck_assert_ptr_nonnull(strstr(why, "is 4999 bytes long: at most 4095 are allowed"));
	long_path[4095] = '\0';
	ck_assert(zero_option_parse(row(ZERO_OPT_REPORT), long_path, &value, why, sizeof why));
	zero_value_clear(&value);
}
END_TEST

START_TEST(messages_are_fit_for_a_terminal)
{
	static const char *const characters[] = {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
	char text[400], why[WHY], tiny[8];
	struct zero_value value;

	ck_assert(!zero_option_parse(row(ZERO_OPT_STAGE), "\x1b[31m\nx\x7f", &value, why,
				     sizeof why));
	ck_assert_str_eq(why, "'?[31m?x?' is not a whole number from 0 to 3");
	/* cut between two characters of UTF-8 */
	for (int c = 0; c < 12; c++) {
		const char *character = characters[c % 3], *end;

		snprintf(text, sizeof text, "%.*s", c / 3, "xxx");
		for (int i = 0; i < 90; i++)
			strcat(text, character);
		ck_assert(!zero_option_parse(row(ZERO_OPT_STAGE), text, &value, why, sizeof why));
		end = strstr(why, "...' is not");
		ck_assert_ptr_nonnull(end);
		ck_assert(!strncmp(end - strlen(character), character, strlen(character)));
	}
	ck_assert(!zero_option_parse(row(ZERO_OPT_STAGE), "x", &value, tiny, sizeof tiny));
	ck_assert_str_eq(tiny, "'x' is ");
	ck_assert(!zero_option_parse(row(ZERO_OPT_STAGE), "x", &value, NULL, 0));
}
END_TEST

START_TEST(the_table_is_regular)
{
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];
		char flag[64] = "--zero-", env[64] = "ZERO_";
		size_t at = 0;

		for (const char *c = option->name; *c; c++, at++) {
			flag[7 + at] = *c == '_' ? '-' : *c;
			env[5 + at] = *c == '_' ? '_' : (char)(*c - 'a' + 'A');
		}
		ck_assert_int_eq(option->flag != NULL, (option->where & ZERO_IN_FLAG) != 0);
		ck_assert_int_eq(option->env != NULL, (option->where & ZERO_IN_ENVIRONMENT) != 0);
		if (option->flag)
			ck_assert_str_eq(option->flag, flag);
		if (option->env)
			ck_assert_str_eq(option->env, env);
		/* a flag is handed down as its variable */
		ck_assert(!option->flag || option->env);
		ck_assert(option->where & ZERO_IN_RESOLVED);
		ck_assert(option->argument[0]);
		ck_assert(option->help[0] && strlen(option->help) <= (option->flag ? 60 : 72));
		ck_assert(option->help[strlen(option->help) - 1] != '.');
		ck_assert_int_eq(option->choices != NULL,
				 option->type == ZERO_TYPE_CHOICE ||
					 option->type == ZERO_TYPE_CHOICE_OR_INTEGER);
		ck_assert_uint_le(option->min, option->max);
		ck_assert_ptr_eq(zero_option_find(option->name, strlen(option->name)), option);
		ck_assert_ptr_ne(zero_option_find(option->name, strlen(option->name) - 1), option);
	}
	ck_assert_ptr_eq(zero_option_find("stage=3", 5), row(ZERO_OPT_STAGE));
	ck_assert_ptr_null(zero_option_find("", 0));
}
END_TEST

START_TEST(defaults)
{
	struct zero_settings settings;
	char *text;

	ck_assert(zero_settings_init(&settings));
	for (size_t i = 0; i < ZERO_OPTIONS; i++)
		ck_assert_str_eq(settings.origin[i], "default");
	text = zero_settings_format(&settings);
	ck_assert_str_eq(
		text,
		"stage=3 shard=all offload=none states=f32 config= report= protect=program slow=10 "
		"stream_chunk=41943040 stream_threshold=auto stream=no flatten=auto "
		"allgather=auto bucket=1073741824 gather_limit=auto gather_dtype=param "
		"vram_reserve=5%25 backend=auto preload=yes "
		"preload_path= python=yes fsdp=auto deepspeed=auto protect_dir=/dev/shm "
		"protect_max=auto isa=auto share=0 threads=0 reduce=nccl nccl= "
		"nccl_cta=auto open_seconds=120 "
		"watch_seconds=5 stall_seconds=1800 end_seconds=60 on_fault=abort "
		"check=0 tasks=0 budget=0 "
		"vram_free=0 vram_total=0 vram_source=unknown gpus=0 gpu= master= python_path= "
		"origins=");
	free(text);
	zero_settings_clear(&settings);
	zero_settings_clear(&settings);
}
END_TEST

static void check_round_trip(const struct zero_option *option, const char *text)
{
	struct zero_value first, second;
	char why[WHY] = "", formatted[5000];
	int length;

	ck_assert_msg(zero_option_parse(option, text, &first, why, sizeof why), "%s", why);
	length = zero_value_format(option, &first, formatted, sizeof formatted);
	ck_assert_int_eq(length, (int)strlen(formatted));
	ck_assert_int_eq(zero_value_format(option, &first, NULL, 0), length);
	ck_assert_msg(zero_option_parse(option, formatted, &second, why, sizeof why), "%s", why);
	ck_assert_int_eq(first.kind, second.kind);
	ck_assert_uint_eq(first.number, second.number);
	ck_assert_int_eq(first.text != NULL, second.text != NULL);
	if (first.text)
		ck_assert_str_eq(first.text, second.text);
	zero_value_clear(&first);
	zero_value_clear(&second);
}

START_TEST(every_row_round_trips)
{
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];
		char bound[32];

		check_round_trip(option, option->default_text);
		if (option->type == ZERO_TYPE_PATH || option->type == ZERO_TYPE_TEXT) {
			check_round_trip(option, "/a b/%25=\n\x01\x7f\xff");
			continue;
		}
		for (size_t c = 0; option->choices && option->choices[c]; c++)
			check_round_trip(option, option->choices[c]);
		if (option->choices)
			continue;
		snprintf(bound, sizeof bound, "%llu", (unsigned long long)option->min);
		check_round_trip(option, bound);
		snprintf(bound, sizeof bound, "%llu", (unsigned long long)option->max);
		check_round_trip(option, bound);
	}
	check_round_trip(row(ZERO_OPT_VRAM_RESERVE), "0%");
	check_round_trip(row(ZERO_OPT_VRAM_RESERVE), "2G");
	check_round_trip(row(ZERO_OPT_STREAM_THRESHOLD), "7K");
}
END_TEST

START_TEST(settings_texts_round_trip_with_escapes)
{
	struct zero_settings settings, again;
	char why[WHY] = "", *text, *second;

	ck_assert(zero_settings_init(&settings) && zero_settings_init(&again));
	ck_assert(zero_settings_set(&settings, ZERO_OPT_REPORT, "/a b/%20=\n\t\x01\x7f\xc3\xa4",
				    "--zero-report", why, sizeof why));
	ck_assert(zero_settings_set(&settings, ZERO_OPT_VRAM_RESERVE, "7%", "ZERO_VRAM_RESERVE",
				    why, sizeof why));
	text = zero_settings_format(&settings);
	ck_assert_ptr_nonnull(strstr(text, " report=/a%20b/%2520=%0A%09%01%7F\xc3\xa4 "));
	ck_assert_ptr_nonnull(strstr(text, " vram_reserve=7%25 "));
	ck_assert_msg(zero_settings_parse(&again, text, "ZERO_RESOLVED", why, sizeof why), "%s",
		      why);
	ck_assert_str_eq(again.value[ZERO_OPT_REPORT].text, settings.value[ZERO_OPT_REPORT].text);
	ck_assert_str_eq(again.origin[ZERO_OPT_REPORT], "ZERO_RESOLVED");
	second = zero_settings_format(&again);
	ck_assert_str_eq(text, second);
	free(text);
	free(second);
	zero_settings_clear(&settings);
	zero_settings_clear(&again);
}
END_TEST

/* However often they are handed on. */
START_TEST(origins_are_handed_on)
{
	struct zero_settings settings;
	char why[WHY] = "", *text, *origin;

	ck_assert(zero_settings_init(&settings));
	ck_assert(zero_settings_set(&settings, ZERO_OPT_STAGE, "2",
				    "/etc/d/a;b:c.yaml:12, at 2 by /e/f.yaml:3", why, sizeof why));
	ck_assert(zero_settings_set(&settings, ZERO_OPT_BUCKET, "1M", "--zero-bucket", why,
				    sizeof why));
	ck_assert(
		zero_settings_set(&settings, ZERO_OPT_TASKS, "3", "the launcher", why, sizeof why));
	/* Its name begins with that of another option, which has no origin. */
	ck_assert(zero_settings_set(&settings, ZERO_OPT_PRELOAD_PATH, "/l", "f.yaml:4", why,
				    sizeof why));
	settings.ruled[ZERO_OPT_CHECK] = true;
	for (int round = 0; round < 3; round++) {
		text = zero_settings_format(&settings);
		ck_assert_ptr_nonnull(strstr(text, " origins=stage:a,b:c.yaml:12,%20at%202%20by%"
						   "20f.yaml:3;bucket:--zero-bucket"));
		ck_assert_ptr_nonnull(strstr(text, ";check:default"));
		zero_settings_clear(&settings);
		ck_assert(zero_settings_init(&settings));
		ck_assert(zero_settings_parse(&settings, text, "ZERO_RESOLVED", why, sizeof why));
		free(text);
	}
	/* What is said anew has an origin of its own. */
	ck_assert(zero_settings_set(&settings, ZERO_OPT_CHECK, "1", "ZERO_CHECK", why, sizeof why));
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		origin = zero_settings_origin(&settings, (enum zero_option_id)i);
		ck_assert_str_eq(origin, i == ZERO_OPT_STAGE    ? "a,b:c.yaml:12, at 2 by f.yaml:3"
					 : i == ZERO_OPT_BUCKET ? "--zero-bucket"
					 : i == ZERO_OPT_CHECK  ? "ZERO_CHECK"
					 : i == ZERO_OPT_PRELOAD_PATH ? "f.yaml:4"
					 : zero_option_table[i].where == ZERO_IN_RESOLVED
						 ? "ZERO_RESOLVED"
						 : "default");
		free(origin);
	}
	zero_settings_clear(&settings);
}
END_TEST

START_TEST(settings_texts_are_forgiving_about_blanks_only)
{
	struct zero_settings settings;
	char why[WHY] = "";

	ck_assert(zero_settings_init(&settings));
	ck_assert(zero_settings_parse(&settings, "", "zero_open", why, sizeof why));
	ck_assert(zero_settings_parse(&settings, " \t\n", "zero_open", why, sizeof why));
	ck_assert(zero_settings_parse(&settings, "  stage=1\n\tvram_reserve=9%  ", "zero_open", why,
				      sizeof why));
	ck_assert_uint_eq(settings.value[ZERO_OPT_STAGE].number, 1);
	ck_assert_uint_eq(settings.value[ZERO_OPT_VRAM_RESERVE].number, 9);
	ck_assert_str_eq(settings.origin[ZERO_OPT_STAGE], "zero_open");
	zero_settings_clear(&settings);
}
END_TEST

START_TEST(bad_settings_texts_change_nothing)
{
	static const char *const cases[][2] = {
		{"stage=1 stge=2", "x: there is no option 'stge': did you mean stage?"},
		{"stage=1 stream-chunk=2", "x: there is no option 'stream-chunk': did you mean "
					   "stream_chunk?"},
		{"stage=1 chunk=2",
		 "x: there is no option 'chunk': did you mean stream_chunk or check?"},
		{"stage=1 gather=2", "x: there is no option 'gather': did you mean allgather or "
				     "gather_limit or gather_dtype?"},
		{"stage=1 streams=2", "x: there is no option 'streams': did you mean stream?"},
		{"=2", "x: there is no option '': the options are stage, shard, "},
		{"stage=1 stage=2", "x: stage occurs twice"},
		{"stage=1 preload", "x: 'preload' is not of the form name=value"},
		{"stage = 1", "x: 'stage' is not of the form name=value"},
		{"stage=1 flatten=no",
		 "x: flatten: 'no' is not one of auto, device, distributed, host"},
		{"stage=1 report=%", NULL},
		{"stage=1 report=%2",
		 "x: report: '%2' is not allowed: write %25 for a percent sign, "
		 "%20 for a space"},
		{"stage=1 report=%zz/a", "x: report: '%zz' is not allowed: write %25 for a percent "
					 "sign, %20 for a space"},
		{"stage=1 report=%00", "x: report: '%00' is not allowed: write %25 for a percent "
				       "sign, %20 for a space"},
		{"stage=1 stream_chunk=1.5G",
		 "x: stream_chunk: '1.5G' is not a whole number: write "
		 "1536M"},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct zero_settings settings;
		char why[WHY] = "";
		bool ok;

		ck_assert(zero_settings_init(&settings));
		ok = zero_settings_parse(&settings, cases[i][0], "x", why, sizeof why);
		ck_assert_int_eq(ok, cases[i][1] == NULL);
		if (!ok) {
			ck_assert_msg(!strncmp(why, cases[i][1], strlen(cases[i][1])), "%s", why);
			ck_assert_uint_eq(settings.value[ZERO_OPT_STAGE].number, 3);
			ck_assert_str_eq(settings.origin[ZERO_OPT_STAGE], "default");
		}
		zero_settings_clear(&settings);
	}
}
END_TEST

START_TEST(near_names_are_flags_for_flags)
{
	char text[600], tiny[8];

	zero_option_near("stge", 4, ZERO_IN_FLAG, text, sizeof text);
	ck_assert_str_eq(text, "did you mean --zero-stage?");
	/* what only the environment knows is not offered as a flag */
	zero_option_near("isa", 3, ZERO_IN_FLAG, text, sizeof text);
	ck_assert_ptr_nonnull(strstr(text, "the options are --zero-stage, --zero-shard"));
	ck_assert_ptr_null(strstr(text, "isa"));
	zero_option_near("share", 5, ZERO_IN_FLAG | ZERO_IN_YAML, text, sizeof text);
	ck_assert_ptr_null(strstr(text, " share"));
	zero_option_near("x", 1, ZERO_IN_YAML, tiny, sizeof tiny);
	ck_assert_str_eq(tiny, "the opt");
}
END_TEST

START_TEST(a_message_begins_with_who_said_it)
{
	struct zero_settings settings;
	char why[WHY];

	ck_assert(zero_settings_init(&settings));
	ck_assert(!zero_settings_set(&settings, ZERO_OPT_STAGE, "9", "--zero-stage", why,
				     sizeof why));
	ck_assert_str_eq(why, "--zero-stage: '9' is out of range: 0 to 3 is allowed");
	ck_assert(!zero_settings_set(&settings, ZERO_OPT_STAGE, "9", "zero.yaml:12", why,
				     sizeof why));
	ck_assert_str_eq(why, "zero.yaml:12: stage: '9' is out of range: 0 to 3 is allowed");
	ck_assert_str_eq(settings.origin[ZERO_OPT_STAGE], "default");
	zero_settings_clear(&settings);
}
END_TEST

START_TEST(the_last_word_counts)
{
	static const char *const variables[][2] = {
		/* overridden: not even read */
		{"ZERO_STAGE", "zero2"},
		{"ZERO_BUCKET", "2M"},
		{"ZERO_OFFLOAD", "optimizer"},
		{"ZERO_ISA", "avx2"},
		{"ZERO_SHARE", "2"},
		{"ZERO_CHECK", "1"},
		/* not options: left alone */
		{"ZERO_TASKS", "x"},
		{"ZERO_CHECKS", "x"},
		{"ZERO_RESOLVED", "x"},
	};
	struct zero_settings settings;
	char why[WHY] = "";

	for (size_t i = 0; i < COUNT_OF(variables); i++)
		ck_assert_int_eq(setenv(variables[i][0], variables[i][1], 1), 0);
	ck_assert(zero_settings_init(&settings));
	ck_assert(zero_settings_parse(&settings, "stage=2 bucket=3M", "ZERO_RESOLVED", why,
				      sizeof why));
	ck_assert(zero_settings_parse(&settings, "stage=0", "zero_open", why, sizeof why));
	ck_assert_msg(zero_settings_environment(&settings, why, sizeof why), "%s", why);
	ck_assert_uint_eq(settings.value[ZERO_OPT_STAGE].number, 0);
	ck_assert_str_eq(settings.origin[ZERO_OPT_STAGE], "zero_open");
	ck_assert_uint_eq(settings.value[ZERO_OPT_BUCKET].number, 3 << 20);
	ck_assert_str_eq(settings.origin[ZERO_OPT_BUCKET], "ZERO_RESOLVED");
	ck_assert_uint_eq(settings.value[ZERO_OPT_OFFLOAD].number, ZERO_OFFLOAD_OPTIMIZER);
	ck_assert_str_eq(settings.origin[ZERO_OPT_OFFLOAD], "ZERO_OFFLOAD");
	ck_assert_uint_eq(settings.value[ZERO_OPT_ISA].number, ZERO_ISA_AVX2);
	ck_assert_uint_eq(settings.value[ZERO_OPT_SHARE].number, 2);
	ck_assert_uint_eq(settings.value[ZERO_OPT_CHECK].number, 1);
	ck_assert_str_eq(settings.origin[ZERO_OPT_CHECK], "ZERO_CHECK");
	ck_assert_uint_eq(settings.value[ZERO_OPT_TASKS].number, 0);
	ck_assert_str_eq(settings.origin[ZERO_OPT_FLATTEN], "default");
	zero_settings_clear(&settings);
	ck_assert(zero_settings_init(&settings));
	ck_assert(!zero_settings_environment(&settings, why, sizeof why));
	ck_assert_str_eq(why, "ZERO_STAGE: 'zero2' is not a whole number from 0 to 3; if the "
			      "variable is another program's, unset it");
	zero_settings_clear(&settings);
}
END_TEST

START_TEST(help_shows_the_flags)
{
	char *text = NULL, *line, *rest;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	zero_options_help(out);
	fclose(out);
	ck_assert_ptr_nonnull(strstr(text, "      --zero-stage=0|1|2|3    what is sharded"));
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		if (option->flag)
			ck_assert_ptr_nonnull(strstr(text, option->flag));
		ck_assert_int_eq(strstr(text, option->help) != NULL, option->flag != NULL);
	}
	for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		ck_assert_uint_le(strlen(line), 100);
	free(text);
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("options");

	tcase_add_test(tests, sizes_are_whole_numbers_with_a_unit);
	tcase_add_test(tests, what_is_no_size_is_refused);
	tcase_add_test(tests, ranges_are_kept_and_named);
	tcase_add_test(tests, words_choices_and_paths);
	tcase_add_test(tests, messages_are_fit_for_a_terminal);
	tcase_add_test(tests, the_table_is_regular);
	tcase_add_test(tests, defaults);
	tcase_add_test(tests, every_row_round_trips);
	tcase_add_test(tests, settings_texts_round_trip_with_escapes);
	tcase_add_test(tests, origins_are_handed_on);
	tcase_add_test(tests, settings_texts_are_forgiving_about_blanks_only);
	tcase_add_test(tests, bad_settings_texts_change_nothing);
	tcase_add_test(tests, near_names_are_flags_for_flags);
	tcase_add_test(tests, a_message_begins_with_who_said_it);
	tcase_add_test(tests, the_last_word_counts);
	tcase_add_test(tests, help_shows_the_flags);
	return run_cases(tests, NULL);
}
