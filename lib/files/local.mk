# SPDX-License-Identifier: Apache-2.0
# zero_files.so: safetensors, manifests of checkpoints, reports. Its unit test compiles the same sources.
files_sources = \
	lib/files/entry.c \
	lib/files/entry.h \
	lib/files/file.h \
	lib/files/files.c \
	lib/files/files.h \
	lib/files/header.c \
	lib/files/index.c \
	lib/files/index_write.c \
	lib/files/manifest.c \
	lib/files/manifest_check.c \
	lib/files/manifest_read.c \
	lib/files/manifest_write.c \
	lib/files/members.c \
	lib/files/members.h \
	lib/files/read.c \
	lib/files/safetensors.c \
	lib/files/set.c \
	lib/files/shard.c \
	lib/files/sums.c \
	lib/files/sums_avx2.c \
	lib/files/walk.c \
	lib/files/walk.h \
	lib/report/json.c
if HAVE_FILES
modules_LTLIBRARIES += lib/zero_files.la
lib_zero_files_la_SOURCES = $(files_sources)
lib_zero_files_la_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) $(XXHASH_CFLAGS)
lib_zero_files_la_LDFLAGS = $(MODULE_LDFLAGS)
lib_zero_files_la_LIBADD = $(JANSSON_LIBS)
endif
EXTRA_DIST += tests/unit/files_interop.py tests/unit/checkpoint_interop.py
