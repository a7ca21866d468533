/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

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
	    (account->memory.total.now <= account->limit &&
	     bytes <= account->limit - account->memory.total.now))
		return ZERO_OK;
	return fail_limit(account, kind, bytes);
}

static void set_peak(struct zero_account *account)
{
	account->peak = account->memory.total.now;
	for (int i = 0; i < ZERO_MEM_KINDS; i++)
		account->kinds_at_peak[i] = account->by_kind[i].now;
}

void zero_account_add(struct zero_account *account, enum zero_memory_kind kind, size_t bytes)
{
	zero_bytes_add(&account->by_kind[kind], bytes);
	if (zero_on_device(kind))
		zero_bytes_add(&account->memory.total, bytes);
	if (account->memory.total.now > account->peak)
		set_peak(account);
}

void zero_account_remove(struct zero_account *account, enum zero_memory_kind kind, size_t bytes)
{
	account->by_kind[kind].now -= bytes;
	if (zero_on_device(kind))
		account->memory.total.now -= bytes;
}

void zero_account_hold(struct zero_account *account, size_t bytes)
{
	zero_account_remove(account, ZERO_MEM_CALLER, account->held);
	zero_account_add(account, ZERO_MEM_CALLER, bytes);
	account->held = bytes;
}

void zero_account_read(struct zero_account *account, zero_memory *memory,
		       size_t at_peak[ZERO_MEM_KINDS])
{
	*memory = account->memory;
	if (!at_peak)
		return;
	memcpy(at_peak, account->kinds_at_peak, sizeof(account->kinds_at_peak));
	set_peak(account);
}
