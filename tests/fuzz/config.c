/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a site's file and a user's, and resolves the options. The input is both files, node,
 * partition, GPU, and the user's options as in ZERO_RESOLVED, with a line "@@" between them. The
 * last byte is the memory of the GPU.
 */
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spank/yaml/site_config_private.h"
#include "fuzz.h"
#include "spank/yaml/hostlist.h"

enum { WHY = 1024 };

struct place {
	char path[32];
	int file;
};

/* Opens a file in memory that is accepted as the site's. */
static void open_place(struct place *place)
{
	place->file = memfd_create("fuzz", MFD_CLOEXEC);
	must(place->file >= 0 && !fchmod(place->file, 0644), "no file in memory");
	snprintf(place->path, sizeof(place->path), "/proc/self/fd/%d", place->file);
}

static void write_place(struct place *place, const char *text, size_t length)
{
	if (!place->path[0])
		open_place(place);
	must(!ftruncate(place->file, 0) && pwrite(place->file, text, length, 0) == (ssize_t)length,
	     "the file is not written");
}

static struct zero_config *read_site(const char *text, size_t length)
{
	static struct place place;
	struct zero_config *config;
	char *why = fuzz_why(WHY);

	write_place(&place, text, length);
	config = zero_config_read(place.path, ZERO_CONFIG_SITE, why, WHY);
	if (!config) {
		fuzz_sentence(why, WHY);
		must(strncmp(why, place.path, strlen(place.path)) == 0, "no path: %s", why);
	}
	free(why);
	return config;
}

/* Adds the options of the user's file. */
static void add_file(const char *text, size_t length, struct zero_settings *user_options)
{
	static struct place place;
	char *why = fuzz_why(WHY);

	write_place(&place, text, length);
	must(zero_settings_set(user_options, ZERO_OPT_CONFIG, place.path, "--flag", why, WHY), "%s",
	     why);
	if (!zero_config_add_file(user_options, why, WHY)) {
		fuzz_sentence(why, WHY);
		must(strncmp(why, place.path, strlen(place.path)) == 0, "no path: %s", why);
	}
	free(why);
}

static bool applies(const struct section *section, const struct zero_where *where)
{
	switch (section->kind) {
	case SECTION_GPUS:
		return where->gpu && fnmatch(section->pattern, where->gpu, 0) == 0;
	case SECTION_PARTITIONS:
	case SECTION_ACCOUNTS:
	case SECTION_QOS:
		return where->partition && strcmp(section->pattern, where->partition) == 0;
	case SECTION_NODES:
		return where->node && zero_hostlist_has(section->pattern, where->node);
	default:
		return section->kind == SECTION_TOP;
	}
}

/* No value may be beyond a limit that applies. */
static void check_limits(const struct zero_config *site, const struct zero_where *where,
			 const struct zero_settings *resolved)
{
	for (size_t s = 0; site && s < site->count; s++) {
		const struct section *section = &site->sections[s];

		for (size_t i = 0; applies(section, where) && i < section->count; i++) {
			const struct statement *statement = &section->statements[i];
			enum zero_option_id id = statement->id;

			must(!zero_statement_forbids(statement, id, &resolved->value[id],
						     where->vram_total),
			     "%s is beyond line %zu", zero_option_table[id].name, statement->line);
		}
	}
}

/* ZERO_RESOLVED must parse back to the same options. */
static void check_round_trip(const struct zero_settings *resolved)
{
	char *all = zero_settings_format(resolved), *why = fuzz_why(WHY), *again;
	struct zero_settings other;

	must(all && zero_settings_init(&other), "no memory");
	must(zero_settings_parse(&other, all, "again", why, WHY), "%s", why);
	again = zero_settings_format(&other);
	must(again && strcmp(all, again) == 0, "%s is not\n%s", all, again ? again : "");
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		must(resolved->origin[i] && *resolved->origin[i], "there is no origin");
		fuzz_clean(resolved->origin[i], strlen(resolved->origin[i]) + 1);
	}
	zero_settings_clear(&other);
	free(again);
	free(all);
	free(why);
}

struct names {
	const char *name[ZERO_CONFIG_VARIABLES];
	size_t count;
};

static bool check_variable(void *context, const char *name, const char *value)
{
	struct names *names = context;

	must(*name && !strchr(name, '='), "'%s' is no name", name);
	must(value && strcmp(name, "LD_PRELOAD") != 0, "%s is set", name);
	must(names->count < ZERO_CONFIG_VARIABLES, "too many variables");
	for (size_t i = 0; i < names->count; i++)
		must(strcmp(names->name[i], name) != 0, "%s occurs twice", name);
	names->name[names->count++] = name;
	return true;
}

static void resolve(const struct zero_config *site, const struct zero_settings *user_options,
		    const struct zero_where *where)
{
	struct zero_settings resolved;
	struct names names = {.count = 0};
	char *why = fuzz_why(WHY);

	if (zero_config_resolve(site, user_options, where, &resolved, why, WHY)) {
		check_limits(site, where, &resolved);
		check_round_trip(&resolved);
		zero_settings_clear(&resolved);
	} else {
		fuzz_sentence(why, WHY);
	}
	must(zero_config_env(site, where, check_variable, &names), "the end");
	must(zero_config_enabled(site, where, NULL) <= ZERO_ENABLED_ON, "enabled");
	must(zero_config_may_be_enabled(site, where) ||
		     zero_config_enabled(site, where, NULL) == ZERO_ENABLED_OFF,
	     "where zero may be enabled");
	free(why);
}

/* Sets each option of the text. */
static void set_options(struct zero_settings *user_options, char *text)
{
	char *next = text, why[WHY];

	for (char *word = text; word; word = next) {
		const struct zero_option *option;
		char *equals;

		next = strchr(word, ' ');
		if (next)
			*next++ = '\0';
		equals = strchr(word, '=');
		option = equals ? zero_option_find(word, (size_t)(equals - word)) : NULL;
		if (option)
			zero_settings_set(user_options,
					  (enum zero_option_id)(option - zero_option_table),
					  equals + 1, "--flag", why, sizeof(why));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz fuzz = {data, size};
	size_t site_length, user_length;
	char *site_text = fuzz_part(&fuzz, &site_length),
	     *user_text = fuzz_part(&fuzz, &user_length);
	char *node = fuzz_text(&fuzz), *partition = fuzz_text(&fuzz), *gpu = fuzz_text(&fuzz);
	char *words = fuzz_text(&fuzz);
	struct zero_config *site = NULL;
	struct zero_settings user_options = {.origin = {NULL}};
	/* one name for all three, which are compared alike */
	struct zero_where where = {.node = node,
				   .partition = partition,
				   .account = partition,
				   .qos = partition,
				   .gpu = gpu};

	where.vram_total = size ? (uint64_t)(data[size - 1] & 3) << 36 : 0;
	if (site_text)
		site = read_site(site_text, site_length);
	set_options(&user_options, words);
	if (user_text)
		add_file(user_text, user_length, &user_options);
	if (site || user_text)
		resolve(site, &user_options, &where);
	zero_settings_clear(&user_options);
	zero_config_free(site);
	free(site_text);
	free(user_text);
	free(node);
	free(partition);
	free(gpu);
	free(words);
	return 0;
}
