# SPDX-License-Identifier: Apache-2.0
include_HEADERS += lib/zero.h
noinst_HEADERS += \
	lib/backend.h \
	lib/backend/account.h \
	lib/backend/comm.h \
	lib/core.h \
	lib/internal.h \
	lib/layout.h \
	lib/options.h \
	lib/options_table.h \
	lib/sizing.h \
	lib/text.h \
	lib/wire.h

# The table of options, and what follows from a budget: shared with launcher and plugin.
noinst_LTLIBRARIES += lib/liboptions.la
lib_liboptions_la_SOURCES = lib/dtype.c lib/options.c lib/sizing.c lib/text.c

# All of libzero, with its inner functions in sight: unit tests link this one.
noinst_LTLIBRARIES += lib/libzerocore.la
lib_libzerocore_la_SOURCES = \
	lib/adamw.c \
	lib/adopt.c \
	lib/check.c \
	lib/error.c \
	lib/export.c \
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
	lib/scale.c \
	lib/settings.c \
	lib/slice.c \
	lib/source.c \
	lib/stage.c \
	lib/step.c \
	lib/storage.c \
	lib/stream.c \
	lib/submit.c \
	lib/team.c \
	lib/update.c
lib_libzerocore_la_LIBADD = lib/liboptions.la $(DL_LIBS)

# What programs link and zero jobs get preloaded: the C library and nothing else.
lib_LTLIBRARIES += lib/libzero.la
lib_libzero_la_SOURCES =
lib_libzero_la_LIBADD = lib/libzerocore.la
lib_libzero_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 -Wl,--version-script=lib/libzero.map
EXTRA_lib_libzero_la_DEPENDENCIES = lib/libzero.map

# It exports what zero.h declares, under a version: a later library, preloaded before a program's own
# copy, can keep the old form of a function beside a new one.
lib/libzero.map: lib/zero.h
	$(AM_V_GEN)$(MKDIR_P) lib && { echo 'ZERO_0 { global:' && \
	sed -n '/^typedef/d; s/^[a-z].*\(zero_[a-z0-9_]*\)(.*/	\1;/p' $(top_srcdir)/lib/zero.h && \
	echo 'local: *; };'; } >$@.new && mv $@.new $@
CLEANFILES += lib/libzero.map
