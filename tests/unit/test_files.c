/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_files: damaged safetensors files are refused with the right message, valid ones are read,
 * and a header that header() makes is read back. The files are in a temporary folder.
 */
#include <ftw.h>

#include "files_core.h"
#include "files_test.h"

char folder[] = "/tmp/zero-files-XXXXXX";

/* ---- files to read --------------------------------------------------------------------------- */

const char *in_folder(const char *name)
{
	static char paths[4][512];
	static size_t turn;
	char *path = paths[turn++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place)
{
	(void)info;
	(void)type;
	(void)place;
	return remove(path);
}

static void remove_all(const char *path)
{
	nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void put_bytes(const char *name, const void *bytes, size_t count)
{
	FILE *file = fopen(in_folder(name), "wb");

	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
	ck_assert_int_eq(fclose(file), 0);
}

void put_text(const char *name, const char *text)
{
	put_bytes(name, text, strlen(text));
}

void put_tensors_n(const char *name, const char *header, size_t length, off_t data)
{
	char *bytes = malloc(8 + length);

	ck_assert_ptr_nonnull(bytes);
	for (size_t i = 0; i < 8; i++)
		bytes[i] = (char)((uint64_t)length >> 8 * i & 0xff);
	memcpy(bytes + 8, header, length);
	put_bytes(name, bytes, 8 + length);
	free(bytes);
	ck_assert_int_eq(truncate(in_folder(name), (off_t)(8 + length) + data), 0);
}

void put_tensors(const char *name, const char *header, off_t data)
{
	put_tensors_n(name, header, strlen(header), data);
}

void make_folder(const char *name)
{
	remove_all(in_folder(name));
	ck_assert_int_eq(mkdir(in_folder(name), 0700), 0);
}

struct zero_file *open_good(const char *path)
{
	struct zero_file *file;
	zero_status status;

	strcpy(sentence, "");
	status = ops->open(path, &file);
	ck_assert_msg(status == ZERO_OK, "%s", sentence);
	ck_assert_ptr_nonnull(file);
	return file;
}

void refused(const char *path, zero_status expected, const char *words)
{
	struct zero_file *file = (struct zero_file *)folder;
	char list[512], *save = NULL;
	zero_status status;

	strcpy(sentence, "");
	status = ops->open(path, &file);
	ck_assert_msg(status == expected, "%s: status %d, expected %d: %s", words, (int)status,
		      (int)expected, sentence);
	ck_assert_ptr_null(file);
	snprintf(list, sizeof(list), "%s", words);
	for (char *word = strtok_r(list, "|", &save); word; word = strtok_r(NULL, "|", &save))
		ck_assert_msg(strstr(sentence, word), "no '%s' in: %s", word, sentence);
}

int main(void)
{
	int failed;

	ops = zero_module_files(&core);
	if (!mkdtemp(folder)) {
		perror(folder);
		return EXIT_FAILURE;
	}
	failed = run_cases(refused_cases(), valid_cases(), NULL);
	remove_all(folder);
	return failed;
}
