/* SPDX-License-Identifier: Apache-2.0 */
#include "configs.h"

START_TEST(defaults_are_options)
{
	static const struct refusal refusals[] = {
		{"version: 1\ndefaults: [stage]\n",
		 ":2:11: defaults must be a map with lines such as 'key: value', not a list"},
		{"version: 1\ndefaults: ~\n",
		 ":2:11: defaults must be a map with lines such as 'key: value', not a single "
		 "value"},
		{"version: 1\ndefaults: ''\n",
		 ":2:11: defaults must be a map with lines such as 'key: value', not a single "
		 "value"},
		{"version: 1\ndefaults:\n  stge: 3\n",
		 ":3:3: there is no option 'stge': did you mean stage?"},
		{"version: 1\ndefaults:\n  stream-chunk: 3\n",
		 ":3:3: there is no option 'stream-chunk': did you mean stream_chunk?"},
		{"version: 1\ndefaults:\n  config: /x\n",
		 ":3:3: config cannot be set in a file: use --zero-config"},
		{"version: 1\ndefaults:\n  isa: avx2\n",
		 ":3:3: isa cannot be set in a file: use ZERO_ISA"},
		{"version: 1\ndefaults:\n  tasks: 3\n",
		 ":3:3: there is no option 'tasks': the options are stage, shard, offload, states, "
		 "report, protect, "
		 "slow, stream_chunk, stream_threshold, stream, flatten, allgather, bucket, "
		 "gather_limit, "
		 "gather_dtype, vram_reserve, backend, preload, preload_path, python, "
		 "fsdp, deepspeed, protect_dir, protect_max"},
		{"version: 1\ndefaults:\n  stage: 4\n",
		 ":3:10: stage: '4' is out of range: 0 to 3 is allowed"},
		{"version: 1\ndefaults:\n  stage: [3]\n",
		 ":3:10: stage must be a single value, not a list"},
		{"version: 1\ndefaults:\n  stream_chunk:\n    1.5G\n",
		 ":4:5: stream_chunk: '1.5G' is not a whole number: write 1536M"},
		{"version: 1\ndefaults:\n  stage: 1\n  bucket: 2G\n  stage: 2\n",
		 ":5:3: 'stage' appears twice: line 3 has it too"},
		{"version: 1\ndefaults: {stage: 1, \"stage\": 2}\n",
		 ":2:22: 'stage' appears twice: line 2 has it too"},
	};

	check_refusals(refusals, COUNT_OF(refusals));
	zero_config_free(site_of("version: 1\ndefaults:\nlimits:\nlocked:\nenv:\ngpus:\n"
				 "partitions:\nnodes:\n"));
	zero_config_free(site_of("version: 1\ndefaults: {}\nlocked: []\ngpus: {}\n"));
}
END_TEST

