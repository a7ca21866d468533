/* SPDX-License-Identifier: Apache-2.0 */
#include "configs.h"

static const uint64_t MB = 1 << 20, GB = 1 << 30;

/* What is resolved, and everything that it is resolved from. */
struct scene {
	struct zero_config *site;
	struct zero_settings user, resolved;
	struct zero_where where;
	char why[WHY];
	bool ok;
};

static void set_user(struct scene *scene, enum zero_option_id id, const char *text,
		     const char *origin)
{
	char why[WHY] = "";

	ck_assert_msg(zero_settings_set(&scene->user, id, text, origin, why, sizeof why), "%s",
		      why);
}

static void add_file(struct scene *scene, const char *text)
{
	char why[WHY] = "";

	write_bytes(user_path, text, strlen(text));
	set_user(scene, ZERO_OPT_CONFIG, user_path, "--zero-config");
	ck_assert_msg(zero_config_add_file(&scene->user, why, sizeof why), "%s", why);
}

static void resolve(struct scene *scene)
{
	if (scene->ok)
		zero_settings_clear(&scene->resolved);
	/* all of it must be overwritten */
	memset(&scene->resolved, 0xa5, sizeof scene->resolved);
	scene->why[0] = '\0';
	scene->ok = zero_config_resolve(scene->site, &scene->user, &scene->where, &scene->resolved,
					scene->why, sizeof scene->why);
}

static void free_scene(struct scene *scene)
{
	if (scene->ok)
		zero_settings_clear(&scene->resolved);
	zero_settings_clear(&scene->user);
	zero_config_free(scene->site);
}

/* In the expected origins and sentences, $S and $U stand for the paths of the files. */
static void expand(const char *text, char *out, size_t size)
{
	size_t length = 0;

	for (; *text; text++) {
		const char *path = text[0] == '$' && text[1] == 'S'   ? site_path
				   : text[0] == '$' && text[1] == 'U' ? user_path
								      : NULL;

		length += (size_t)snprintf(out + length, size - length, path ? "%s" : "%.1s",
					   path ? path : text);
		text += path != NULL;
	}
}

static void resolves_to(struct scene *scene, enum zero_option_id id, const char *value,
			const char *origin)
{
	char text[WHY], expected[WHY];

	resolve(scene);
	ck_assert_msg(scene->ok, "%s", scene->why);
	zero_value_format(&zero_option_table[id], &scene->resolved.value[id], text, sizeof text);
	ck_assert_str_eq(text, value);
	expand(origin, expected, sizeof expected);
	ck_assert_str_eq(scene->resolved.origin[id], expected);
}

static void resolve_refused(struct scene *scene, const char *why)
{
	char expected[WHY];

	resolve(scene);
	ck_assert(!scene->ok);
	expand(why, expected, sizeof expected);
	ck_assert_str_eq(scene->why, expected);
}

