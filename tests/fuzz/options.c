/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: the first byte says what is tried, and the rest is text of it: a value, all of
 * ZERO_RESOLVED, a misspelt name, a number.
 */
#include "fuzz.h"
#include "core/options.h"

static bool same_value(const struct zero_value *a, const struct zero_value *b)
{
	if (a->kind != b->kind || a->number != b->number || !a->text != !b->text)
		return false;
	return !a->text || strcmp(a->text, b->text) == 0;
}

static void check_value(const struct zero_option *option, const struct zero_value *value)
{
	size_t choices = 0;

	while (option->choices && option->choices[choices])
		choices++;
	if (value->kind == ZERO_VALUE_TEXT)
		must(strlen(value->text) <= option->max, "%s is too long", option->name);
	else if (value->kind == ZERO_VALUE_PERCENT)
		must(value->number <= 100, "%s is too much", option->name);
	else if (value->kind == ZERO_VALUE_NUMBER && option->type == ZERO_TYPE_CHOICE)
		must(value->number < choices, "%s is no choice", option->name);
	else if (value->kind == ZERO_VALUE_NUMBER && option->type == ZERO_TYPE_CHOICE_OR_INTEGER)
		must(value->number >= option->min && value->number <= option->max + choices,
		     "%s is neither a choice nor within its bounds", option->name);
	else if (value->kind == ZERO_VALUE_NUMBER)
		must(value->number >= option->min && value->number <= option->max,
		     "%s is out of bounds", option->name);
}

/* What was understood is understood again when it is written down. */
static void check_again(const struct zero_option *option, const struct zero_value *value)
{
	char *text = zero_value_text(option, value), why[512];
	struct zero_value again;

	must(text, "no memory");
	must(zero_option_parse(option, text, &again, why, sizeof(why)), "%s: %s", option->name,
	     why);
	must(same_value(value, &again), "%s: other value from %s", option->name, text);
	zero_value_clear(&again);
	free(text);
}

static void try_value(struct fuzz *fuzz)
{
	const struct zero_option *option = &zero_option_table[fuzz_byte(fuzz) % ZERO_OPTIONS];
	size_t size = fuzz_byte(fuzz) % 2 ? 512 : 1 + fuzz_byte(fuzz);
	char *text = fuzz_text(fuzz), *why = fuzz_why(size);
	struct zero_value value, before;

	memset(&value, 0xa5, sizeof(value));
	memset(&before, 0xa5, sizeof(before));
	if (zero_option_parse(option, text ? text : "", &value, why, size)) {
		check_value(option, &value);
		check_again(option, &value);
		zero_value_clear(&value);
	} else {
		must(memcmp(&value, &before, sizeof(value)) == 0, "a refused value is taken");
		fuzz_sentence(why, size);
	}
	free(text);
	free(why);
}

/* But for who has said them. */
static void check_same(const struct zero_settings *a, const struct zero_settings *b)
{
	for (size_t i = 0; i < ZERO_OPTIONS; i++)
		must(i == ZERO_OPT_ORIGINS || same_value(&a->value[i], &b->value[i]), "%s differs",
		     zero_option_table[i].name);
}

static void try_settings(struct fuzz *fuzz)
{
	struct zero_settings settings, other;
	char *text = fuzz_text(fuzz), *why = fuzz_why(512), *all, *again;

	must(zero_settings_init(&settings) && zero_settings_init(&other), "no memory");
	if (zero_settings_parse(&settings, text ? text : "", "origin", why, 512)) {
		all = zero_settings_format(&settings);
		must(all, "no memory");
		must(zero_settings_parse(&other, all, "again", why, 512), "%s: %s", all, why);
		check_same(&settings, &other);
		again = zero_settings_format(&other);
		must(again && strcmp(all, again) == 0, "%s is not\n%s", all, again ? again : "");
		free(again);
		free(all);
	} else {
		fuzz_sentence(why, 512);
		must(strncmp(why, "origin: ", 8) == 0, "no origin: %s", why);
		check_same(&settings, &other);
		for (size_t i = 0; i < ZERO_OPTIONS; i++)
			must(strcmp(settings.origin[i], "default") == 0, "an origin has changed");
	}
	zero_settings_clear(&settings);
	zero_settings_clear(&other);
	free(text);
	free(why);
}

/* Names and quotes may be of bytes without an end. */
static void try_name(struct fuzz *fuzz)
{
	unsigned where = fuzz_byte(fuzz) % 16;
	size_t size = 1 + 2 * fuzz_byte(fuzz);
	char *name = malloc(fuzz->left ? fuzz->left : 1), *text = fuzz_why(size);
	struct zero_quoted quoted;

	must(name, "no memory");
	memcpy(name, fuzz->at, fuzz->left);
	quoted = zero_quote(name, fuzz->left);
	fuzz_sentence(quoted.text, sizeof(quoted.text));
	if (!zero_option_find(name, fuzz->left)) {
		zero_option_near(name, fuzz->left, where, text, size);
		fuzz_clean(text, size);
	}
	free(name);
	free(text);
}

static void try_size(struct fuzz *fuzz)
{
	const struct zero_option *option = &zero_option_table[ZERO_OPT_VRAM_FREE];
	uint64_t bytes = fuzz_number(fuzz);
	struct zero_value value;
	char text[32], why[512];

	zero_size_format(bytes, text, sizeof(text));
	must(zero_option_parse(option, text, &value, why, sizeof(why)), "%s", why);
	must(value.kind == ZERO_VALUE_NUMBER && value.number == bytes, "%s is %llu", text,
	     (unsigned long long)bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz fuzz = {data, size};

	switch (fuzz_byte(&fuzz) % 4) {
	case 0:
		try_value(&fuzz);
		break;
	case 1:
		try_settings(&fuzz);
		break;
	case 2:
		try_name(&fuzz);
		break;
	case 3:
		try_size(&fuzz);
		break;
	}
	return 0;
}
