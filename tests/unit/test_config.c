/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "configs.h"

/* `expected` is what follows the path. */
static void refused_bytes(enum zero_config_kind kind, const char *text, size_t length,
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

static void refused(const char *text, const char *expected)
{
	refused_bytes(ZERO_CONFIG_SITE, text, strlen(text), expected);
}

struct refusal {
	const char *text, *why;
};

static void check_refusals(const struct refusal *refusals, size_t count)
{
	for (size_t i = 0; i < count; i++)
		refused(refusals[i].text, refusals[i].why);
}

START_TEST(the_form_of_the_file)
{
	static const struct refusal refusals[] = {
		{"", ":1:1: the file says nothing: it needs version: 1"},
		{"# only this\n\n", ":1:1: the file says nothing: it needs version: 1"},
		{"---\n", ":1:1: there is no version: add version: 1"},
		{"enabled: on\n", ":1:1: there is no version: add version: 1"},
		{"version: 2\n", ":1:10: version '2' is not known: only 1 is"},
		{"version: 1.0\n", ":1:10: version '1.0' is not known: only 1 is"},
		{"version: [1]\n", ":1:10: version must be a single value, not a list"},
		{"version:\n", ":1:9: version '' is not known: only 1 is"},
		{"- version\n",
		 ":1:1: the file must be a map with lines such as 'key: value', not a list"},
		{"version\n", ":1:1: the file must be a map with lines such as 'key: value', not a "
			      "single value"},
		{"version: 1\nenabled: yes\n",
		 ":2:10: enabled: 'yes' is not one of off, opt-in, on"},
		{"version: 1\nenabled: {}\n", ":2:10: enabled must be a single value, not a map"},
		{"version: 1\nversion: 1\n", ":2:1: 'version' is there twice: line 1 has it too"},
		{"version: 1\ndefualts: {}\n",
		 ":2:1: there is no key 'defualts' here: did you mean defaults?"},
		{"version: 1\n? [a]\n: b\n", ":2:3: a key must be a single value, not a list"},
		{"version: 1\nx: 1\n",
		 ":2:1: there is no key 'x' here: the keys are version, enabled, defaults, limits, "
		 "locked, env, gpus, partitions, nodes"},
		{"version: 1\nstage: 3\n", ":2:1: stage belongs under defaults"},
		{"version: 1\n<<: {}\n",
		 ":2:1: there is no key '<<' here: the keys are version, enabled, defaults, "
		 "limits, locked, env, gpus, partitions, nodes"},
		{"version: 1\n---\nversion: 1\n",
		 ":2:1: a second document begins: only one is allowed"},
		{"version: 1\n...\n---\nversion: 1\n",
		 ":3:1: a second document begins: only one is allowed"},
	};

	check_refusals(refusals, sizeof refusals / sizeof refusals[0]);
	zero_config_free(site_of("%YAML 1.1\n--- # first\nversion: '1'\n...\n"));
	zero_config_free(site_of("{\"version\": \"1\", enabled: off}"));
	zero_config_free(site_of("version: 1\r\nenabled: on\r\n"));
	zero_config_free(site_of("\xef\xbb\xbfversion: 1\n"));
}
END_TEST

/* Where the words are libyaml's own, which change from release to release. */
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
		{"version: 1\nenabled: \xc3\xa4\xe4\n", ":2:11: this is no text: "},
		{"version: 1\n# \xff\n", ":2:3: this is no text: "},
		{"version: 1\n# \xed\xa0\x80\n", ":2:3: this is no text: "},
		{"version: 1\nenabled: \x1b[2J\n", ":2:10: this is no text: "},
	};
	static const char nul[] = "version: 1\nenabled: o\0n\n";
	static const char utf16[] = "\xff\xfev\0e\0r\0";

	for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
		refused_at(at[i].text, strlen(at[i].text), at[i].why);
	refused_at(nul, sizeof nul - 1, ":2:11: this is no text: ");
	refused_at(utf16, sizeof utf16 - 1, ":1:1: this is no text: ");
}
END_TEST

