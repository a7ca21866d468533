# SPDX-License-Identifier: Apache-2.0
# spank/yaml: the site's YAML file and the user's. The launcher uses it too.
noinst_HEADERS += spank/yaml/site_config.h spank/yaml/hostlist.h spank/gpu/vram.h
if HAVE_YAML
noinst_LTLIBRARIES += spank/libconfig.la
spank_libconfig_la_SOURCES = \
	spank/yaml/hostlist.c \
	spank/yaml/resolve.c \
	spank/yaml/site_config.c \
	spank/yaml/site_config_private.h \
	spank/yaml/trusted_file.c \
	spank/yaml/yaml_reader.c \
	spank/yaml/yaml_reader.h
spank_libconfig_la_CPPFLAGS = $(AM_CPPFLAGS) $(YAML_CFLAGS)
spank_libconfig_la_LIBADD = lib/liboptions.la $(YAML_LIBS)
endif

# spank/gpu: how much memory of a node's GPUs, or of the node, a task may use.
noinst_LTLIBRARIES += spank/libvram.la
spank_libvram_la_SOURCES = \
	spank/gpu/memory_budget.c \
	spank/gpu/nvml_query.c \
	spank/gpu/nvml_query.h \
	spank/gpu/task_gpus.c \
	spank/gpu/vram.c
spank_libvram_la_LIBADD = $(DL_LIBS)

# The plugin, which uses both; plugin.c says which file runs in which SPANK context. Slurm's symbols
# are resolved in the program that loads it.
if HAVE_SLURM
if HAVE_YAML
spankdir = $(libdir)/slurm
spank_LTLIBRARIES = spank/spank_zero.la
spank_spank_zero_la_SOURCES = \
	lib/protect/leftover.c \
	spank/epilog.c \
	spank/nested_step.c \
	spank/plugin.c \
	spank/plugin.h \
	spank/reexec.c \
	spank/reexec.h \
	spank/srun_env.c \
	spank/srun_env.h \
	spank/step.c \
	spank/step.h \
	spank/step_node.c \
	spank/submit.c \
	spank/task.c \
	spank/task_budget.c \
	spank/task_preload.c \
	spank/telemetry.c \
	spank/user_options.c \
	spank/user_request.c \
	spank/user_request.h
spank_spank_zero_la_CPPFLAGS = $(AM_CPPFLAGS) $(SLURM_CFLAGS) \
	-DZERO_SITE_CONFIG=\"$(slurmconfdir)/zero.yaml\" \
	-DZERO_LIBRARY=\"$(libdir)/libzero.so.2\"
spank_spank_zero_la_LIBADD = spank/libconfig.la spank/libvram.la $(DL_LIBS)
spank_spank_zero_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -Wl,-z,now \
	-Wl,--version-script=$(top_srcdir)/spank/spank_zero.map
EXTRA_spank_spank_zero_la_DEPENDENCIES = $(top_srcdir)/spank/spank_zero.map
endif
endif
EXTRA_DIST += spank/spank_zero.map