START_TEST(each_layer_overrides_the_one_below)
{
	struct scene scene = {0};

	resolves_to(&scene, ZERO_OPT_STAGE, "3", "default");
	scene.site = site_of("version: 1\n"
			     "nodes:\n"
			     "  n1: {defaults: {stage: 0}}\n"
			     "partitions:\n"
			     "  debug: {defaults: {stage: 2}}\n"
			     "gpus:\n"
			     "  \"*H100*\": {defaults: {stage: 1}}\n"
			     "defaults: {stage: 3, report: /a b}\n"
			     "qos:\n"
			     "  high: {defaults: {stage: 3}}\n"
			     "accounts:\n"
			     "  physics: {defaults: {stage: 1}}\n");
	resolves_to(&scene, ZERO_OPT_STAGE, "3", "$S:8");
	resolves_to(&scene, ZERO_OPT_REPORT, "/a b", "$S:8");
	resolves_to(&scene, ZERO_OPT_BUCKET, "1073741824", "default");
	scene.where.gpu = "NVIDIA H100 80GB HBM3";
	resolves_to(&scene, ZERO_OPT_STAGE, "1", "$S:7");
	scene.where.partition = "debug";
	resolves_to(&scene, ZERO_OPT_STAGE, "2", "$S:5");
	scene.where.account = "physics";
	resolves_to(&scene, ZERO_OPT_STAGE, "1", "$S:12");
	scene.where.qos = "high";
	resolves_to(&scene, ZERO_OPT_STAGE, "3", "$S:10");
	scene.where.account = "physic";
	resolves_to(&scene, ZERO_OPT_STAGE, "3", "$S:10");
	scene.where.node = "n1";
	resolves_to(&scene, ZERO_OPT_STAGE, "0", "$S:3");
	add_file(&scene, "version: 1\ndefaults:\n stage: 1\n report: ''\n");
	resolves_to(&scene, ZERO_OPT_STAGE, "1", "$U:3");
	resolves_to(&scene, ZERO_OPT_REPORT, "", "$U:4");
	set_user(&scene, ZERO_OPT_STAGE, "2", "ZERO_STAGE");
	resolves_to(&scene, ZERO_OPT_STAGE, "2", "ZERO_STAGE");
	set_user(&scene, ZERO_OPT_STAGE, "3", "--zero-stage");
	resolves_to(&scene, ZERO_OPT_STAGE, "3", "--zero-stage");
	set_user(&scene, ZERO_OPT_TASKS, "6", "ZERO_RESOLVED");
	resolves_to(&scene, ZERO_OPT_TASKS, "6", "ZERO_RESOLVED");
	/* without the other sections the user's value still counts */
	scene.where = (struct zero_where){0};
	resolves_to(&scene, ZERO_OPT_STAGE, "3", "--zero-stage");
	resolves_to(&scene, ZERO_OPT_REPORT, "", "$U:4");
	free_scene(&scene);
}
END_TEST

START_TEST(of_several_matches_the_last_counts)
{
	struct scene scene = {.where = {.node = "n2", .gpu = "A100", .partition = "p"}};

	scene.site = site_of("version: 1\n"
			     "nodes:\n"
			     "  \"n[1-3]\": {defaults: {stage: 1, bucket: 1M}}\n"
			     "  n2: {defaults: {stage: 2}}\n"
			     "  \"n[02]\": {defaults: {stage: 3}}\n"
			     "gpus:\n"
			     "  \"*\": {defaults: {bucket: 2M, offload: optimizer}}\n"
			     "  \"A?00\": {defaults: {flatten: host}}\n"
			     "  A10: {defaults: {flatten: device}}\n"
			     "partitions:\n"
			     "  P: {defaults: {stream_chunk: 1M}}\n"
			     "  \"*\": {defaults: {stream_chunk: 1M}}\n");
	resolves_to(&scene, ZERO_OPT_STAGE, "2", "$S:4");
	resolves_to(&scene, ZERO_OPT_BUCKET, "1048576", "$S:3");
	resolves_to(&scene, ZERO_OPT_OFFLOAD, "optimizer", "$S:7");
	resolves_to(&scene, ZERO_OPT_FLATTEN, "host", "$S:8");
	resolves_to(&scene, ZERO_OPT_STREAM_CHUNK, "41943040", "default");
	free_scene(&scene);
}
END_TEST

