/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests of checkpoints. If the first byte is '!', the rest is a complete file. Otherwise it is
 * the text before the seal, and gets a valid seal, as an attacker's file would.
 */
#include <inttypes.h>

#include "files/manifest.h"
#include "fuzz.h"
#include "../unit/files_core.h"

enum { WORLD = 32 }; /* the files of this many ranks are checked */

/* The slices are adjacent in the file and within their tensors. */
static void check_shard(const struct zero_manifest *manifest,
			const struct zero_shard_layout *layout, uint64_t *params, uint64_t *named)
{
	uint64_t at = 0, sums = 0;

	for (size_t i = 0; i < layout->count; i++) {
		const struct zero_shard_slice *slice = &layout->slices[i];

		const struct zero_manifest_tensor *tensor;
		uint64_t values;

		must(slice->tensor < manifest->tensor_count && slice->count, "slice %zu", i);
		tensor = &manifest->tensors[slice->tensor];
		values = zero_manifest_elements(tensor);
		if (slice->kind == ZERO_SAVED_NAMED) {
			must(slice->state < tensor->state_count, "slice %zu is of no state", i);
			values = zero_state_kept(tensor->states[slice->state].block, 0, values)
					 .count;
			named[slice->tensor] += slice->count;
		}
		must(slice->first + slice->count <= values, "slice %zu is beyond its tensor", i);
		must(slice->at == at && slice->first_checksum == sums, "slice %zu is elsewhere", i);
		must(slice->kind == ZERO_SAVED_PARAM || slice->kind == ZERO_SAVED_NAMED ||
			     manifest->states ||
			     (slice->kind == ZERO_SAVED_MASTER && manifest->masters),
		     "there are no states");
		at += slice->bytes;
		sums += (slice->bytes + ZERO_CHECKSUM_BLOCK - 1) / ZERO_CHECKSUM_BLOCK;
		if (slice->kind == ZERO_SAVED_PARAM)
			params[slice->tensor] += slice->count;
	}
	must(layout->bytes == at && layout->checksums == sums, "%" PRIu64 " bytes", layout->bytes);
}

static uint64_t named_values(const struct zero_manifest_tensor *tensor)
{
	uint64_t values = 0;

	for (size_t s = 0; s < tensor->state_count; s++)
		values +=
			zero_state_kept(tensor->states[s].block, 0, zero_manifest_elements(tensor))
				.count;
	return values;
}

/* The files of all ranks have each element once, and each value of a named state. */
static void check_shards(const struct zero_manifest *manifest)
{
	uint64_t *params = calloc(manifest->tensor_count + 1, sizeof(*params));
	uint64_t *named = calloc(manifest->tensor_count + 1, sizeof(*named));
	int refused = 0;

	must(params && named, "no memory");
	for (int rank = 0; rank < manifest->world && rank < WORLD; rank++) {
		struct zero_shard_layout layout;

		if (ops->manifest_shard(manifest, rank, &layout)) {
			fuzz_sentence(sentence, sizeof(sentence));
			must(!layout.slices, "slices of a failed layout");
			refused++;
			continue;
		}
		check_shard(manifest, &layout, params, named);
		free(layout.slices);
	}
	for (size_t i = 0; i < manifest->tensor_count; i++)
		must(refused || manifest->world > WORLD ||
			     (params[i] == zero_manifest_elements(&manifest->tensors[i]) &&
			      named[i] == named_values(&manifest->tensors[i])),
		     "tensor %zu is not in the files", i);
	free(named);
	free(params);
}

/* The manifest can be written, and reads back the same. */
static void check_again(const struct zero_manifest *manifest)
{
	struct zero_manifest *again;
	size_t bytes, length;
	char *text, *other;

	must(!ops->manifest_format(manifest, &text, &bytes), "%s", sentence);
	must(!manifest_parse("again", text, bytes, &again), "%s\n%s", sentence, text);
	must(!ops->manifest_format(again, &other, &length), "%s", sentence);
	must(length == bytes && memcmp(text, other, bytes) == 0, "%s\nis not\n%s", text, other);
	ops->manifest_free(again);
	free(other);
	free(text);
}

static void try(const char *text, size_t bytes)
{
	struct zero_manifest *manifest = (void *)sentence;

	memset(sentence, 1, sizeof(sentence));
	if (manifest_parse("dir/manifest.json", text, bytes, &manifest)) {
		must(!manifest, "a manifest that was refused");
		fuzz_sentence(sentence, sizeof(sentence));
		must(strncmp(sentence, "dir/manifest.json: ", 19) == 0, "no path: %s", sentence);
		return;
	}
	must(manifest && manifest->world > 0, "no ranks");
	check_shards(manifest);
	check_again(manifest);
	ops->manifest_free(manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const size_t tail =
		sizeof(MANIFEST_SEAL MANIFEST_END) - 1 + MANIFEST_CHECKSUM_DIGITS;
	struct fuzz fuzz = {data, size};
	bool raw = fuzz_byte(&fuzz) == '!';
	size_t bytes = fuzz.left + (raw ? 0 : tail);
	/* allocated exactly, so that sanitizers see reads beyond the end */
	char *text = malloc(bytes ? bytes : 1), end[64];

	ops = zero_module_files(&core);
	must(text, "no memory");
	if (fuzz.left)
		memcpy(text, fuzz.at, fuzz.left);
	if (!raw) {
		snprintf(end, sizeof(end), "%s%016" PRIx64 "%s", MANIFEST_SEAL,
			 ops->checksum(text, fuzz.left), MANIFEST_END);
		memcpy(text + fuzz.left, end, tail);
	}
	try(text, bytes);
	free(text);
	return 0;
}
