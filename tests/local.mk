# SPDX-License-Identifier: Apache-2.0
# A new test is a name in one of these lists, and for a program its sources.
#
#   UNIT_TESTS     programs of Check, one process
#   RANKS_TESTS    programs named *.ranks, which tests/ranks/run.sh runs at several world sizes;
#                  in tests/ranks/local.mk
#   SCRIPT_TESTS   bash scripts named *.sh
#
# Exit status 77 is a skip: what a test needs it says with `need` of tests/common.sh.
UNIT_TESTS = \
	tests/unit/test_arena \
	tests/unit/test_budget \
	tests/unit/test_convert \
	tests/unit/test_hostlist \
	tests/unit/test_kernels \
	tests/unit/test_layout \
	tests/unit/test_options \
	tests/unit/test_philox \
	tests/unit/test_sizing \
	tests/unit/test_vram
SCRIPT_TESTS = \
	tests/require.sh \
	tests/exports.sh \
	tests/format.sh \
	tests/warnings.sh \
	tests/doc.sh \
	tests/install.sh \
	tests/launcher/config.sh \
	tests/launcher/plan.sh \
	tests/launcher/zerorun.sh \
	tests/ranks/leaks.sh \
	tests/ranks/world.sh \
	tests/unit/files_interop.sh \
	tests/gpt/bad.sh \
	tests/gpt/reference.sh \
	tests/gpt/stages.sh \
	tests/bench/smoke.sh \
	tests/readme.sh

if HAVE_JANSSON
UNIT_TESTS += tests/unit/test_files
endif
if HAVE_YAML
UNIT_TESTS += tests/unit/test_config tests/unit/test_reader tests/unit/test_resolve
endif
if HAVE_CHECK
check_PROGRAMS += $(UNIT_TESTS)
TESTS += $(UNIT_TESTS)
else
TESTS += tests/unit/without_check.sh
endif
if HAVE_CBLAS
check_PROGRAMS += tests/gpt/gradients
TESTS += tests/gpt/gradients
endif
check_PROGRAMS += $(RANKS_TESTS)
TESTS += $(RANKS_TESTS) $(SCRIPT_TESTS)

EXTRA_DIST += \
	tests/common.sh \
	tests/gpt/gpt.sh \
	tests/launcher/run.sh \
	tests/gpt/reference.py \
	tests/ranks/run.sh \
	tests/unit/without_check.sh \
	$(SCRIPT_TESTS)

UNIT_CFLAGS = $(OUTER_CFLAGS) $(CHECK_CFLAGS)
UNIT_LIBS = $(CHECK_LIBS) -lm

tests_unit_test_kernels_SOURCES = tests/unit/test_kernels.c tests/unit/sets.h
tests_unit_test_kernels_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_kernels_LDADD = $(KERNELS_EMULATED) kernels/libkernels.la $(UNIT_LIBS)

tests_unit_test_convert_SOURCES = tests/unit/test_convert.c tests/unit/sets.h
tests_unit_test_convert_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_convert_LDADD = $(tests_unit_test_kernels_LDADD)

tests_unit_test_philox_SOURCES = tests/unit/test_philox.c tests/unit/sets.h
tests_unit_test_philox_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_philox_LDADD = $(tests_unit_test_kernels_LDADD)

tests_unit_test_arena_SOURCES = tests/unit/test_arena.c lib/host/arena.c
tests_unit_test_arena_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_arena_LDADD = $(UNIT_LIBS)

tests_unit_test_sizing_SOURCES = tests/unit/test_sizing.c
tests_unit_test_sizing_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_sizing_LDADD = launcher/libmodel.la $(UNIT_LIBS)

tests_unit_test_layout_SOURCES = tests/unit/test_layout.c
tests_unit_test_layout_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_layout_LDADD = lib/libzerocore.la $(UNIT_LIBS)

tests_unit_test_options_SOURCES = tests/unit/test_options.c
tests_unit_test_options_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_options_LDADD = lib/liboptions.la $(UNIT_LIBS)

tests_unit_test_budget_SOURCES = tests/unit/test_budget.c
tests_unit_test_budget_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_budget_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/spank
tests_unit_test_budget_LDADD = spank/libvram.la $(UNIT_LIBS)

