# SPDX-License-Identifier: Apache-2.0
include_HEADERS += lib/zero.h
noinst_HEADERS += \
	lib/backend/account.h \
	lib/backend/backend.h \
	lib/backend/bootstrap.h \
	lib/backend/comm.h \
	lib/backend/meter.h \
	lib/checkpoint/export.h \
	lib/checkpoint/restore.h \
	lib/checkpoint/save.h \
	lib/checkpoint/write.h \
	lib/core/clock.h \
	lib/core/module.h \
	lib/core/options.h \
	lib/core/options_table.h \
	lib/core/text.h \
	lib/core/thread.h \
	lib/job/internal.h \
	lib/model/layout.h \
	lib/model/sizing.h \
	lib/net/address.h \
	lib/net/dial.h \
	lib/report/folder.h \
	lib/report/record.h \
	lib/report/report.h \
	lib/watch/ring.h \
	lib/watch/ring_private.h

# The table of options, and what follows from a budget: shared with launcher and plugin.
noinst_LTLIBRARIES += lib/liboptions.la
lib_liboptions_la_SOURCES = \
	lib/core/dtype.c \
	lib/core/option_value.c \
	lib/core/options.c \
	lib/core/settings_text.c \
	lib/core/text.c \
	lib/model/sizing.c

# All of libzero, with its inner functions in sight: unit tests link this one.
noinst_LTLIBRARIES += lib/libzerocore.la
lib_libzerocore_la_SOURCES = \
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
	lib/core/error.c \
	lib/core/module.c \
	lib/job/check.c \
	lib/job/job.c \
	lib/job/settings.c \
	lib/job/stop.c \
	lib/job/stream.c \
	lib/job/submit.c \
	lib/job/team.c \
	lib/load/adopt.c \
	lib/load/flatten.c \
	lib/load/load_model.c \
	lib/load/partition.c \
	lib/load/slice.c \
	lib/load/source.c \
	lib/load/staging.c \
	lib/load/tensor_file.c \
	lib/load/param_changed.c \
	lib/model/describe.c \
	lib/model/group.c \
	lib/model/layout.c \
	lib/model/storage.c \
	lib/net/address.c \
	lib/net/dial.c \
	lib/report/folder.c \
	lib/report/record.c \
	lib/report/report.c \
	lib/train/adamw.c \
	lib/train/gather.c \
	lib/train/norm.c \
	lib/train/reduce.c \
	lib/train/scale.c \
	lib/train/step.c \
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
