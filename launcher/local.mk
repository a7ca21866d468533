# SPDX-License-Identifier: Apache-2.0
bin_PROGRAMS += launcher/zerorun

launcher_zerorun_SOURCES = \
	launcher/config.c \
	launcher/find.c \
	launcher/guard.c \
	launcher/inspect.c \
	launcher/launch.c \
	launcher/main.c \
	launcher/plan.c \
	launcher/plan.h \
	launcher/restart.c \
	launcher/show.c \
	launcher/survey.c \
	launcher/survey.h \
	lib/core/available_memory.c
launcher_zerorun_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/lib -DZERO_LIBDIR=\"$(libdir)\" \
	-DZERO_SITE_CONFIG=\"$(slurmconfdir)/zero.yaml\"
launcher_zerorun_LDADD = launcher/libmodel.la
if HAVE_YAML
launcher_zerorun_LDADD += spank/libconfig.la
endif

# What --plan makes of a model; a unit test links it too.
noinst_LTLIBRARIES += launcher/libmodel.la
launcher_libmodel_la_SOURCES = launcher/model.c launcher/model.h
launcher_libmodel_la_CPPFLAGS = $(AM_CPPFLAGS)
launcher_libmodel_la_LIBADD = lib/libzerocore.la
if HAVE_FILES
launcher_libmodel_la_SOURCES += $(files_sources)
launcher_libmodel_la_CPPFLAGS += $(JANSSON_CFLAGS) $(XXHASH_CFLAGS)
launcher_libmodel_la_LIBADD += $(JANSSON_LIBS)
endif