START_TEST(limits_are_of_numbers)
{
	static const struct refusal refusals[] = {
		{"version: 1\nlimits: {stream_chunk: 1G}\n",
		 ":2:24: a limit must be a map with lines such as 'key: value', not a single "
		 "value"},
		{"version: 1\nlimits:\n  stream_chunk: {mix: 1G}\n",
		 ":3:18: 'mix' is not allowed in a limit: the keys are min and max"},
		{"version: 1\nlimits:\n  stream_chunk: {max: 1G, max: 2G}\n",
		 ":3:27: 'max' appears twice: line 3 has it too"},
		{"version: 1\nlimits:\n  stream_chunk: {}\n",
		 ":3:3: the limit of stream_chunk needs min, max or both"},
		{"version: 1\nlimits:\n  stream_chunk:\n",
		 ":3:3: the limit of stream_chunk needs min, max or both"},
		{"version: 1\nlimits:\n  backend: {max: cuda}\n",
		 ":3:3: backend is not a number and cannot have limits: use locked instead"},
		{"version: 1\nlimits:\n  report: {max: 3}\n",
		 ":3:3: report is not a number and cannot have limits: use locked instead"},
		{"version: 1\nlimits:\n  stream_chnk: {max: 3}\n",
		 ":3:3: there is no option 'stream_chnk': did you mean stream_chunk?"},
		{"version: 1\nlimits:\n  stream_threshold: {min: auto}\n",
		 ":3:27: min of stream_threshold must be a size, not auto"},
		{"version: 1\nlimits:\n  bucket: {min: 1K}\n",
		 ":3:17: min of bucket: '1K' is out of range: 64K to 1T is allowed"},
		{"version: 1\nlimits:\n  stage: {max: 4}\n",
		 ":3:16: max of stage: '4' is out of range: 0 to 3 is allowed"},
		{"version: 1\nlimits:\n  stage: {max: []}\n",
		 ":3:16: max of stage must be a single value, not a list"},
		{"version: 1\nlimits:\n  stream_chunk: {min: 2G, max: 512M}\n",
		 ":3: stream_chunk must be at least 2G here, but at most 512M by line 3: no value "
		 "satisfies both"},
		{"version: 1\nlimits:\n  vram_reserve:\n    max: 5%\n    min: 6%\n",
		 ":5: vram_reserve must be at least 6% here, but at most 5% by line 4: no value "
		 "satisfies both"},
		{"version: 1\nlimits:\n  stage: {min: 1}\n  stage: {max: 2}\n",
		 ":4:3: 'stage' appears twice: line 3 has it too"},
		/* limits of the same section, and of the top level */
		{"version: 1\ndefaults: {bucket: 2G}\nlimits: {bucket: {max: 1G}}\n",
		 ":2: bucket: 2G is more than 1G, the max of line 3"},
		{"version: 1\nlimits: {stage: {min: 2}}\nnodes:\n  n1: {defaults: {stage: 1}}\n",
		 ":4: stage: 1 is less than 2, the min of line 2"},
		{"version: 1\nnodes:\n  n1: {defaults: {stage: 1}, limits: {stage: {min: 2}}}\n",
		 ":3: stage: 1 is less than 2, the min of line 3"},
	};

	check_refusals(refusals, COUNT_OF(refusals));
	zero_config_free(site_of("version: 1\nlimits:\n  stage: {min: 2, max: 2}\n"
				 "  vram_reserve: {min: 90%, max: 1G}\n"));
	/* a size and a percentage, and values of two sections, are not compared */
	zero_config_free(site_of("version: 1\nlimits: {vram_reserve: {min: 90%, max: 95%}}\n"
				 "nodes:\n  n1: {limits: {vram_reserve: {max: 1G}}}\n"
				 "  n2: {limits: {vram_reserve: {min: 2G}}}\n"
				 "gpus:\n  x: {limits: {vram_reserve: {min: 94%}}}\n"
				 "  y: {limits: {vram_reserve: {max: 91%}}}\n"));
	/* equal bounds leave one value; limits of other options do not matter */
	zero_config_free(site_of("version: 1\n"
				 "limits: {stream_chunk: {min: 2M, max: 8M}, stage: {max: 1}}\n"
				 "nodes:\n  n1: {limits: {stream_chunk: {max: 2M}}}\n"
				 "  n2: {limits: {stream_chunk: {min: 8M}}}\n"
				 "  n3: {limits: {stream_chunk: {min: 64K, max: 1T}}}\n"));
	/* a default of another section is clamped instead */
	zero_config_free(site_of("version: 1\nnodes:\n  n1: {defaults: {stage: 1}}\n"
				 "  n2: {limits: {stage: {min: 2}}}\n"));
	zero_config_free(site_of("version: 1\ndefaults: {stream_threshold: auto, vram_reserve: "
				 "5%}\nlimits: {stream_threshold: {max: 1}, vram_reserve: {max: "
				 "1M}}\n"));
}
END_TEST

/* Limits of the top level apply in every section, so that no value could satisfy both. */
START_TEST(limits_leave_a_value)
{
	static const char *const kinds[] = {"gpus", "partitions", "nodes"};
	static const struct refusal refusals[] = {
		{"limits: {stream_chunk: {min: 64M}}\n@:\n  x: {limits: {stream_chunk: {max: "
		 "1M}}}\n",
		 ":2: stream_chunk must be at least 64M here, but at most 1M by line 4: no value "
		 "satisfies both"},
		{"@:\n  x:\n    limits:\n      stage:\n        min: 2\nlimits: {stage: {max: "
		 "1}}\n",
		 ":6: stage must be at least 2 here, but at most 1 by line 7: no value satisfies "
		 "both"},
		{"limits: {vram_reserve: {min: 1%, max: 5%}}\n@:\n  x: {limits: {vram_reserve: "
		 "{max: 3%}}}\n  y: {limits: {vram_reserve: {min: 6%}}}\n",
		 ":5: vram_reserve must be at least 6% here, but at most 5% by line 2: no value "
		 "satisfies both"},
		/* the default is beyond that limit too */
		{"limits: {bucket: {max: 1G}}\n@:\n  x: {limits: {bucket: {min: 2G, max: 3G}}, "
		 "defaults: {bucket: 2G}}\n",
		 ":4: bucket must be at least 2G here, but at most 1G by line 2: no value "
		 "satisfies both"},
	};

	for (size_t i = 0; i < COUNT_OF(refusals); i++) {
		for (size_t kind = 0; kind < COUNT_OF(kinds); kind++) {
			const char *form = refusals[i].text, *at = strchr(form, '@');
			char text[400];

			snprintf(text, sizeof text, "version: 1\n%.*s%s%s", (int)(at - form), form,
				 kinds[kind], at + 1);
			refused(text, refusals[i].why);
		}
	}
}
END_TEST