START_TEST(no_magic)
{
	static const struct refusal refusals[] = {
		{"version: 1\ndefaults: &a {stage: 3}\n", ":2:11: the anchor 'a' is not allowed"},
		{"version: 1\ndefaults: {stage: &a 3}\n", ":2:19: the anchor 'a' is not allowed"},
		{"version: 1\nlocked: &b [stage]\n", ":2:9: the anchor 'b' is not allowed"},
		{"version: 1\n&k enabled: on\n", ":2:1: the anchor 'k' is not allowed"},
		{"version: 1\ndefaults: *a\n", ":2:11: the alias 'a' is not allowed: write it out"},
		{"!x\nversion: 1\n", ":1:1: the tag '!x' is not allowed"},
		{"version: !!int 1\n", ":1:10: the tag 'tag:yaml.org,2002:int' is not allowed"},
		{"version: ! 1\n", ":1:10: the tag '!' is not allowed"},
		{"version: 1\nlocked: !!seq [stage]\n",
		 ":2:9: the tag 'tag:yaml.org,2002:seq' is not allowed"},
		/* what an escape brings in is not shown raw */
		{"version: 1\n\"\\e[2J\\x9b\": on\n",
		 ":2:1: there is no key '?[2J?' here: the keys are version, enabled, defaults, "
		 "limits, locked, env, gpus, partitions, nodes"},
		{"version: 1\nenabled: \"on\\0\"\n", ":2:10: enabled has a NUL byte in it"},
		{"version: 1\n\"enabled\\0\": on\n", ":2:1: a key has a NUL byte in it"},
	};

	check_refusals(refusals, sizeof refusals / sizeof refusals[0]);
}
END_TEST

START_TEST(bombs)
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

