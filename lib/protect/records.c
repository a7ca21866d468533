/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the files in a node's folder, and what a record is. */
#include <stdio.h>
#include <string.h>

#include "protect/protect_internal.h"

static const char magic[8] = "zeroprt1";

void zero_protect_format(const struct zero_protect_name *name, char text[ZERO_PROTECT_NAME_BYTES])
{
	snprintf(text, ZERO_PROTECT_NAME_BYTES, "%016llx-%08x-%u-%s.%s",
		 (unsigned long long)name->token, (unsigned)name->rank, name->slot & 1,
		 name->copy ? "copy" : "own", name->record ? "record" : "shard");
}

bool zero_protect_parse(const char *text, struct zero_protect_name *name)
{
	char again[ZERO_PROTECT_NAME_BYTES], copy[5], record[7];
	unsigned long long token;
	unsigned rank, slot;

	if (sscanf(text, "%16llx-%8x-%1u-%4[a-z].%6[a-z]", &token, &rank, &slot, copy, record) != 5)
		return false;
	*name = (struct zero_protect_name){.token = token,
					   .rank = (int32_t)rank,
					   .slot = slot,
					   .copy = !strcmp(copy, "copy"),
					   .record = !strcmp(record, "record")};
	/* A file has one name only. */
	zero_protect_format(name, again);
	return !strcmp(text, again);
}

uint64_t zero_protect_record_bytes(const struct zero_protect_record *record)
{
	return sizeof(*record) + record->user_bytes + record->own_bytes + record->manifest_bytes;
}

void zero_protect_seal(const struct zero_files_ops *files, struct zero_protect_record *record)
{
	memcpy(record->magic, magic, sizeof(magic));
	record->seal = 0;
	record->seal = files->checksum(record, zero_protect_record_bytes(record));
}

bool zero_protect_is_whole(const struct zero_files_ops *files, void *data, size_t bytes)
{
	struct zero_protect_record *record = data;
	uint64_t seal;

	if (bytes < sizeof(*record) || memcmp(record->magic, magic, sizeof(magic)) != 0 ||
	    record->user_bytes > bytes || record->own_bytes > bytes ||
	    record->manifest_bytes > bytes || zero_protect_record_bytes(record) != bytes ||
	    record->world < 1 || record->rank < 0 || record->rank >= record->world)
		return false;
	seal = record->seal;
	record->seal = 0;
	record->seal = files->checksum(data, bytes);
	return record->seal == seal;
}
