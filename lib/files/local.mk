# SPDX-License-Identifier: Apache-2.0
# zero_files.so: safetensors, manifests of checkpoints, reports. Its unit tests compile the same sources.
files_sources = \
	lib/files/checksums.c \
	lib/files/checksums_avx2.c \
	lib/files/module_table.c \
	lib/files/files.h \
	lib/files/index_read.c \
	lib/files/index_write.c \
	lib/files/input.c \
	lib/files/input.h \
	lib/files/json_reader.c \
	lib/files/json_reader.h \
	lib/files/manifest.h \
	lib/files/manifest_check.c \
	lib/files/manifest_read.c \
	lib/files/manifest_write.c \
	lib/files/open_model.c \
	lib/files/report_content.h \
	lib/files/report_json.c \
	lib/files/report_series.c \
	lib/files/report_values.h \
	lib/files/safetensors.h \
	lib/files/safetensors_read.c \
	lib/files/safetensors_write.c \
	lib/files/shard_layout.c \
	lib/files/tensor_entry.c \
	lib/files/tensor_set.c
if HAVE_FILES
modules_LTLIBRARIES += lib/zero_files.la
lib_zero_files_la_SOURCES = $(files_sources)
lib_zero_files_la_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) $(XXHASH_CFLAGS)
lib_zero_files_la_LDFLAGS = $(MODULE_LDFLAGS)
lib_zero_files_la_LIBADD = $(JANSSON_LIBS)
endif
EXTRA_DIST += tests/unit/files_interop.py tests/unit/checkpoint_interop.py