tests_unit_test_vram_SOURCES = tests/unit/test_vram.c
tests_unit_test_vram_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_vram_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/spank
tests_unit_test_vram_LDADD = spank/libvram.la $(UNIT_LIBS)

tests_unit_test_hostlist_SOURCES = tests/unit/test_hostlist.c spank/hostlist.c
tests_unit_test_hostlist_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_hostlist_LDADD = lib/liboptions.la $(UNIT_LIBS)

tests_unit_test_config_SOURCES = tests/unit/test_config.c tests/unit/configs.h
tests_unit_test_config_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_config_LDADD = spank/libconfig.la $(UNIT_LIBS)

tests_unit_test_reader_SOURCES = tests/unit/test_reader.c tests/unit/configs.h
tests_unit_test_reader_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_reader_LDADD = spank/libconfig.la $(UNIT_LIBS)

tests_unit_test_resolve_SOURCES = tests/unit/test_resolve.c tests/unit/configs.h
tests_unit_test_resolve_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_resolve_LDADD = spank/libconfig.la $(UNIT_LIBS)

tests_unit_test_files_SOURCES = tests/unit/test_files.c $(files_sources)
tests_unit_test_files_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_files_LDADD = $(JANSSON_LIBS) $(UNIT_LIBS)

# It is examples/gpt.c once more, with a main of its own.
tests_gpt_gradients_SOURCES = tests/gpt/gradients.c
tests_gpt_gradients_CFLAGS = $(examples_gpt_CFLAGS)
tests_gpt_gradients_LDADD = $(examples_gpt_LDADD)
tests_gpt_gradients_LDFLAGS = $(examples_gpt_LDFLAGS)

# Stand-ins for hardware; -rpath makes libtool build shared objects of them.
check_LTLIBRARIES += tests/double/forbid.la tests/double/nvml.la tests/double/nvml_old.la
tests_double_forbid_la_SOURCES = tests/double/forbid.c
tests_double_forbid_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_forbid_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)
tests_double_nvml_la_SOURCES = tests/double/nvml.c
tests_double_nvml_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_nvml_la_LIBADD = $(DL_LIBS)
tests_double_nvml_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere
tests_double_nvml_old_la_SOURCES = $(tests_double_nvml_la_SOURCES)
tests_double_nvml_old_la_CPPFLAGS = $(AM_CPPFLAGS) -DOLD_DRIVER
tests_double_nvml_old_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_nvml_old_la_LIBADD = $(DL_LIBS)
tests_double_nvml_old_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)

if HAVE_SLURM
check_LTLIBRARIES += tests/double/container.la
tests_double_container_la_SOURCES = tests/double/container.c
tests_double_container_la_CPPFLAGS = $(AM_CPPFLAGS) $(SLURM_CFLAGS)
tests_double_container_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_container_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)
endif

TEST_EXTENSIONS = .ranks .sh
SH_LOG_COMPILER = bash
RANKS_LOG_COMPILER = bash $(top_srcdir)/tests/ranks/run.sh

# What scripts and programs get to know of the build.
TEST_ENVIRONMENT = \
	export top_srcdir='$(abs_top_srcdir)' top_builddir='$(abs_top_builddir)' \
		ZERORUN='$(abs_top_builddir)/launcher/zerorun' ZERO_HAVE='$(zero_have)' \
		ZERO_REQUIRE="$$ZERO_REQUIRE" \
		ZERO_COMPILE_FLAGS='$(AM_CFLAGS) $(MPI_CFLAGS) $(PMIX_CFLAGS) $(JANSSON_CFLAGS) \
			$(SLURM_CFLAGS) $(YAML_CFLAGS)';
AM_TESTS_ENVIRONMENT = $(TEST_ENVIRONMENT)

# The tests of our own code alone; the sanitizers run them.
check-own:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(OWN_TESTS)'
OWN_TESTS = $(RANKS_TESTS)
if HAVE_CHECK
OWN_TESTS += $(UNIT_TESTS)
endif
if HAVE_CBLAS
OWN_TESTS += tests/gpt/gradients
endif

format-check:
	@$(TEST_ENVIRONMENT) ZERO_REQUIRE=clang-format bash $(top_srcdir)/tests/format.sh

.PHONY: check-own format-check
