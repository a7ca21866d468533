/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over the members of a JSON object one at a time. A header may claim 100 MB of JSON, and as
 * a tree of values that is up to a hundred times as much memory; so only one member's value is a
 * tree at any time, and a bounded one.
 */
#ifndef ZERO_FILES_WALK_H
#define ZERO_FILES_WALK_H

#include "files/input.h"

#include <jansson.h>

struct walk_name {
	char *text;
	size_t at;
};

struct walk {
	const char *path; /* for sentences */
	const char *text;
	size_t bytes;
	size_t at;               /* the next byte of text */
	uint64_t base;           /* where text begins in the file */
	struct walk_name *names; /* of the members so far, owned */
	size_t count, room;
};

/* A sentence about the byte `at` of the text: file, byte in the file, line and column. */
zero_status walk_fail(const struct walk *walk, size_t at, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Expects an object at walk->at. */
zero_status walk_begin(struct walk *walk);
/*
 * The next member's name, the walk's own, with walk->at at its value; NULL after the last member.
 * Names that came twice are refused there.
 */
zero_status walk_next(struct walk *walk, const char **name);
/* The value at walk->at as a tree; json_decref it. */
zero_status walk_value(struct walk *walk, json_t **value);
/* Expects an array at walk->at. */
zero_status walk_array(struct walk *walk);
/* Before its item number `i`, counted from 0: walk->at is where it is if there is one more, else
   behind the array. */
zero_status walk_item(struct walk *walk, size_t i, bool *more);
/* Begins a walk over the object that is the value at outer->at, and ends it. */
zero_status walk_into(const struct walk *outer, struct walk *inner);
void walk_out(struct walk *outer, struct walk *inner);
/* After the outermost object: nothing but white space may follow. */
zero_status walk_end(const struct walk *walk);
void walk_free(struct walk *walk);

#endif
