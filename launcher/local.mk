# SPDX-License-Identifier: Apache-2.0
bin_PROGRAMS += launcher/zerorun

launcher_zerorun_SOURCES = \
	launcher/config/show_config.c \
	launcher/config/show_config.h \
	launcher/inspect/inspect.c \
	launcher/inspect/inspect.h \
	launcher/launch/guard.c \
	launcher/launch/launch.c \
	launcher/launch/launch.h \
	launcher/launch/restart.c \
	launcher/main.c \
	launcher/plan/find.c \
	launcher/plan/plan.c \
	launcher/plan/plan.h \
	launcher/plan/script.c \
	launcher/plan/show.c \
	launcher/plan/survey.c \
	launcher/plan/survey.h \
	launcher/recover/choose.c \
	launcher/recover/choose.h \
	launcher/recover/listen.c \
	launcher/recover/listen.h \
	launcher/recover/nodes.c \
	launcher/recover/nodes.h \
	launcher/recover/recover.c \
	launcher/recover/recover.h \
	launcher/text.c \
	launcher/text.h \
	lib/core/available_memory.c
launcher_zerorun_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/lib -DZERO_LIBDIR=\"$(libdir)\" \
	-DZERO_SITE_CONFIG=\"$(slurmconfdir)/zero.yaml\"
launcher_zerorun_LDADD = launcher/libmodel.la
if HAVE_YAML
launcher_zerorun_LDADD += spank/libconfig.la
endif

# What --plan makes of a model; a unit test links it too.
noinst_LTLIBRARIES += launcher/libmodel.la
launcher_libmodel_la_SOURCES = launcher/plan/model.c launcher/plan/model.h
launcher_libmodel_la_CPPFLAGS = $(AM_CPPFLAGS)
launcher_libmodel_la_LIBADD = lib/libzerocore.la
if HAVE_FILES
launcher_libmodel_la_SOURCES += $(files_sources)
launcher_libmodel_la_CPPFLAGS += $(JANSSON_CFLAGS) $(XXHASH_CFLAGS)
launcher_libmodel_la_LIBADD += $(JANSSON_LIBS)
endif
