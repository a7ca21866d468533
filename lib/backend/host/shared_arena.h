/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena is memory of one rank that the other ranks of its node can map. It is a file in memory
 * without a name, far larger than what is ever used of it: pages appear when they are touched and
 * go when they are freed. A peer that has mapped the file once sees all that is ever allocated in
 * it.
 */
#ifndef ZERO_SHARED_ARENA_H
#define ZERO_SHARED_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct zero_arena;

enum { ZERO_ARENA_PAGE = 4096 };

/* Addresses without memory, which the caller unmaps; at a multiple of the huge page size if they
   are as many. NULL, with errno, if there is no room. */
char *zero_arena_addresses(size_t bytes);
/* huge_file.c: an empty file in memory that has huge pages. -1: memfd has them too, or this system
   does not let users have such a file. */
int zero_huge_file(void);
/* NULL, with errno, if the system has no memfd or no room for it. */
struct zero_arena *zero_arena_new(size_t bytes);
/* Unmaps and closes the file. Peers' mappings stay until they unmap them. NULL is a no-op. */
void zero_arena_delete(struct zero_arena *arena);
/* Maps an arena's file, this rank's or a peer's. The caller unmaps it. NULL, with errno, if there
   is no room. */
void *zero_arena_map(int file, size_t bytes);
char *zero_arena_base(const struct zero_arena *arena);
int zero_arena_file(const struct zero_arena *arena);
bool zero_arena_contains(const struct zero_arena *arena, const void *data);

/* Allocates `bytes`, a multiple of ZERO_ARENA_PAGE; all are 0. NULL if the arena is full. Safe from
   any thread. */
char *zero_arena_alloc(struct zero_arena *arena, size_t bytes);
/* Frees what zero_arena_alloc returned for that many bytes. */
void zero_arena_free(struct zero_arena *arena, char *data, size_t bytes);

#endif
