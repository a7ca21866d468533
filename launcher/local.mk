# SPDX-License-Identifier: Apache-2.0
bin_PROGRAMS += launcher/zerorun

launcher_zerorun_SOURCES = \
	launcher/find.c \
	launcher/launch.c \
	launcher/main.c \
	launcher/plan.c \
	launcher/plan.h
launcher_zerorun_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/lib -DZERO_LIBDIR=\"$(libdir)\"
launcher_zerorun_LDADD = lib/liboptions.la
