/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of NVML with the double of tests/double/nvml.c, which reads a file of a test. */
#ifndef TEST_NVML_DOUBLE_H
#define TEST_NVML_DOUBLE_H

#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "spank/gpu/vram.h"
#include "unit.h"

static const uint64_t GB = UINT64_C(1) << 30;

static char folder[64];

static inline void make_folder(void)
{
	strcpy(folder, "/tmp/zero-vram.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	ck_assert_int_eq(chmod(folder, 0755), 0);
	setenv("ZERO_DOUBLE_NVML", folder, 1);
	setenv("SLURMD_NODENAME", "n1", 1);
}

static inline const char *in_folder(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static inline void remove_folder(void)
{
	unlink(in_folder("n1.gpus"));
	unlink(in_folder("stuck"));
	unlink(in_folder("nvml.so"));
	ck_assert_int_eq(rmdir(folder), 0);
}

/* Writes the file that the double of NVML reads. */
static inline void write_gpus(const char *lines)
{
	FILE *file = fopen(in_folder("n1.gpus"), "w");

	ck_assert_ptr_nonnull(file);
	fputs(lines, file);
	ck_assert_int_eq(fclose(file), 0);
}

static inline const char *library(const char *name)
{
	static char path[PATH_MAX];
	const char *build = getenv("top_builddir");
	char given[PATH_MAX];

	snprintf(given, sizeof(given), "%s/tests/double/.libs/%s.so", build ? build : ".", name);
	ck_assert_msg(realpath(given, path) != NULL, "there is no %s", given);
	return path;
}

/* Asks NVML and waits for the answer. */
static inline void read_vram(const char *path, double seconds, struct zero_vram *vram)
{
	struct zero_vram_query asked;

	memset(vram, 0x5a, sizeof(*vram));
	memset(&asked, 0x5a, sizeof(asked));
	zero_vram_ask(path, seconds, &asked);
	zero_vram_answer(&asked, vram);
	zero_vram_forget(&asked);
}

static inline void query(const char *lines, struct zero_vram *vram)
{
	write_gpus(lines);
	read_vram(library("nvml"), 300, vram);
}

static inline bool loaded(const char *name)
{
	void *handle = dlopen(library(name), RTLD_NOW | RTLD_NOLOAD);

	if (handle)
		dlclose(handle);
	return handle != NULL;
}

#endif
