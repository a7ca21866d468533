/* SPDX-License-Identifier: Apache-2.0 */
/* Counts memory by kind, and enforces the limit of the device. Called with the pool's lock held. */
#ifndef ZERO_ACCOUNT_H
#define ZERO_ACCOUNT_H

#include "backend.h"

struct zero_account {
	union {
		zero_bytes by_kind[ZERO_MEM_KINDS]; /* its members are in the order of the kinds */
		zero_memory memory;
	};
	size_t limit; /* of memory.total.now; SIZE_MAX: none */
	size_t held;  /* of ZERO_MEM_CALLER, see hold in backend.h */
	/* The highest total since they were read last, and the bytes of each kind at that time. */
	size_t peak;
	size_t kinds_at_peak[ZERO_MEM_KINDS];
};

void zero_account_init(struct zero_account *account);
/* ZERO_E_MEMORY if `bytes` more of that kind would pass the limit. */
zero_status zero_account_check(const struct zero_account *account, enum zero_memory_kind kind,
			       size_t bytes);
void zero_account_add(struct zero_account *account, enum zero_memory_kind kind, size_t bytes);
void zero_account_remove(struct zero_account *account, enum zero_memory_kind kind, size_t bytes);
void zero_account_hold(struct zero_account *account, size_t bytes);
/* See memory in backend.h. */
void zero_account_read(struct zero_account *account, zero_memory *memory,
		       size_t at_peak[ZERO_MEM_KINDS]);
void zero_bytes_add(zero_bytes *bytes, size_t more);
/* "gathered parameters". ZERO_MEM_KINDS names a block that each of its ranks counts in part. */
const char *zero_memory_kind_name(enum zero_memory_kind kind);

#endif