START_TEST(limits_refuse_users_and_clamp_defaults)
{
	struct scene scene = {.where = {.partition = "debug"}};

	scene.site = site_of("version: 1\n"
			     "limits:\n"
			     "  stream_chunk: {min: 1M, max: 1G}\n"
			     "  bucket:\n"
			     "    min: 2G\n"
			     "  stage: {max: 2}\n"
			     "defaults: {stream_chunk: 512M}\n"
			     "partitions:\n"
			     "  debug: {limits: {stream_chunk: {max: 16M}}}\n"
			     "  other: {limits: {stream_chunk: {max: 2M}}}\n");
	/* a site's default and a compiled one */
	resolves_to(&scene, ZERO_OPT_STREAM_CHUNK, "16777216", "$S:7, at most 16M by $S:9");
	resolves_to(&scene, ZERO_OPT_BUCKET, "2147483648", "default, at least 2G by $S:5");
	resolves_to(&scene, ZERO_OPT_STAGE, "2", "default, at most 2 by $S:6");
	ck_assert(scene.resolved.ruled[ZERO_OPT_BUCKET] && scene.resolved.ruled[ZERO_OPT_STAGE]);
	ck_assert(!scene.resolved.ruled[ZERO_OPT_GATHER_LIMIT]);
	set_user(&scene, ZERO_OPT_STREAM_CHUNK, "16M", "--zero-stream-chunk");
	resolves_to(&scene, ZERO_OPT_STREAM_CHUNK, "16777216", "--zero-stream-chunk");
	set_user(&scene, ZERO_OPT_STREAM_CHUNK, "16777217", "--zero-stream-chunk");
	resolve_refused(&scene,
			"--zero-stream-chunk: 16777217 is not allowed: stream_chunk must be at "
			"most 16M by $S:9");
	set_user(&scene, ZERO_OPT_STREAM_CHUNK, "1023K", "ZERO_STREAM_CHUNK");
	resolve_refused(&scene,
			"ZERO_STREAM_CHUNK: 1023K is not allowed: stream_chunk must be at least "
			"1M by $S:3");
	set_user(&scene, ZERO_OPT_STREAM_CHUNK, "1M", "ZERO_STREAM_CHUNK");
	resolves_to(&scene, ZERO_OPT_STREAM_CHUNK, "1048576", "ZERO_STREAM_CHUNK");
	/* a wider limit of higher precedence does not widen it */
	add_file(&scene, "version: 1\ndefaults: {stage: 3}\n");
	resolve_refused(&scene, "$U:2: 3 is not allowed: stage must be at most 2 by $S:6");
	/* a value that a flag overrides is not checked */
	set_user(&scene, ZERO_OPT_STAGE, "1", "--zero-stage");
	resolves_to(&scene, ZERO_OPT_STAGE, "1", "--zero-stage");
	free_scene(&scene);
}
END_TEST

START_TEST(the_narrowest_limit_counts)
{
	struct scene scene = {.where = {.node = "n1", .partition = "p"}};

	scene.site = site_of("version: 1\n"
			     "limits: {stream_chunk: {min: 2M, max: 8M}}\n"
			     "partitions: {p: {limits: {stream_chunk: {min: 1M, max: 4M}, "
			     "bucket: {max: 1G}}}}\n"
			     "nodes:\n"
			     "  n1: {limits: {stream_chunk: {max: 1G}}}\n"
			     "  n2: {limits: {bucket: {min: 2G}}}\n");
	set_user(&scene, ZERO_OPT_STREAM_CHUNK, "5M", "--zero-stream-chunk");
	resolve_refused(&scene,
			"--zero-stream-chunk: 5M is not allowed: stream_chunk must be at most "
			"4M by $S:3");
	set_user(&scene, ZERO_OPT_STREAM_CHUNK, "1M", "--zero-stream-chunk");
	resolve_refused(&scene,
			"--zero-stream-chunk: 1M is not allowed: stream_chunk must be at least "
			"2M by $S:2");
	set_user(&scene, ZERO_OPT_STREAM_CHUNK, "3M", "--zero-stream-chunk");
	resolves_to(&scene, ZERO_OPT_STREAM_CHUNK, "3145728", "--zero-stream-chunk");
	scene.where.node = "n2";
	resolve_refused(&scene,
			"$S:6: bucket must be at least 2G here, but at most 1G by line 3: no "
			"value satisfies both");
	free_scene(&scene);
}
END_TEST

