/* SPDX-License-Identifier: Apache-2.0 */
/* Compares values with the bounds of `limits`, and formats both for messages. */
#include <string.h>

#include "site_config_private.h"

struct value_text zero_value_for_message(const struct zero_option *option,
					 const struct zero_value *value)
{
	struct value_text result = {""};

	if (value->kind == ZERO_VALUE_TEXT) {
		memcpy(result.text, zero_quote(value->text, strlen(value->text)).text,
		       sizeof result.text);
		return result;
	}
	if (value->kind != ZERO_VALUE_NUMBER || option->type == ZERO_TYPE_INTEGER ||
	    option->type == ZERO_TYPE_CHOICE || option->type == ZERO_TYPE_CHOICE_OR_INTEGER)
		zero_value_format(option, value, result.text, sizeof result.text);
	else
		zero_size_format(value->number, result.text, sizeof result.text);
	return result;
}

/* Converts a size or a percentage to bytes. */
static uint64_t bytes_of(const struct zero_value *value, uint64_t vram_total)
{
	if (value->kind == ZERO_VALUE_NUMBER)
		return value->number;
	return vram_total / 100 * value->number + vram_total % 100 * value->number / 100;
}

static bool is_amount(const struct zero_value *value)
{
	return value->kind == ZERO_VALUE_NUMBER || value->kind == ZERO_VALUE_PERCENT;
}

bool zero_value_compare(const struct zero_value *a, const struct zero_value *b, uint64_t vram_total,
			int *order)
{
	uint64_t left = a->number, right = b->number;

	if (!is_amount(a) || !is_amount(b))
		return false;
	if (a->kind != b->kind) {
		if (!vram_total)
			return false;
		left = bytes_of(a, vram_total);
		right = bytes_of(b, vram_total);
	}
	*order = (left > right) - (left < right);
	return true;
}

bool zero_statement_forbids(const struct statement *bound, enum zero_option_id id,
			    const struct zero_value *value, uint64_t vram_total)
{
	int order;

	if ((bound->kind != STATEMENT_MIN && bound->kind != STATEMENT_MAX) || bound->id != id)
		return false;
	if (!zero_value_compare(value, &bound->value, vram_total, &order))
		return false;
	return bound->kind == STATEMENT_MAX ? order > 0 : order < 0;
}
