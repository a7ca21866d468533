# SPDX-License-Identifier: Apache-2.0
# The admin's YAML, shared with the launcher.
noinst_HEADERS += spank/config.h spank/hostlist.h spank/vram.h
if HAVE_YAML
noinst_LTLIBRARIES += spank/libconfig.la
spank_libconfig_la_SOURCES = \
	spank/config.c \
	spank/config_private.h \
	spank/hostlist.c \
	spank/reader.c \
	spank/reader.h \
	spank/resolve.c \
	spank/statement.c \
	spank/statement.h
spank_libconfig_la_CPPFLAGS = $(AM_CPPFLAGS) $(YAML_CFLAGS)
spank_libconfig_la_LIBADD = lib/liboptions.la $(YAML_LIBS)
endif

# What a node's GPUs and memory offer a task.
noinst_LTLIBRARIES += spank/libvram.la
spank_libvram_la_SOURCES = spank/budget.c spank/nvml.c spank/nvml.h spank/vram.c
spank_libvram_la_LIBADD = $(DL_LIBS)

# The plugin. Slurm's own symbols are found in the program that loads it.
if HAVE_SLURM
if HAVE_YAML
spankdir = $(libdir)/slurm
spank_LTLIBRARIES = spank/spank_zero.la
spank_spank_zero_la_SOURCES = \
	spank/again.c \
	spank/again.h \
	spank/inherit.c \
	spank/node.c \
	spank/node.h \
	spank/plugin.c \
	spank/plugin.h \
	spank/pmix.c \
	spank/pmix.h \
	spank/said.c \
	spank/size.c \
	spank/submit.c \
	spank/task.c \
	spank/wireup.c \
	spank/wireup.h
spank_spank_zero_la_CPPFLAGS = $(AM_CPPFLAGS) $(SLURM_CFLAGS) \
	-DZERO_SITE_CONFIG=\"$(slurmconfdir)/zero.yaml\" \
	-DZERO_LIBRARY=\"$(libdir)/libzero.so.1\"
spank_spank_zero_la_LIBADD = spank/libconfig.la spank/libvram.la $(DL_LIBS)
spank_spank_zero_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -Wl,-z,now \
	-Wl,--version-script=$(top_srcdir)/spank/spank_zero.map
EXTRA_spank_spank_zero_la_DEPENDENCIES = $(top_srcdir)/spank/spank_zero.map
endif
endif
EXTRA_DIST += spank/spank_zero.map