START_TEST(percentages_need_the_total)
{
	struct scene scene = {0};

	scene.site = site_of("version: 1\n"
			     "limits: {vram_reserve: {min: 4G}}\n"
			     "defaults: {vram_reserve: 10%}\n"
			     "nodes:\n"
			     "  n1: {limits: {vram_reserve: {max: 20%}}}\n"
			     "  n2: {limits: {vram_reserve: {min: 12%}}}\n");
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "10%", "$S:3");
	scene.where.vram_total = 80 * GB;
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "10%", "$S:3");
	scene.where.vram_total = 24 * GB;
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "4294967296", "$S:3, at least 4G by $S:2");
	scene.where.node = "n1";
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "4294967296", "$S:3, at least 4G by $S:2");
	scene.where.vram_total = 16 * GB;
	resolve_refused(&scene,
			"$S:2: vram_reserve must be at least 4G here, but at most 20% by line 5: "
			"no value satisfies both");
	/* percentages alone need no total; a size is checked against them once there is one */
	scene.where = (struct zero_where){.node = "n2"};
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "12%", "$S:3, at least 12% by $S:6");
	set_user(&scene, ZERO_OPT_VRAM_RESERVE, "5G", "--zero-vram-reserve");
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "5368709120", "--zero-vram-reserve");
	scene.where.vram_total = 80 * GB;
	resolve_refused(&scene,
			"--zero-vram-reserve: 5G is not allowed: vram_reserve must be at least "
			"12% by $S:6");
	set_user(&scene, ZERO_OPT_VRAM_RESERVE, "100%", "--zero-vram-reserve");
	scene.where.vram_total = UINT64_MAX;
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "100%", "--zero-vram-reserve");
	/* half of it is 4G to the byte */
	scene.where = (struct zero_where){.vram_total = 8 * GB};
	set_user(&scene, ZERO_OPT_VRAM_RESERVE, "50%", "--zero-vram-reserve");
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "50%", "--zero-vram-reserve");
	free_scene(&scene);
}
END_TEST

START_TEST(a_size_and_a_percentage_both_bind)
{
	struct scene scene = {.where = {.node = "n1", .vram_total = 8 * GB}};

	scene.site = site_of("version: 1\n"
			     "limits: {vram_reserve: {max: 6G}}\n"
			     "defaults: {vram_reserve: 90%}\n"
			     "nodes: {n1: {limits: {vram_reserve: {max: 50%}}}}\n");
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "50%", "$S:3, at most 50% by $S:4");
	scene.where.vram_total = 80 * GB;
	resolves_to(&scene, ZERO_OPT_VRAM_RESERVE, "6442450944", "$S:3, at most 6G by $S:2");
	free_scene(&scene);
}
END_TEST

START_TEST(the_site_alone_sets_protect_dir)
{
	struct scene scene = {.where = {.node = "n1"}};

	scene.site = site_of("version: 1\n"
			     "defaults: {protect_dir: /memory}\n");
	set_user(&scene, ZERO_OPT_PROTECT_DIR, "/memory", "ZERO_PROTECT_DIR");
	resolves_to(&scene, ZERO_OPT_PROTECT_DIR, "/memory", "ZERO_PROTECT_DIR");
	set_user(&scene, ZERO_OPT_PROTECT_DIR, "/mine", "ZERO_PROTECT_DIR");
	resolve_refused(&scene, "ZERO_PROTECT_DIR: '/mine' is not allowed: protect_dir is "
				"'/memory' ($S:2), and only the site's zero.yaml sets it");
	free_scene(&scene);
}
END_TEST

START_TEST(locks_bind_users)
{
	struct scene scene = {.where = {.node = "n1"}};

	scene.site = site_of("version: 1\n"
			     "locked: [backend]\n"
			     "defaults: {backend: cuda}\n"
			     "limits: {stage: {max: 2}}\n"
			     "nodes:\n"
			     "  n1:\n"
			     "    locked:\n"
			     "      - stage\n"
			     "      - report\n"
			     "    defaults: {report: /r}\n");
	resolves_to(&scene, ZERO_OPT_BACKEND, "cuda", "$S:3");
	set_user(&scene, ZERO_OPT_BACKEND, "host", "--zero-backend");
	resolve_refused(&scene, "--zero-backend: host is not allowed: backend is locked at cuda "
				"($S:3) by $S:2");
	/* but the site's own value may be said again */
	set_user(&scene, ZERO_OPT_BACKEND, "cuda", "--zero-backend");
	resolves_to(&scene, ZERO_OPT_BACKEND, "cuda", "--zero-backend");
	set_user(&scene, ZERO_OPT_REPORT, "/r", "ZERO_REPORT");
	resolves_to(&scene, ZERO_OPT_REPORT, "/r", "ZERO_REPORT");
	zero_settings_clear(&scene.user);
	scene.user = (struct zero_settings){0};
	set_user(&scene, ZERO_OPT_STAGE, "1", "ZERO_STAGE");
	resolve_refused(&scene, "ZERO_STAGE: 1 is not allowed: stage is locked at 2 (default, at "
				"most 2 by $S:4) by $S:8");
	scene.where.node = "n2";
	resolves_to(&scene, ZERO_OPT_STAGE, "1", "ZERO_STAGE");
	add_file(&scene, "version: 1\ndefaults:\n  report: /x\n");
	resolves_to(&scene, ZERO_OPT_REPORT, "/x", "$U:3");
	scene.where.node = "n1";
	zero_settings_clear(&scene.user);
	add_file(&scene, "version: 1\ndefaults:\n  report: /x\n");
	resolve_refused(&scene,
			"$U:3: '/x' is not allowed: report is locked at '/r' ($S:10) by $S:9");
	free_scene(&scene);
}
END_TEST