START_TEST(locks_are_a_list)
{
	static const struct refusal refusals[] = {
		{"version: 1\nlocked: stage\n",
		 ":2:9: locked must be a list such as [one, two], not a single value"},
		{"version: 1\nlocked: {stage: 3}\n",
		 ":2:9: locked must be a list such as [one, two], not a map"},
		{"version: 1\nlocked: [stage, [bucket]]\n",
		 ":2:17: a list entry must be a single value, not a list"},
		{"version: 1\nlocked:\n- stage\n- bucket\n- stage\n",
		 ":5:3: 'stage' appears twice: line 3 has it too"},
		{"version: 1\nlocked: [bukcet]\n",
		 ":2:10: there is no option 'bukcet': did you mean bucket?"},
		{"version: 1\nlocked: [config]\n",
		 ":2:10: config cannot be set in a file: use --zero-config"},
	};

	check_refusals(refusals, COUNT_OF(refusals));
}
END_TEST

START_TEST(variables_have_names)
{
	static const struct refusal refusals[] = {
		{"version: 1\nenv: [A]\n",
		 ":2:6: env must be a map with lines such as 'key: value', not a list"},
		{"version: 1\nenv: {CUDA_VISIBLE_DEVICES: x}\n",
		 ":2:7: 'CUDA_VISIBLE_DEVICES' cannot be set here: Slurm sets it, and the plugin "
		 "sizes tasks for those GPUs"},
		{"version: 1\nenv: {ZERO_STAGE: 3}\n",
		 ":2:7: 'ZERO_STAGE' cannot be set here: set options under defaults"},
		{"version: 1\nenv: {ZERO_RESOLVED: ''}\n",
		 ":2:7: 'ZERO_RESOLVED' cannot be set here: set options under defaults"},
		{"version: 1\nenv: {SLURM_PROCID: 0}\n",
		 ":2:7: 'SLURM_PROCID' cannot be set here: Slurm sets it"},
		{"version: 1\nenv: {A: [x]}\n",
		 ":2:10: the value of a variable must be a single value, not a list"},
		{"version: 1\nenv: {A: \"\\0\"}\n",
		 ":2:10: the value of a variable contains a NUL byte"},
		{"version: 1\nenv:\n  A: 1\n  A: 2\n",
		 ":4:3: 'A' appears twice: line 3 has it too"},
	};
	static const char *const by_plugin[] = {
		"LD_PRELOAD",       "RANK",        "WORLD_SIZE",  "LOCAL_RANK",
		"LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
	};
	static const char *const no_names[] = {"1A", "A-B", "A=B", "", "\xc3\x84"};
	char text[33000], expected[128];

	check_refusals(refusals, COUNT_OF(refusals));
	for (size_t i = 0; i < COUNT_OF(by_plugin); i++) {
		sprintf(text, "version: 1\nenv: {%s: 0}\n", by_plugin[i]);
		sprintf(expected, ":2:7: '%s' cannot be set here: the plugin sets it for each task",
			by_plugin[i]);
		refused(text, expected);
	}
	for (size_t i = 0; i < COUNT_OF(no_names); i++) {
		sprintf(text, "version: 1\nenv: {\"%s\": x}\n", no_names[i]);
		sprintf(expected,
			":2:7: '%s' is not a name of a variable: letters, digits and _ are "
			"allowed, but no digit first",
			no_names[i]);
		refused(text, expected);
	}
	strcpy(text, "version: 1\nenv: {A: ");
	memset(text + 20, 'x', 32769);
	strcpy(text + 20 + 32769, "}\n");
	refused(text, ":2:10: 'A' is 32769 bytes long: at most 32768 are allowed");
	zero_config_free(site_of("version: 1\nenv: {LD_LIBRARY_PATH: /opt/lib, _a1: ''}\n"));
}
END_TEST

