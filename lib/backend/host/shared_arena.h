/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena is memory of one rank that the other ranks of its node can map. It is an anonymous file
 * (memfd), far larger than what is ever used of it: pages appear when they are touched and go when
 * they are freed. A peer that has mapped the file once sees all that is ever allocated in it.
 */
#ifndef ZERO_SHARED_ARENA_H
#define ZERO_SHARED_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct zero_arena;

enum { ZERO_ARENA_PAGE = 4096 };

/*
 * How large an arena is: twice the machine's memory, so that gaps between blocks do no harm. But all
 * arenas of a node must fit into one process's address space.
 */
size_t zero_arena_bytes(int ranks);
/* Addresses without memory, which the caller unmaps; at a multiple of the huge page size if they are
   as many. NULL, with errno, if there is no room. */
char *zero_arena_addresses(size_t bytes);
/* If `mapped`, all of the file is mapped at once, at zero_arena_base, else each block when it is
   allocated. NULL, with errno, if the system has no memfd or no room for it. */
struct zero_arena *zero_arena_new(size_t bytes, bool mapped);
/* Unmaps and closes the file. Peers' mappings stay until they unmap them. NULL is a no-op. */
void zero_arena_delete(struct zero_arena *arena);
/* Maps a part of an arena's file, this rank's or a peer's, at zero_arena_addresses. The caller unmaps
   it. NULL, with errno, if there is no room. */
void *zero_arena_map(int file, size_t at, size_t bytes);
char *zero_arena_base(const struct zero_arena *arena);
int zero_arena_file(const struct zero_arena *arena);

/* Allocates `bytes`, a multiple of ZERO_ARENA_PAGE; all are 0. They begin at byte *at of the file.
   NULL if the arena is full. Safe from any thread. */
char *zero_arena_alloc(struct zero_arena *arena, size_t bytes, size_t *at);
/* Frees what zero_arena_alloc returned for that many bytes. */
void zero_arena_free(struct zero_arena *arena, char *data, size_t at, size_t bytes);

#endif
