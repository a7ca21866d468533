/* SPDX-License-Identifier: Apache-2.0 */
/* Counts memory by kind, and enforces the limit of the device. Called with the pool's lock held. */
#ifndef ZERO_ACCOUNT_H
#define ZERO_ACCOUNT_H

#include "backend.h"

struct zero_account {
	zero_bytes by_kind[ZERO_MEM_KINDS];
	zero_bytes total; /* of the kinds on the device */
	size_t limit;     /* of total.now; SIZE_MAX: none */
	/* The highest total since zero_account_at_peak, and the bytes of each kind at that moment. */
	size_t peak;
	size_t kinds_at_peak[ZERO_MEM_KINDS];
};

void zero_account_init(struct zero_account *account);
/* ZERO_E_MEMORY if `bytes` more of that kind would pass the limit. */
zero_status zero_account_check(const struct zero_account *account, enum zero_memory_kind kind,
			       size_t bytes);
void zero_account_add(struct zero_account *account, enum zero_memory_kind kind, size_t bytes);
void zero_account_remove(struct zero_account *account, enum zero_memory_kind kind, size_t bytes);
void zero_account_read(const struct zero_account *account, zero_memory *memory);
/* Copies kinds_at_peak, and starts again from what is in use now. */
void zero_account_at_peak(struct zero_account *account, size_t kinds[ZERO_MEM_KINDS]);
void zero_bytes_add(zero_bytes *bytes, size_t more);
/* "gathered parameters". ZERO_MEM_KINDS names a block that each of its ranks counts in part. */
const char *zero_memory_kind_name(enum zero_memory_kind kind);

#endif