START_TEST(too_many)
{
	const char *const kinds[] = {"nodes", "env"};

	for (size_t kind = 0; kind < 2; kind++) {
		char *text = NULL, expected[160];
		size_t length;
		FILE *out = open_memstream(&text, &length);

		fprintf(out, "version: 1\n%s:\n", kinds[kind]);
		for (int i = 1; i <= 1025; i++)
			fprintf(out, " n%d:\n", i);
		fclose(out);
		snprintf(expected, sizeof expected,
			 ":1027:2: there are too many here: at most 1024 are allowed");
		refused(text, expected);
		/* one less is well */
		text[length - strlen(" n1025:\n")] = '\0';
		zero_config_free(site_of(text));
		free(text);
	}
	{
		char *text = NULL;
		size_t length;
		FILE *out = open_memstream(&text, &length);

		fprintf(out, "version: 1\nnodes:\n");
		for (int i = 1; i <= 5; i++) {
			fprintf(out, " n%d:\n  env:\n", i);
			for (int v = 0; v < 250; v++)
				fprintf(out, "   V%d: x\n", v);
		}
		fclose(out);
		refused(text, ":1037:4: there are too many variables: at most 1024 are allowed");
		free(text);
	}
}
END_TEST

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
		{"version: 1\ndefaults:\n  xy: 3\n",
		 ":3:3: there is no option 'xy': the options are stage, stream_chunk, "
		 "stream_threshold, flatten, allgather, bucket, gather_dtype, offload, "
		 "vram_reserve, backend, preload, report, preload_path"},
		{"version: 1\ndefaults:\n  config: /x\n",
		 ":3:3: config cannot be said in a file: say it as --zero-config"},
		{"version: 1\ndefaults:\n  isa: avx2\n",
		 ":3:3: isa cannot be said in a file: say it as ZERO_ISA"},
		{"version: 1\ndefaults:\n  tasks: 3\n",
		 ":3:3: there is no option 'tasks': the options are stage, stream_chunk, "
		 "stream_threshold, flatten, allgather, bucket, gather_dtype, offload, "
		 "vram_reserve, backend, preload, report, preload_path"},
		{"version: 1\ndefaults:\n  stage: 4\n",
		 ":3:10: stage: '4' is out of range: 0 to 3 is allowed"},
		{"version: 1\ndefaults:\n  stage: [3]\n",
		 ":3:10: stage must be a single value, not a list"},
		{"version: 1\ndefaults:\n  stream_chunk: 40MB\n",
		 ":3:17: stream_chunk: '40MB' is not a size: a whole number with K, M, G or T, "
		 "such as 40M"},
		{"version: 1\ndefaults:\n  stream_chunk:\n    1.5G\n",
		 ":4:5: stream_chunk: '1.5G' is not a whole number: write 1536M"},
		{"version: 1\ndefaults:\n  backend: rocm\n",
		 ":3:12: backend: 'rocm' is not one of auto, host, cuda"},
		{"version: 1\ndefaults:\n  stage: 1\n  bucket: 2G\n  stage: 2\n",
		 ":5:3: 'stage' is there twice: line 3 has it too"},
		{"version: 1\ndefaults: {stage: 1, \"stage\": 2}\n",
		 ":2:22: 'stage' is there twice: line 2 has it too"},
	};

	check_refusals(refusals, sizeof refusals / sizeof refusals[0]);
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
		 ":3:18: a limit has min and max, not 'mix'"},
		{"version: 1\nlimits:\n  stream_chunk: {max: 1G, max: 2G}\n",
		 ":3:27: 'max' is there twice: line 3 has it too"},
		{"version: 1\nlimits:\n  stream_chunk: {}\n",
		 ":3:3: the limit of stream_chunk needs min, max or both"},
		{"version: 1\nlimits:\n  stream_chunk:\n",
		 ":3:3: the limit of stream_chunk needs min, max or both"},
		{"version: 1\nlimits:\n  backend: {max: cuda}\n",
		 ":3:3: backend is no number and has no limits: lock it instead"},
		{"version: 1\nlimits:\n  report: {max: 3}\n",
		 ":3:3: report is no number and has no limits: lock it instead"},
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
		 ":3:32: max of stream_chunk is 512M, which is less than its min, 2G"},
		{"version: 1\nlimits:\n  vram_reserve:\n    max: 5%\n    min: 6%\n",
		 ":4:10: max of vram_reserve is 5%, which is less than its min, 6%"},
		{"version: 1\nlimits:\n  stage: {min: 1}\n  stage: {max: 2}\n",
		 ":4:3: 'stage' is there twice: line 3 has it too"},
		/* against the same section, and against the top */
		{"version: 1\ndefaults: {bucket: 2G}\nlimits: {bucket: {max: 1G}}\n",
		 ":2:20: bucket: 2G is more than 1G, the max of line 3"},
		{"version: 1\nlimits: {stage: {min: 2}}\nnodes:\n  n1: {defaults: {stage: 1}}\n",
		 ":4:26: stage: 1 is less than 2, the min of line 2"},
		{"version: 1\nnodes:\n  n1: {defaults: {stage: 1}, limits: {stage: {min: 2}}}\n",
		 ":3:26: stage: 1 is less than 2, the min of line 3"},
	};

	check_refusals(refusals, sizeof refusals / sizeof refusals[0]);
	zero_config_free(site_of("version: 1\nlimits:\n  stage: {min: 2, max: 2}\n"
				 "  vram_reserve: {min: 90%, max: 1G}\n"));
	/* a size and a percentage, and what another section says, cannot be compared here */
	zero_config_free(site_of("version: 1\nlimits: {vram_reserve: {min: 90%, max: 95%}}\n"
				 "nodes:\n  n1: {limits: {vram_reserve: {max: 1G}}}\n"
				 "  n2: {limits: {vram_reserve: {min: 2G}}}\n"
				 "gpus:\n  x: {limits: {vram_reserve: {min: 94%}}}\n"
				 "  y: {limits: {vram_reserve: {max: 91%}}}\n"));
	/* equal bounds leave one value, and other options are none of it */
	zero_config_free(site_of("version: 1\n"
				 "limits: {stream_chunk: {min: 2M, max: 8M}, stage: {max: 1}}\n"
				 "nodes:\n  n1: {limits: {stream_chunk: {max: 2M}}}\n"
				 "  n2: {limits: {stream_chunk: {min: 8M}}}\n"
				 "  n3: {limits: {stream_chunk: {min: 64K, max: 1T}}}\n"));
	/* another section's is held to the limit instead */
	zero_config_free(site_of("version: 1\nnodes:\n  n1: {defaults: {stage: 1}}\n"
				 "  n2: {limits: {stage: {min: 2}}}\n"));
	zero_config_free(site_of("version: 1\ndefaults: {stream_threshold: auto, vram_reserve: "
				 "5%}\nlimits: {stream_threshold: {max: 1}, vram_reserve: {max: "
				 "1M}}\n"));
}
END_TEST

