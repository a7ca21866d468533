/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's memory that the other ranks of its node can map: a file without a name, far larger
 * than what is ever used of it, whose pages come when they are touched and go when they are freed.
 * A peer that has mapped it once reaches all that is ever allocated there.
 */
#ifndef ZERO_SHARED_ARENA_H
#define ZERO_SHARED_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct zero_arena;

enum { ZERO_ARENA_PAGE = 4096 };

/* NULL, with errno, if the machine has no room for it or no such files. */
struct zero_arena *zero_arena_new(size_t bytes);
/* Unmaps and closes; what peers have mapped stays until they do the same. */
void zero_arena_delete(struct zero_arena *arena); /* NULL is legal */
/* An arena's file, this rank's or a peer's, from an address where a huge page can begin. NULL, with
   errno, if there is no room; to be unmapped by the caller. */
void *zero_arena_map(int file, size_t bytes);
char *zero_arena_base(const struct zero_arena *arena);
int zero_arena_file(const struct zero_arena *arena);
bool zero_arena_holds(const struct zero_arena *arena, const void *data);

/* `bytes` is a multiple of ZERO_ARENA_PAGE; all zero. NULL if it is full. Safe from any thread. */
char *zero_arena_alloc(struct zero_arena *arena, size_t bytes);
void zero_arena_free(struct zero_arena *arena, char *data, size_t bytes);

#endif
