/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of a report's JSON by their path, "node.budget". A member that is missing or of another
 * type reads as nothing, 0 or "": a page can be made of any JSON.
 */
#ifndef ZERO_PAGE_MEMBERS_H
#define ZERO_PAGE_MEMBERS_H

#include <jansson.h>
#include <stdint.h>

const json_t *member(const json_t *object, const char *path); /* NULL: missing */
double number_at(const json_t *object, const char *path);
uint64_t count_at(const json_t *object, const char *path);
const char *string_at(const json_t *object, const char *path);
/* Value i of an array of numbers. */
double item_at(const json_t *array, size_t i);

#endif