/* The top's limits bind in every section, so that no job could satisfy both. */
START_TEST(limits_leave_a_value)
{
	static const char *const kinds[] = {"gpus", "partitions", "nodes"};
	static const struct refusal refusals[] = {
		{"limits: {stream_chunk: {min: 64M}}\n@:\n  x: {limits: {stream_chunk: {max: "
		 "1M}}}\n",
		 ":4:36: max of stream_chunk is 1M, which is less than the min of line 2, 64M, "
		 "which holds here too"},
		{"@:\n  x:\n    limits:\n      stage:\n        min: 2\nlimits: {stage: {max: "
		 "1}}\n",
		 ":6:14: min of stage is 2, which is more than the max of line 7, 1, which holds "
		 "here too"},
		{"limits: {vram_reserve: {min: 1%, max: 5%}}\n@:\n  x: {limits: {vram_reserve: "
		 "{max: 3%}}}\n  y: {limits: {vram_reserve: {min: 6%}}}\n",
		 ":5:36: min of vram_reserve is 6%, which is more than the max of line 2, 5%, "
		 "which holds here too"},
		/* its default is beyond that limit too */
		{"limits: {bucket: {max: 1G}}\n@:\n  x: {limits: {bucket: {min: 2G, max: 3G}}, "
		 "defaults: {bucket: 2G}}\n",
		 ":4:30: min of bucket is 2G, which is more than the max of line 2, 1G, which "
		 "holds here too"},
	};

	for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
		for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
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
		 ":2:17: a word of a list must be a single value, not a list"},
		{"version: 1\nlocked:\n- stage\n- bucket\n- stage\n",
		 ":5:3: 'stage' is there twice: line 3 has it too"},
		{"version: 1\nlocked: [bukcet]\n",
		 ":2:10: there is no option 'bukcet': did you mean bucket?"},
		{"version: 1\nlocked: [config]\n",
		 ":2:10: config cannot be said in a file: say it as --zero-config"},
	};

	check_refusals(refusals, sizeof refusals / sizeof refusals[0]);
}
END_TEST

START_TEST(variables_have_names)
{
	static const struct refusal refusals[] = {
		{"version: 1\nenv: [A]\n",
		 ":2:6: env must be a map with lines such as 'key: value', not a list"},
		{"version: 1\nenv: {1A: x}\n",
		 ":2:7: '1A' is no name of a variable: letters, digits and _ are allowed, and no "
		 "digit first"},
		{"version: 1\nenv: {A-B: x}\n",
		 ":2:7: 'A-B' is no name of a variable: letters, digits and _ are allowed, and no "
		 "digit first"},
		{"version: 1\nenv: {A=B: x}\n",
		 ":2:7: 'A=B' is no name of a variable: letters, digits and _ are allowed, and no "
		 "digit first"},
		{"version: 1\nenv: {'': x}\n",
		 ":2:7: '' is no name of a variable: letters, digits and _ are allowed, and no "
		 "digit first"},
		{"version: 1\nenv: {\xc3\x84: x}\n",
		 ":2:7: '\xc3\x84' is no name of a variable: letters, digits and _ are allowed, "
		 "and no digit first"},
		{"version: 1\nenv: {LD_PRELOAD: x}\n",
		 ":2:7: 'LD_PRELOAD' cannot be set here: the plugin sets it for each task"},
		{"version: 1\nenv: {RANK: 0}\n",
		 ":2:7: 'RANK' cannot be set here: the plugin sets it for each task"},
		{"version: 1\nenv: {CUDA_VISIBLE_DEVICES: x}\n",
		 ":2:7: 'CUDA_VISIBLE_DEVICES' cannot be set here: tasks are sized for the GPUs "
		 "that Slurm gives them"},
		{"version: 1\nenv: {ZERO_STAGE: 3}\n",
		 ":2:7: 'ZERO_STAGE' cannot be set here: say options under defaults"},
		{"version: 1\nenv: {ZERO_RESOLVED: ''}\n",
		 ":2:7: 'ZERO_RESOLVED' cannot be set here: say options under defaults"},
		{"version: 1\nenv: {SLURM_PROCID: 0}\n",
		 ":2:7: 'SLURM_PROCID' cannot be set here: it is Slurm's own"},
		{"version: 1\nenv: {A: [x]}\n",
		 ":2:10: the value of a variable must be a single value, not a list"},
		{"version: 1\nenv: {A: \"\\0\"}\n",
		 ":2:10: the value of a variable has a NUL byte in it"},
		{"version: 1\nenv:\n  A: 1\n  A: 2\n",
		 ":4:3: 'A' is there twice: line 3 has it too"},
	};
	char text[33000] = "version: 1\nenv: {A: ";

	check_refusals(refusals, sizeof refusals / sizeof refusals[0]);
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
		 ":3:11: nodes holds for the whole file and cannot be in a section"},
		{"version: 1\npartitions:\n  debug: {enabled: off}\n",
		 ":3:11: enabled holds for the whole file and cannot be in a section"},
		{"version: 1\npartitions:\n  debug: {limit: {}}\n",
		 ":3:11: there is no key 'limit' here: did you mean limits?"},
		{"version: 1\npartitions:\n  debug: {foo: {}}\n",
		 ":3:11: there is no key 'foo' here: the keys are defaults, limits, locked, env"},
		{"version: 1\npartitions:\n  debug: {stage: 1}\n",
		 ":3:11: stage belongs under defaults"},
		{"version: 1\npartitions:\n  '': {}\n", ":3:3: the name of a section is empty"},
		{"version: 1\nnodes:\n  n[3-1: {}\n", ":3:3: '[3-1' has no closing bracket"},
		{"version: 1\nnodes:\n  \"n[3-1]\": {}\n", ":3:3: the range '3-1' runs backwards"},
		{"version: 1\nnodes:\n  n1: {}\n  \"n1\": {}\n",
		 ":4:3: 'n1' is there twice: line 3 has it too"},
		{"version: 1\ngpus:\n  \"*A*\":\n    defaults:\n      stage: 9\n",
		 ":5:14: stage: '9' is out of range: 0 to 3 is allowed"},
	};
	char text[400] = "version: 1\ngpus:\n  ";

	check_refusals(refusals, sizeof refusals / sizeof refusals[0]);
	memset(text + 19, 'x', 256);
	strcpy(text + 19 + 256, ": {}\n");
	refused(text, ":3:3: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' is "
		      "256 bytes long: at most 255 are allowed");
}
END_TEST