START_TEST(sections_have_keys)
{
	static const struct refusal refusals[] = {
		{"version: 1\ngpus: [x]\n",
		 ":2:7: gpus must be a map with lines such as 'key: value', not a list"},
		{"version: 1\npartitions:\n  debug: 3\n",
		 ":3:10: 'debug' must be a map with lines such as 'key: value', not a single "
		 "value"},
		{"version: 1\npartitions:\n  debug: {nodes: {}}\n",
		 ":3:11: nodes applies to the whole file and is not allowed in a section"},
		{"version: 1\npartitions:\n  debug: {telemetry: off}\n",
		 ":3:11: telemetry applies to the whole file and is not allowed in a section"},
		{"version: 1\ntelemetry: zero.log\n",
		 ":2:12: telemetry: 'zero.log' is not off, syslog or the absolute path of a file"},
		{"version: 1\ngpus:\n  \"*A*\": {enabled: off}\n",
		 ":3:11: enabled is not allowed under gpus: it is decided before a task has a GPU"},
		{"version: 1\nnodes:\n  n1: {enabled: on}\n",
		 ":3:17: enabled: on is not allowed under nodes, where it is off or opt-in"},
		{"version: 1\npartitions:\n  debug: {limit: {}}\n",
		 ":3:11: there is no key 'limit' here: did you mean limits?"},
		{"version: 1\npartitions:\n  debug: {foo: {}}\n",
		 ":3:11: there is no key 'foo' here: the keys are enabled, defaults, limits, "
		 "locked, env"},
		{"version: 1\npartitions:\n  debug: {stage: 1}\n",
		 ":3:11: stage belongs under defaults"},
		{"version: 1\npartitions:\n  '': {}\n", ":3:3: the name of a section is empty"},
		{"version: 1\nnodes:\n  n[3-1: {}\n", ":3:3: '[3-1' has no closing bracket"},
		{"version: 1\nnodes:\n  \"n[3-1]\": {}\n", ":3:3: the range '3-1' is descending"},
		{"version: 1\nnodes:\n  n1: {}\n  \"n1\": {}\n",
		 ":4:3: 'n1' appears twice: line 3 has it too"},
		{"version: 1\ngpus:\n  \"*A*\":\n    defaults:\n      stage: 9\n",
		 ":5:14: stage: '9' is out of range: 0 to 3 is allowed"},
	};
	char text[400] = "version: 1\ngpus:\n  ";

	check_refusals(refusals, COUNT_OF(refusals));
	memset(text + 19, 'x', 256);
	strcpy(text + 19 + 256, ": {}\n");
	refused(text, ":3:3: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' is "
		      "256 bytes long: at most 255 are allowed");
}
END_TEST

START_TEST(a_user_has_defaults_only)
{
	static const char *const words[] = {"enabled",    "telemetry", "limits",   "locked",
					    "env",        "gpus",      "accounts", "qos",
					    "partitions", "nodes"};
	char text[64], expected[160];

	for (size_t i = 0; i < COUNT_OF(words); i++) {
		snprintf(text, sizeof text, "version: 1\n%s:\n", words[i]);
		snprintf(expected, sizeof expected,
			 ":2:1: only the site's file may have %s: a user's may have version and "
			 "defaults",
			 words[i]);
		refused_bytes(ZERO_CONFIG_USER, text, strlen(text), expected);
	}
	refused_bytes(ZERO_CONFIG_USER, "version: 1\nx:\n", 14,
		      ":2:1: there is no key 'x' here: the keys are version, defaults");
	refused_bytes(ZERO_CONFIG_USER, "defaults:\n", 10,
		      ":1:1: the key version is missing: add version: 1");
	zero_config_free(accepted(ZERO_CONFIG_USER, "version: 1\ndefaults: {stage: 1}\n"));
}
END_TEST

