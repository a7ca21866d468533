/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a report's JSON; NULL: no memory. */
#ifndef ZERO_REPORT_VALUES_H
#define ZERO_REPORT_VALUES_H

#include <jansson.h>
#include <math.h>

#include "files/report_content.h"

/* A real, if a reader of JSON cannot hold it as an integer. */
static inline json_t *number(uint64_t value)
{
	return value <= INT64_MAX ? json_integer((json_int_t)value) : json_real((double)value);
}

static inline json_t *real(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

/* Appends; *array becomes NULL if there is no memory. */
static inline void append(json_t **array, json_t *item)
{
	if (*array && json_array_append_new(*array, item)) {
		json_decref(*array);
		*array = NULL;
	} else if (!*array) {
		json_decref(item);
	}
}

/* ---- report_series.c ------------------------------------------------------------------------- */

/* The samples of the ranks that the page shows, or of all if they are few. */
json_t *zero_report_series(const struct zero_report *report);
/* Bytes on the device of the rank with most and of the one with least, over all ranks. */
json_t *zero_report_spread(const struct zero_report *report);

#endif