static void clamps_to(struct scene *scene, uint64_t number, uint64_t clamped, const char *origin)
{
	const enum zero_option_id id = ZERO_OPT_STREAM_THRESHOLD;
	char expected[WHY];

	resolve(scene);
	ck_assert(zero_config_clamp(scene->site, &scene->where, id, number, &scene->resolved));
	ck_assert_int_eq(scene->resolved.value[id].kind, ZERO_VALUE_NUMBER);
	ck_assert_uint_eq(scene->resolved.value[id].number, clamped);
	expand(origin, expected, sizeof expected);
	ck_assert_str_eq(scene->resolved.origin[id], expected);
}

START_TEST(what_was_auto_is_clamped_later)
{
	struct scene scene = {.where = {.node = "n1"}};

	scene.site = site_of("version: 1\n"
			     "limits: {stream_threshold: {min: 1M, max: 1G}}\n"
			     "nodes: {n1: {limits: {stream_threshold: {max: 64M}}}}\n");
	set_user(&scene, ZERO_OPT_STREAM_THRESHOLD, "auto", "--zero-stream-threshold");
	resolves_to(&scene, ZERO_OPT_STREAM_THRESHOLD, "auto", "--zero-stream-threshold");
	clamps_to(&scene, 32 * MB, 32 * MB, "--zero-stream-threshold");
	clamps_to(&scene, 65 * MB, 64 * MB, "--zero-stream-threshold, at most 64M by $S:3");
	clamps_to(&scene, 5, MB, "--zero-stream-threshold, at least 1M by $S:2");
	ck_assert(zero_config_clamp(NULL, &scene.where, ZERO_OPT_STREAM_THRESHOLD, 5,
				    &scene.resolved));
	ck_assert_uint_eq(scene.resolved.value[ZERO_OPT_STREAM_THRESHOLD].number, 5);
	/* an auto that contradicts nothing of its own still meets the site's contradictions */
	zero_config_free(scene.site);
	scene.where.gpu = "x";
	scene.site = site_of("version: 1\n"
			     "gpus: {x: {limits: {stream_threshold: {min: 1G}}}}\n"
			     "nodes: {n1: {limits: {stream_threshold: {max: 64M}}}}\n");
	resolve_refused(&scene,
			"$S:2: stream_threshold must be at least 1G here, but at most 64M by "
			"line 3: no value satisfies both");
	free_scene(&scene);
}
END_TEST

struct list {
	char text[400];
	int most;
};

static bool add_variable(void *context, const char *name, const char *value)
{
	struct list *list = context;

	snprintf(list->text + strlen(list->text), sizeof list->text - strlen(list->text), "%s=%s;",
		 name, value);
	return --list->most > 0;
}

static void variables_are(const struct zero_config *site, const struct zero_where *where,
			  const char *expected)
{
	struct list list = {.most = 100};

	ck_assert(zero_config_env(site, where, add_variable, &list));
	ck_assert_str_eq(list.text, expected);
}

