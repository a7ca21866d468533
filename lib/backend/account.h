/* SPDX-License-Identifier: Apache-2.0 */
/* Memory by kind, and the limit of what is on the device. Whoever calls holds the pool's lock. */
#ifndef ZERO_ACCOUNT_H
#define ZERO_ACCOUNT_H

#include "backend.h"

struct zero_account {
	zero_bytes by_kind[ZERO_MEM_KINDS];
	zero_bytes total; /* of the device */
	size_t limit;     /* of total */
	/* The most that total was since zero_account_at_peak, and each kind at that moment. */
	size_t high;
	size_t at_high[ZERO_MEM_KINDS];
};

void zero_account_init(struct zero_account *account);
/* ZERO_E_MEMORY if so many more bytes of a kind are beyond the limit. */
zero_status zero_account_check(const struct zero_account *account, enum zero_memory_kind kind,
			       size_t bytes);
void zero_account_add(struct zero_account *account, enum zero_memory_kind kind, size_t bytes);
void zero_account_remove(struct zero_account *account, enum zero_memory_kind kind, size_t bytes);
void zero_account_read(const struct zero_account *account, zero_memory *memory);
/* What at_high is; and begins anew. */
void zero_account_at_peak(struct zero_account *account, size_t kinds[ZERO_MEM_KINDS]);
void zero_bytes_add(zero_bytes *bytes, size_t more);
/* "gathered parameters"; for ZERO_MEM_KINDS what is counted elsewhere. */
const char *zero_memory_kind_name(enum zero_memory_kind kind);

#endif
