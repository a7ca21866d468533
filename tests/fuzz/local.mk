# SPDX-License-Identifier: Apache-2.0
# Fuzz targets. Each is a program that runs over files, so that what was found stays tested by make
# check, and with clang's libFuzzer, by make fuzz, it makes up the files itself. A new target is a
# name in FUZZ_TARGETS, a line in FUZZ_LIST with what it is compiled of, and a folder in corpus/.
FUZZ_TARGETS = \
	tests/fuzz/budget \
	tests/fuzz/control \
	tests/fuzz/hostlist \
	tests/fuzz/nvml \
	tests/fuzz/options
fuzz_sources = tests/fuzz/fuzz.h tests/fuzz/main.c
fuzz_options = $(lib_liboptions_la_SOURCES)
# control.c and nvml.c include the sources whose inner functions they call
fuzz_control = \
	lib/core/error.c \
	lib/core/text.c \
	lib/net/address.c \
	lib/net/collective.c \
	lib/net/dial.c \
	lib/net/net.c \
	lib/net/thread.c
FUZZ_LIST = \
	'budget spank/gpu/memory_budget.c $(fuzz_options)' \
	'control $(fuzz_control)' \
	'hostlist spank/yaml/hostlist.c $(fuzz_options)' \
	'nvml spank/gpu/memory_budget.c spank/gpu/task_gpus.c $(DL_LIBS)' \
	'options $(fuzz_options)'
if HAVE_YAML
FUZZ_TARGETS += tests/fuzz/config
FUZZ_LIST += 'config $(spank_libconfig_la_SOURCES) $(fuzz_options) $(YAML_CFLAGS) $(YAML_LIBS)'
endif
if HAVE_FILES
FUZZ_TARGETS += tests/fuzz/manifest tests/fuzz/safetensors
fuzz_files = $(files_sources) $(fuzz_options) $(JANSSON_CFLAGS) $(XXHASH_CFLAGS) $(JANSSON_LIBS)
FUZZ_LIST += 'manifest $(fuzz_files) -lm' 'safetensors $(fuzz_files) -lm'
endif
check_PROGRAMS += $(FUZZ_TARGETS)
# smoke.sh, which compiles all targets with sanitizers and tries random bytes, is for check-long.
SCRIPT_TESTS += tests/fuzz/corpus.sh
OWN_TESTS += tests/fuzz/corpus.sh
EXTRA_DIST += tests/fuzz/corpus tests/fuzz/run.sh tests/fuzz/smoke.sh \
	tests/fuzz/budget.dict \
	tests/fuzz/config.dict \
	tests/fuzz/hostlist.dict \
	tests/fuzz/manifest.dict \
	tests/fuzz/options.dict \
	tests/fuzz/safetensors.dict

tests_fuzz_budget_SOURCES = tests/fuzz/budget.c $(fuzz_sources)
tests_fuzz_budget_CFLAGS = $(OUTER_CFLAGS)
tests_fuzz_budget_LDADD = spank/libvram.la

tests_fuzz_config_SOURCES = tests/fuzz/config.c $(fuzz_sources)
tests_fuzz_config_CFLAGS = $(OUTER_CFLAGS)
tests_fuzz_config_LDADD = spank/libconfig.la

tests_fuzz_control_SOURCES = tests/fuzz/control.c $(fuzz_control) $(fuzz_sources)
tests_fuzz_control_CFLAGS = $(OUTER_CFLAGS)
tests_fuzz_control_LDADD =

tests_fuzz_hostlist_SOURCES = tests/fuzz/hostlist.c spank/yaml/hostlist.c $(fuzz_sources)
tests_fuzz_hostlist_CFLAGS = $(OUTER_CFLAGS)
tests_fuzz_hostlist_LDADD = lib/liboptions.la

tests_fuzz_manifest_SOURCES = tests/fuzz/manifest.c $(files_sources) $(fuzz_sources)
tests_fuzz_manifest_CFLAGS = $(OUTER_CFLAGS) $(JANSSON_CFLAGS) $(XXHASH_CFLAGS)
tests_fuzz_manifest_LDADD = $(JANSSON_LIBS) -lm

tests_fuzz_nvml_SOURCES = tests/fuzz/nvml.c spank/gpu/memory_budget.c spank/gpu/task_gpus.c \
	$(fuzz_sources)
tests_fuzz_nvml_CFLAGS = $(OUTER_CFLAGS)
tests_fuzz_nvml_LDADD = $(DL_LIBS)

tests_fuzz_options_SOURCES = tests/fuzz/options.c $(fuzz_sources)
tests_fuzz_options_CFLAGS = $(OUTER_CFLAGS)
tests_fuzz_options_LDADD = lib/liboptions.la

tests_fuzz_safetensors_SOURCES = tests/fuzz/safetensors.c $(files_sources) $(fuzz_sources)
tests_fuzz_safetensors_CFLAGS = $(OUTER_CFLAGS) $(JANSSON_CFLAGS) $(XXHASH_CFLAGS)
tests_fuzz_safetensors_LDADD = $(JANSSON_LIBS) -lm

# make fuzz SECONDS=600
SECONDS = 60
fuzz:
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/tests/fuzz/run.sh $(SECONDS) $(FUZZ_LIST)

.PHONY: fuzz
