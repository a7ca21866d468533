/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors files. Lines "@@" separate the JSON of a file's header, of a second file's header,
 * and of an index of both. The byte before a header is the length of its data in units of 16 bytes.
 * The very first byte chooses whether the first header's length is right.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/safetensors.h"
#include "fuzz.h"
#include "../unit/files_core.h"

static char folder[64];

static const char *in_folder(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void remove_folder(void)
{
	static const char *const names[] = {"a.safetensors", "b.safetensors",
					    "model.safetensors.index.json"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unlink(in_folder(names[i]));
	rmdir(folder);
}

static void begin(void)
{
	const char *base = getenv("TMPDIR");

	ops = zero_module_files(&core);
	snprintf(folder, sizeof(folder), "%.32s/zero-fuzz.XXXXXX", base ? base : "/tmp");
	must(mkdtemp(folder), "no folder %s", folder);
	atexit(remove_folder);
}

/* Writes `bytes` bytes of `before`, then the text; the data are a hole. */
static void put(const char *name, const void *before, size_t bytes, const char *text, size_t length,
		off_t data)
{
	int out = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	must(out >= 0 && write(out, before, bytes) == (ssize_t)bytes &&
		     write(out, text, length) == (ssize_t)length &&
		     !ftruncate(out, (off_t)(bytes + length) + data) && !close(out),
	     "%s is not written", name);
}

/* Writes a file; `kind` chooses a right or wrong length of the header. */
static void put_tensors(const char *name, struct fuzz *fuzz, unsigned kind)
{
	size_t length, data = fuzz_byte(fuzz) * 16;
	uint64_t bytes = kind ? fuzz_number(fuzz) : 0;
	char *text = fuzz_part(fuzz, &length);

	if (kind != 1)
		bytes = length - bytes;
	put(name, &bytes, sizeof(bytes), text ? text : "", length, (off_t)data);
	free(text);
}

/* The tensors that were accepted are within their files. */
static void check_tensors(const struct zero_file *file)
{
	for (size_t i = 0; i < ops->count(file); i++) {
		const zero_tensor *tensor = ops->tensor(file, i);
		struct stat status;
		uint64_t bytes;

		must(tensor->name && *tensor->name, "no name");
		must(ops->find(file, tensor->name) == tensor, "%s is not found", tensor->name);
		must(tensor->ndim >= 0 && tensor->ndim <= ZERO_MAX_DIMS, "%d", tensor->ndim);
		must(!stat(tensor->path, &status) && safetensors_bytes(tensor, &bytes) &&
			     tensor->offset <= (uint64_t)status.st_size &&
			     bytes <= (uint64_t)status.st_size - tensor->offset,
		     "%s lies beyond the file", tensor->name);
	}
	must(!ops->tensor(file, ops->count(file)), "one tensor more than there are");
	must(!ops->find(file, "no such tensor @@"), "a tensor that is not there");
}

/* The tensors can be written, and read back the same. */
static void check_again(const struct zero_file *file)
{
	size_t count = ops->count(file), bytes;
	zero_tensor *tensors = calloc(count ? count : 1, sizeof(*tensors));
	struct zero_file *again;
	uint64_t end, size;
	char *header;

	must(tensors, "no memory");
	for (size_t i = 0; i < count; i++)
		tensors[i] = *ops->tensor(file, i);
	must(!ops->header(tensors, count, &header, &bytes), "%s", sentence);
	end = bytes;
	for (size_t i = 0; i < count; i++) {
		must(tensors[i].offset == end, "tensor %zu begins elsewhere", i);
		must(safetensors_bytes(&tensors[i], &size), "tensor %zu is too large", i);
		end += size;
	}
	put("a.safetensors", "", 0, header, bytes, (off_t)(end - bytes));
	must(!ops->open(in_folder("a.safetensors"), &again), "%s", sentence);
	must(ops->count(again) == count, "%zu tensors of %zu", ops->count(again), count);
	for (size_t i = 0; i < count; i++) {
		const zero_tensor *tensor = ops->find(again, tensors[i].name);

		must(tensor && tensor->offset == tensors[i].offset &&
			     tensor->dtype == tensors[i].dtype && tensor->ndim == tensors[i].ndim &&
			     memcmp(tensor->shape, tensors[i].shape, sizeof(tensor->shape)) == 0,
		     "%s is not the same", tensors[i].name);
	}
	ops->close(again);
	free(header);
	free(tensors);
}

static void try(const char *path)
{
	struct zero_file *file = NULL;
	zero_status status;

	memset(sentence, 1, sizeof(sentence));
	status = ops->open(path, &file);
	if (status) {
		must(!file, "a file that was refused");
		fuzz_sentence(sentence, sizeof(sentence));
		must(strncmp(sentence, folder, strlen(folder)) == 0 || strstr(sentence, folder),
		     "no path: %s", sentence);
		return;
	}
	check_tensors(file);
	check_again(file);
	ops->close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz fuzz = {data, size};
	unsigned kind = fuzz_byte(&fuzz) & 3;
	size_t length;
	char *index;

	if (!ops)
		begin();
	put_tensors("a.safetensors", &fuzz, kind);
	if (!fuzz.left) {
		try(in_folder("a.safetensors"));
		return 0;
	}
	put_tensors("b.safetensors", &fuzz, 0);
	index = fuzz_part(&fuzz, &length);
	put("model.safetensors.index.json", "", 0, index ? index : "", length, 0);
	try(in_folder("model.safetensors.index.json"));
	free(index);
	return 0;
}
