/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that is slow, full, broken or watched, for programs that are linked with disk.c: the
 * library calls these functions instead of the C library's. A sync does nothing but be counted.
 */
#ifndef DISK_H
#define DISK_H

#include <stdatomic.h>
#include <stdbool.h>

/* All are 0 at first: the disk does what it should. Numbers count down from 1. */
extern struct disk {
	atomic_int slow_us;         /* how long each write takes */
	atomic_int long_at;         /* the number of the write that takes 50 ms */
	atomic_int full_at;         /* the number of the write that fails for want of space */
	atomic_int sync_fails_at;   /* the number of the sync that fails */
	atomic_int rename_fails_at; /* the number of the rename that fails */
	atomic_bool no_exchange;    /* two names cannot be exchanged */
	atomic_int most_bytes;      /* that a read or a write takes at once */
	atomic_int killed_at; /* the number of the logged call at which the process is killed */
	atomic_int writes;    /* counts the writes that were begun */
} disk;

/*
 * From now on each call that changes what is below the folder `below`, or syncs it, is a line
 * "<process> <call> <path> <other path>" of the file `log`, written before the call. Several
 * processes may write to one log.
 */
void disk_watch(const char *log, const char *below);

#endif
