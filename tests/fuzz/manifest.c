/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests of checkpoints. The first byte says whether the rest is all of a file or what is before
 * the seal, which is then made to fit: somebody may have made all of it up.
 */
#include <inttypes.h>
#include <stdarg.h>

#include "files/manifest.h"
#include "fuzz.h"

enum { WORLD = 32 }; /* up to which all files are laid out */

static char sentence[4096];
static const struct zero_files_ops *ops;

static zero_status keep(zero_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static zero_status keep(zero_status status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(sentence, sizeof(sentence), format, arguments);
	va_end(arguments);
	return status;
}

static const struct zero_core core = {.fail = keep};

/* Its slices are one behind the other and of their tensors. */
static void check_shard(const struct zero_manifest *manifest,
			const struct zero_shard_layout *layout, uint64_t *params)
{
	uint64_t at = 0, sums = 0;

	for (size_t i = 0; i < layout->count; i++) {
		const struct zero_shard_slice *slice = &layout->slices[i];

		must(slice->tensor < manifest->tensor_count && slice->count, "slice %zu", i);
		must(slice->first + slice->count <=
			     zero_manifest_elements(&manifest->tensors[slice->tensor]),
		     "slice %zu is beyond its tensor", i);
		must(slice->at == at && slice->first_checksum == sums, "slice %zu is elsewhere", i);
		must(slice->kind == ZERO_SAVED_PARAM || manifest->states, "there are no states");
		at += slice->bytes;
		sums += (slice->bytes + ZERO_CHECKSUM_BLOCK - 1) / ZERO_CHECKSUM_BLOCK;
		if (slice->kind == ZERO_SAVED_PARAM)
			params[slice->tensor] += slice->count;
	}
	must(layout->bytes == at && layout->checksums == sums, "%" PRIu64 " bytes", layout->bytes);
}

/* All ranks together have each element once. */
static void check_shards(const struct zero_manifest *manifest)
{
	uint64_t *params = calloc(manifest->tensor_count + 1, sizeof(*params));
	int refused = 0;

	must(params, "no memory");
	for (int rank = 0; rank < manifest->world && rank < WORLD; rank++) {
		struct zero_shard_layout layout;

		if (ops->manifest_shard(manifest, rank, &layout)) {
			fuzz_sentence(sentence, sizeof(sentence));
			must(!layout.slices, "something is left");
			refused++;
			continue;
		}
		check_shard(manifest, &layout, params);
		free(layout.slices);
	}
	for (size_t i = 0; i < manifest->tensor_count; i++)
		must(refused || manifest->world > WORLD ||
			     params[i] == zero_manifest_elements(&manifest->tensors[i]),
		     "tensor %zu is not in the files", i);
	free(params);
}

/* What is written of it is read as the same. */
static void check_again(const struct zero_manifest *manifest)
{
	struct zero_manifest *again;
	size_t bytes, length;
	char *text, *other;

	must(!ops->manifest_write(manifest, &text, &bytes), "%s", sentence);
	must(!ops->manifest_parse("again", text, bytes, &again), "%s\n%s", sentence, text);
	must(!ops->manifest_write(again, &other, &length), "%s", sentence);
	must(length == bytes && memcmp(text, other, bytes) == 0, "%s\nis not\n%s", text, other);
	ops->manifest_free(again);
	free(other);
	free(text);
}

static void try(const char *text, size_t bytes)
{
	struct zero_manifest *manifest = (void *)sentence;

	memset(sentence, 1, sizeof(sentence));
	if (ops->manifest_parse("dir/manifest.json", text, bytes, &manifest)) {
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
	/* no byte more: what reads beyond is seen */
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