/* A file with a quoted key of so many characters in place of its '@', quotes and all. */
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

START_TEST(keys_have_a_length)
{
	static const char hint[] = "; a key of more than 1024 characters needs '? ' before it, and "
				   "its value ': ' in a line below";
	static const char *const forms[] = {
		"version: 1\nnodes:\n  @: {locked: [stage]}\n",
		"version: 1\nnodes:\n  m: {}\n  @: {locked: [stage]}\n",
		"version: 1\nnodes: {\n  @: {locked: [stage]}}\n",
		"version: 1\nnodes: {\n  m: {}, @: {locked: [stage]}}\n",
		"@: 1\n",
		"version: 1\nnodes:\n  m:\n    @: {}\n",
	};

	for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
		char *text = with_key(forms[i], 1025), why[WHY] = "";

		write_bytes(site_path, text, strlen(text));
		ck_assert(!zero_config_read(site_path, ZERO_CONFIG_SITE, why, sizeof why));
		ck_assert_msg(strlen(why) > strlen(hint) &&
				      strcmp(why + strlen(why) - strlen(hint), hint) == 0,
			      "%s gives %s", forms[i], why);
		free(text);
		/* one character less is a key, if a wrong one where hosts are not expected */
		text = with_key(forms[i], 1024);
		why[0] = '\0';
		write_bytes(site_path, text, strlen(text));
		zero_config_free(zero_config_read(site_path, ZERO_CONFIG_SITE, why, sizeof why));
		ck_assert_ptr_null(strstr(why, "a key of more"));
		free(text);
	}
	for (size_t i = 0; i < 4; i++) {
		char *text = with_key(forms[i], 1024);

		zero_config_free(site_of(text));
		free(text);
	}
	{
		char *text = with_key("version: 1\nnodes:\n  ? @\n  : locked: [stage]\n", 60000);

		zero_config_free(site_of(text));
		free(text);
	}
	/* a long value is no key, and a slip below one has nothing to do with it */
	{
		char *text = with_key("version: 1\nenv:\n  A: @\nnodes: 3\n", 2000);

		refused(text, ":4:8: nodes must be a map with lines such as 'key: value', not a "
			      "single value");
		free(text);
	}
}
END_TEST

