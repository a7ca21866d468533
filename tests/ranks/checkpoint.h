/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints as others write them: a folder of safetensors, in one file or in several. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <sys/stat.h>

#include "ranks.h"

/* What a file has. */
struct file_tensor {
	const char *name;
	zero_dtype dtype;
	int ndim;
	size_t shape[3], bytes;
	const unsigned char *values;
	size_t shard; /* the file */
};

static void shard_name(size_t shards, size_t shard, char *name, size_t size)
{
	if (shards == 1)
		snprintf(name, size, "model.safetensors");
	else
		snprintf(name, size, "model-%05zu-of-%05zu.safetensors", shard + 1, shards);
}

static FILE *make_file(const char *folder, const char *name)
{
	char path[1200];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "wb");
	check(file, "cannot make %s", path);
	return file;
}

static size_t append_entry(char *header, size_t size, size_t length,
			   const struct file_tensor *tensor, size_t offset)
{
	static const char *const names[] = {
		[ZERO_F32] = "F32",        [ZERO_F16] = "F16",   [ZERO_BF16] = "BF16",
		[ZERO_F64] = "F64",        [ZERO_I64] = "I64",   [ZERO_I32] = "I32",
		[ZERO_U8] = "U8",          [ZERO_BOOL] = "BOOL", [ZERO_F8_E4M3] = "F8_E4M3",
		[ZERO_F8_E5M2] = "F8_E5M2"};
	char *at = header + length;

	at += snprintf(at, size - length, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
		       length > 1 ? "," : "", tensor->name, names[tensor->dtype]);
	for (int d = 0; d < tensor->ndim; d++)
		at += snprintf(at, size - (size_t)(at - header), "%s%zu", d ? "," : "",
			       tensor->shape[d]);
	at += snprintf(at, size - (size_t)(at - header), "],\"data_offsets\":[%zu,%zu]}", offset,
		       offset + tensor->bytes);
	check((size_t)(at - header) < size, "the header is too long");
	return (size_t)(at - header);
}

/* Not padded: tensors begin at any byte. A file that no tensor chose is not made, but for the only
   one. */
static void write_shard(const char *folder, const struct file_tensor *tensors, size_t count,
			size_t shards, size_t shard)
{
	char name[64], header[16384] = "{";
	size_t offset = 0, length = 1;
	uint64_t bytes;
	FILE *file;

	for (size_t i = 0; i < count; i++) {
		if (tensors[i].shard != shard)
			continue;
		length = append_entry(header, sizeof(header), length, &tensors[i], offset);
		offset += tensors[i].bytes;
	}
	if (length == 1 && shards > 1)
		return;
	header[length++] = '}';
	shard_name(shards, shard, name, sizeof(name));
	file = make_file(folder, name);
	bytes = length;
	fwrite(&bytes, sizeof(bytes), 1, file);
	fwrite(header, 1, length, file);
	for (size_t i = 0; i < count; i++)
		if (tensors[i].shard == shard)
			fwrite(tensors[i].values, 1, tensors[i].bytes, file);
	check(!ferror(file) && !fclose(file), "cannot write %s", name);
}

/* Called on one rank. The folder is made. */
static void write_checkpoint(const char *folder, const struct file_tensor *tensors, size_t count,
			     size_t shards)
{
	char name[64];
	FILE *file;

	check(!mkdir(folder, 0700), "no folder %s", folder);
	for (size_t shard = 0; shard < shards; shard++)
		write_shard(folder, tensors, count, shards, shard);
	if (shards == 1)
		return;
	file = make_file(folder, "model.safetensors.index.json");
	fprintf(file, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
	for (size_t i = 0; i < count; i++) {
		shard_name(shards, tensors[i].shard, name, sizeof(name));
		fprintf(file, "%s\"%s\":\"%s\"", i ? "," : "", tensors[i].name, name);
	}
	fprintf(file, "}}");
	check(!fclose(file), "cannot write the index");
}

#endif