START_TEST(variables_of_the_most_special_section)
{
	struct zero_config *site = site_of("version: 1\n"
					   "nodes:\n"
					   "  n1: {env: {A: node, N: x=y}}\n"
					   "partitions:\n"
					   "  p: {env: {A: partition, P: ''}}\n"
					   "gpus:\n"
					   "  \"*\": {env: {A: gpu, G: 2}}\n"
					   "env: {A: top, T: 'yes'}\n");
	struct zero_where where = {0};
	struct list list = {.most = 2};

	variables_are(site, &where, "A=top;T=yes;");
	where.gpu = "x";
	variables_are(site, &where, "T=yes;A=gpu;G=2;");
	where.partition = "p";
	variables_are(site, &where, "T=yes;G=2;A=partition;P=;");
	where.node = "n1";
	variables_are(site, &where, "T=yes;G=2;P=;A=node;N=x=y;");
	where.partition = "q";
	where.gpu = NULL;
	variables_are(site, &where, "T=yes;A=node;N=x=y;");
	ck_assert(!zero_config_env(site, &where, add_variable, &list));
	ck_assert_str_eq(list.text, "T=yes;A=node;");
	variables_are(NULL, &where, "");
	zero_config_free(site);
}
END_TEST

START_TEST(the_installed_file)
{
	static const char *const sections[] = {"version", "enabled",    "telemetry", "defaults",
					       "limits",  "locked",     "env",       "gpus",
					       "qos",     "partitions", "accounts",  "nodes"};
	struct scene scene = {0};
	const char *origin;
	size_t length;
	char *text = installed(&length), *all = uncommented(text);

	scene.site = site_of(text);
	ck_assert_int_eq(zero_config_enabled(scene.site, &scene.where, &origin),
			 ZERO_ENABLED_OPT_IN);
	variables_are(scene.site, &scene.where, "");
	resolve(&scene);
	ck_assert_msg(scene.ok, "%s", scene.why);
	for (size_t i = 0; i < ZERO_OPTIONS; i++)
		ck_assert_str_eq(scene.resolved.origin[i], "default");
	zero_config_free(scene.site);

	scene.site = site_of(all);
	scene.where = (struct zero_where){.node = "n2",
					  .partition = "debug",
					  .gpu = "NVIDIA H100 80GB HBM3",
					  .vram_total = 80 * GB};
	resolve(&scene);
	ck_assert_msg(scene.ok, "%s", scene.why);
	ck_assert_uint_eq(scene.resolved.value[ZERO_OPT_STREAM_CHUNK].number, 64 * MB);
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];
		char line[64];

		if (!(option->where & ZERO_IN_YAML))
			continue;
		snprintf(line, sizeof line, "\n#  %s: ", option->name);
		ck_assert_msg(strstr(text, line) != NULL, "%s is not in the file", option->name);
		/* each example is a statement with the compiled default, except for the paths */
		ck_assert_msg(strcmp(scene.resolved.origin[i], "default") != 0, "%s", option->name);
		snprintf(line, sizeof line, "\n#  %s: %s\n", option->name, option->default_text);
		ck_assert_msg(option->type == ZERO_TYPE_PATH || strstr(text, line), "%s is not %s",
			      option->name, option->default_text);
	}
	for (size_t i = 0; i < COUNT_OF(sections); i++) {
		char line[64];

		snprintf(line, sizeof line, "\n%s:", sections[i]);
		ck_assert_msg(strstr(all, line) != NULL, "%s is not in the file", sections[i]);
	}
	variables_are(scene.site, &scene.where, "NCCL_SOCKET_IFNAME=eth1;");
	free(text);
	free(all);
	free_scene(&scene);
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("resolve");

	tcase_add_unchecked_fixture(tests, make_folder, remove_folder);
	tcase_add_test(tests, each_layer_overrides_the_one_below);
	tcase_add_test(tests, of_several_matches_the_last_counts);
	tcase_add_test(tests, limits_refuse_users_and_clamp_defaults);
	tcase_add_test(tests, the_narrowest_limit_counts);
	tcase_add_test(tests, percentages_need_the_total);
	tcase_add_test(tests, a_size_and_a_percentage_both_bind);
	tcase_add_test(tests, the_site_alone_sets_protect_dir);
	tcase_add_test(tests, locks_bind_users);
	tcase_add_test(tests, what_was_auto_is_clamped_later);
	tcase_add_test(tests, variables_of_the_most_special_section);
	tcase_add_test(tests, the_installed_file);
	return run_cases(tests, NULL);
}
