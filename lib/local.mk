# SPDX-License-Identifier: Apache-2.0
include_HEADERS += lib/zero.h
noinst_HEADERS += \
	lib/backend.h \
	lib/backend/account.h \
	lib/backend/comm.h \
	lib/backend/meter.h \
	lib/checkpoint/export.h \
	lib/checkpoint/restore.h \
	lib/checkpoint/save.h \
	lib/checkpoint/write.h \
	lib/core.h \
	lib/internal.h \
	lib/layout.h \
	lib/options.h \
	lib/options_table.h \
	lib/report/folder.h \
	lib/report/record.h \
	lib/report/report.h \
	lib/sizing.h \
	lib/text.h \
	lib/watch/address.h \
	lib/watch/dial.h \
	lib/watch/ring.h \
	lib/watch/ring_private.h \
	lib/wire.h

# The table of options, and what follows from a budget: shared with launcher and plugin.
noinst_LTLIBRARIES += lib/liboptions.la
lib_liboptions_la_SOURCES = \
	lib/dtype.c \
	lib/option_value.c \
	lib/options.c \
	lib/settings_text.c \
	lib/sizing.c \
	lib/text.c

# All of libzero, with its inner functions in sight: unit tests link this one.
noinst_LTLIBRARIES += lib/libzerocore.la
lib_libzerocore_la_SOURCES = \
	lib/adamw.c \
	lib/adopt.c \
	lib/check.c \
	lib/checkpoint/export.c \
	lib/checkpoint/export_names.c \
	lib/checkpoint/restore.c \
	lib/checkpoint/restore_fill.c \
	lib/checkpoint/restore_find.c \
	lib/checkpoint/restore_plan.c \
	lib/checkpoint/restore_read.c \
	lib/checkpoint/save.c \
	lib/checkpoint/save_folder.c \
	lib/checkpoint/save_manifest.c \
	lib/checkpoint/save_shard.c \
	lib/checkpoint/save_thread.c \
	lib/checkpoint/write.c \
	lib/error.c \
	lib/file.c \
	lib/flatten.c \
	lib/gather.c \
	lib/group.c \
	lib/job.c \
	lib/layout.c \
	lib/load_model.c \
	lib/module.c \
	lib/norm.c \
	lib/partition.c \
	lib/reduce.c \
	lib/report/folder.c \
	lib/report/record.c \
	lib/report/report.c \
	lib/scale.c \
	lib/settings.c \
	lib/slice.c \
	lib/source.c \
	lib/stage.c \
	lib/step.c \
	lib/stop.c \
	lib/storage.c \
	lib/stream.c \
	lib/submit.c \
	lib/team.c \
	lib/update.c \
	lib/watch/address.c \
	lib/watch/dial.c \
	lib/watch/find.c \
	lib/watch/join.c \
	lib/watch/line.c \
	lib/watch/opening.c \
	lib/watch/process.c \
	lib/watch/ring.c \
	lib/watch/serve.c \
	lib/watch/signals.c \
	lib/watch/watch.c
lib_libzerocore_la_LIBADD = lib/liboptions.la $(DL_LIBS)

# What programs link and zero jobs get preloaded: the C library and nothing else.
lib_LTLIBRARIES += lib/libzero.la
lib_libzero_la_SOURCES =
lib_libzero_la_LIBADD = lib/libzerocore.la
lib_libzero_la_LDFLAGS = $(AM_LDFLAGS) -version-info 1:0:0 -Wl,--version-script=lib/libzero.map \
	-Wl,-z,nodelete
EXTRA_lib_libzero_la_DEPENDENCIES = lib/libzero.map

# It exports what zero.h declares, under a version: a later library, preloaded before a program's own
# copy, can keep the old form of a function beside a new one.
lib/libzero.map: lib/zero.h
	$(AM_V_GEN)$(MKDIR_P) lib && { echo 'ZERO_1 { global:' && \
	sed -n '/^typedef/d; s/^[a-z].*\(zero_[a-z0-9_]*\)(.*/	\1;/p' $(top_srcdir)/lib/zero.h && \
	echo 'local: *; };'; } >$@.new && mv $@.new $@
CLEANFILES += lib/libzero.map