START_TEST(a_user_has_defaults_only)
{
	static const char *const words[] = {"enabled", "limits",     "locked", "env",
					    "gpus",    "partitions", "nodes"};
	char text[64], expected[160];

	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		snprintf(text, sizeof text, "version: 1\n%s:\n", words[i]);
		snprintf(expected, sizeof expected,
			 ":2:1: only the site's file may have %s: a user's has version and "
			 "defaults",
			 words[i]);
		refused_bytes(ZERO_CONFIG_USER, text, strlen(text), expected);
	}
	refused_bytes(ZERO_CONFIG_USER, "version: 1\nx:\n", 14,
		      ":2:1: there is no key 'x' here: the keys are version, defaults");
	refused_bytes(ZERO_CONFIG_USER, "defaults:\n", 10,
		      ":1:1: there is no version: add version: 1");
	zero_config_free(accepted(ZERO_CONFIG_USER, "version: 1\ndefaults: {stage: 1}\n"));
}
END_TEST

static void refused_file(const char *path, enum zero_config_kind kind, const char *expected)
{
	char why[WHY] = "", whole[WHY];

	ck_assert_ptr_null(zero_config_read(path, kind, why, sizeof why));
	snprintf(whole, sizeof whole, "%s: %s", path, expected);
	ck_assert_str_eq(why, whole);
}

START_TEST(what_is_no_file)
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
	/* not what the mode of a new file is */
	ck_assert(!zero_config_read("/no\nsuch\x1b", ZERO_CONFIG_USER, why, sizeof why));
	ck_assert_str_eq(why, "/no?such?: cannot be opened: No such file or directory");

	write_bytes(site_path, "version: 1\n", 11);
	ck_assert_int_eq(chmod(site_path, 0664), 0);
	refused_file(site_path, ZERO_CONFIG_SITE,
		     "others than its owner may write it (mode 0664): chmod go-w");
	config = zero_config_read(site_path, ZERO_CONFIG_USER, why, sizeof why);
	ck_assert_ptr_nonnull(config);
	zero_config_free(config);
	ck_assert_int_eq(chmod(site_path, 0602), 0);
	refused_file(site_path, ZERO_CONFIG_SITE,
		     "others than its owner may write it (mode 0602): chmod go-w");
	ck_assert_int_eq(chmod(site_path, 0640), 0);
	refused_file(site_path, ZERO_CONFIG_SITE, "users cannot read it (mode 0640): chmod a+r");
	if (geteuid() != 0) {
		ck_assert_int_eq(chmod(site_path, 0200), 0);
		refused_file(site_path, ZERO_CONFIG_SITE, "cannot be opened: Permission denied");
	} else {
		ck_assert_int_eq(chmod(site_path, 0644), 0);
		ck_assert_int_eq(chown(site_path, 12345, (gid_t)-1), 0);
		refused_file(site_path, ZERO_CONFIG_SITE, "belongs to user 12345: chown root");
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
	const char *origin = NULL;

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct zero_config *config = site_of(cases[i].text);
		char expected[100] = "default";

		if (cases[i].line)
			snprintf(expected, sizeof expected, "%s:%u", site_path, cases[i].line);
		ck_assert_int_eq(zero_config_enabled(config, &origin), cases[i].enabled);
		ck_assert_str_eq(origin, expected);
		ck_assert_int_eq(zero_config_enabled(config, NULL), cases[i].enabled);
		zero_config_free(config);
	}
	ck_assert_int_eq(zero_config_enabled(NULL, &origin), ZERO_ENABLED_OPT_IN);
	ck_assert_str_eq(origin, "default");
	zero_config_free(NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("config");
	TCase *tests = tcase_create("config");
	SRunner *runner = srunner_create(suite);
	int failed;

	suite_add_tcase(suite, tests);
	tcase_set_timeout(tests, 120);
	tcase_add_unchecked_fixture(tests, make_folder, remove_folder);
	tcase_add_test(tests, the_form_of_the_file);
	tcase_add_test(tests, what_the_parser_refuses);
	tcase_add_test(tests, no_magic);
	tcase_add_test(tests, bombs);
	tcase_add_test(tests, too_many);
	tcase_add_test(tests, defaults_are_options);
	tcase_add_test(tests, limits_are_of_numbers);
	tcase_add_test(tests, limits_leave_a_value);
	tcase_add_test(tests, locks_are_a_list);
	tcase_add_test(tests, variables_have_names);
	tcase_add_test(tests, sections_have_keys);
	tcase_add_test(tests, keys_have_a_length);
	tcase_add_test(tests, a_user_has_defaults_only);
	tcase_add_test(tests, what_is_no_file);
	tcase_add_test(tests, a_short_buffer_is_not_overrun);
	tcase_add_test(tests, enabled);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
