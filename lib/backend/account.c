/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "account.h"
#include "comm.h"

static const char *const kind_names[ZERO_MEM_KINDS + 1] = {
	[ZERO_MEM_SHARDS] = "shards",
	[ZERO_MEM_GATHERED] = "gathered parameters",
	[ZERO_MEM_GRADIENTS] = "gradients",
	[ZERO_MEM_OPTIMIZER] = "optimizer states",
	[ZERO_MEM_STAGING] = "communication buffers",
	[ZERO_MEM_CALLER] = "the program's own tensors",
	[ZERO_MEM_PINNED] = "page-locked host memory",
	[ZERO_MEM_OFFLOAD] = "host memory",
	[ZERO_MEM_CHECKPOINT] = "copies for a checkpoint",
	[ZERO_MEM_KINDS] = "memory for several ranks",
};

const char *zero_memory_kind_name(enum zero_memory_kind kind)
{
	return kind_names[kind];
}

void zero_bytes_add(zero_bytes *bytes, size_t more)
{
	bytes->now += more;
	if (bytes->now > bytes->peak)
		bytes->peak = bytes->now;
}

void zero_account_init(struct zero_account *account)
{
	*account = (struct zero_account){.limit = SIZE_MAX};
}

static zero_status fail_limit(const struct zero_account *account, enum zero_memory_kind kind,
			      size_t bytes)
{
	char held[512] = "";
	size_t at = 0;

	for (int i = 0; i < ZERO_MEM_KINDS; i++)
		if (account->by_kind[i].now && zero_on_device((enum zero_memory_kind)i) &&
		    at < sizeof(held))
			at += (size_t)snprintf(held + at, sizeof(held) - at, "%s%zu are %s",
					       at ? ", " : "", account->by_kind[i].now,
					       kind_names[i]);
	return zero_core->fail(ZERO_E_MEMORY,
			       "no memory for %zu bytes of %s: of the budget of %zu bytes %s; a "
			       "higher --zero-stage, --zero-offload=optimizer or a smaller "
			       "--zero-vram-reserve leaves more",
			       bytes, kind_names[kind], account->limit, at ? held : "none is used");
}

zero_status zero_account_check(const struct zero_account *account, enum zero_memory_kind kind,
			       size_t bytes)
{
	if (!zero_on_device(kind) || account->limit == SIZE_MAX ||
	    (account->total.now <= account->limit && bytes <= account->limit - account->total.now))
		return ZERO_OK;
	return fail_limit(account, kind, bytes);
}

static void set_peak(struct zero_account *account)
{
	account->peak = account->total.now;
	for (int i = 0; i < ZERO_MEM_KINDS; i++)
		account->kinds_at_peak[i] = account->by_kind[i].now;
}

void zero_account_add(struct zero_account *account, enum zero_memory_kind kind, size_t bytes)
{
	zero_bytes_add(&account->by_kind[kind], bytes);
	if (zero_on_device(kind))
		zero_bytes_add(&account->total, bytes);
	if (account->total.now > account->peak)
		set_peak(account);
}

void zero_account_at_peak(struct zero_account *account, size_t kinds[ZERO_MEM_KINDS])
{
	for (int i = 0; i < ZERO_MEM_KINDS; i++)
		kinds[i] = account->kinds_at_peak[i];
	set_peak(account);
}

void zero_account_remove(struct zero_account *account, enum zero_memory_kind kind, size_t bytes)
{
	account->by_kind[kind].now -= bytes;
	if (zero_on_device(kind))
		account->total.now -= bytes;
}

void zero_account_read(const struct zero_account *account, zero_memory *memory)
{
	memory->shards = account->by_kind[ZERO_MEM_SHARDS];
	memory->gathered = account->by_kind[ZERO_MEM_GATHERED];
	memory->gradients = account->by_kind[ZERO_MEM_GRADIENTS];
	memory->optimizer = account->by_kind[ZERO_MEM_OPTIMIZER];
	memory->staging = account->by_kind[ZERO_MEM_STAGING];
	memory->caller = account->by_kind[ZERO_MEM_CALLER];
	memory->pinned = account->by_kind[ZERO_MEM_PINNED];
	memory->offload = account->by_kind[ZERO_MEM_OFFLOAD];
	memory->checkpoint = account->by_kind[ZERO_MEM_CHECKPOINT];
	memory->total = account->total;
}