START_TEST(enabled)
{
	static const struct {
		const char *text;
		enum zero_enabled enabled;
		unsigned line;
	} cases[] = {
		{"version: 1\n", ZERO_ENABLED_OPT_IN, 0},
		{"version: 1\nenabled: off\n", ZERO_ENABLED_OFF, 2},
		{"version: 1\n\nenabled: \"opt-in\"\n", ZERO_ENABLED_OPT_IN, 3},
		{"version: 1\nenabled: 'on'\n", ZERO_ENABLED_ON, 2},
	};
	const struct zero_where nowhere = {0};
	const char *origin = NULL;

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct zero_config *config = site_of(cases[i].text);
		char expected[100] = "default";

		if (cases[i].line)
			snprintf(expected, sizeof expected, "%s:%u", site_path, cases[i].line);
		ck_assert_int_eq(zero_config_enabled(config, &nowhere, &origin), cases[i].enabled);
		ck_assert_str_eq(origin, expected);
		ck_assert_int_eq(zero_config_enabled(config, &nowhere, NULL), cases[i].enabled);
		zero_config_free(config);
	}
	ck_assert_int_eq(zero_config_enabled(NULL, &nowhere, &origin), ZERO_ENABLED_OPT_IN);
	ck_assert_str_eq(origin, "default");
	ck_assert(zero_config_may_be_enabled(NULL, &nowhere));
	zero_config_free(NULL);
}
END_TEST

/* A staged rollout: off, but for one partition and some nodes, and one QOS has it always. */
START_TEST(enabled_in_sections)
{
	static const struct {
		struct zero_where where;
		enum zero_enabled enabled;
		unsigned line;
		bool may;
	} cases[] = {
		{{NULL}, ZERO_ENABLED_OFF, 2, true},
		{{.partition = "batch"}, ZERO_ENABLED_OFF, 2, true},
		{{.partition = "batch", .account = "a", .qos = "low"}, ZERO_ENABLED_OFF, 2, true},
		{{"n9", "batch", "a", "low", NULL, 0}, ZERO_ENABLED_OFF, 2, false},
		{{"n1", "batch", "a", "low", NULL, 0}, ZERO_ENABLED_OPT_IN, 12, true},
		{{"n9", "pilot", "a", "low", NULL, 0}, ZERO_ENABLED_OPT_IN, 10, true},
		{{"n9", "pilot", "old", "low", NULL, 0}, ZERO_ENABLED_OFF, 7, false},
		{{"n9", "pilot", "old", "high", NULL, 0}, ZERO_ENABLED_ON, 4, true},
		{{"n2", "pilot", "old", "high", NULL, 0}, ZERO_ENABLED_OFF, 13, false},
	};
	struct zero_config *config = site_of("version: 1\n"
					     "enabled: off\n"
					     "qos:\n"
					     "  high: {enabled: on}\n"
					     "  low:\n"
					     "accounts:\n"
					     "  old: {enabled: off}\n"
					     "partitions:\n"
					     "  pilot:\n"
					     "    enabled: opt-in\n"
					     "nodes:\n"
					     "  \"n[1-2]\": {enabled: opt-in}\n"
					     "  n2: {enabled: off}\n");

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		const char *origin;
		char expected[100];

		snprintf(expected, sizeof expected, "%s:%u", site_path, cases[i].line);
		ck_assert_int_eq(zero_config_enabled(config, &cases[i].where, &origin),
				 cases[i].enabled);
		ck_assert_str_eq(origin, expected);
		ck_assert(zero_config_may_be_enabled(config, &cases[i].where) == cases[i].may);
	}
	zero_config_free(config);
}
END_TEST

START_TEST(telemetry)
{
	static const char *const cases[][2] = {
		{"version: 1\n", NULL},
		{"version: 1\ntelemetry: off\n", NULL},
		{"version: 1\ntelemetry: syslog\n", "syslog"},
		{"version: 1\ntelemetry: /var/log/zero.json\n", "/var/log/zero.json"},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct zero_config *config = site_of(cases[i][0]);
		const char *target = zero_config_telemetry(config);

		ck_assert_pstr_eq(target, cases[i][1]);
		zero_config_free(config);
	}
	ck_assert_ptr_null(zero_config_telemetry(NULL));
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("config");

	tcase_add_unchecked_fixture(tests, make_folder, remove_folder);
	tcase_add_test(tests, defaults_are_options);
	tcase_add_test(tests, limits_are_of_numbers);
	tcase_add_test(tests, limits_leave_a_value);
	tcase_add_test(tests, locks_are_a_list);
	tcase_add_test(tests, variables_have_names);
	tcase_add_test(tests, sections_have_keys);
	tcase_add_test(tests, a_user_has_defaults_only);
	tcase_add_test(tests, enabled);
	tcase_add_test(tests, enabled_in_sections);
	tcase_add_test(tests, telemetry);
	return run_cases(tests, NULL);
}
