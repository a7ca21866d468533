# SPDX-License-Identifier: Apache-2.0
# Tests on a real Slurm of three nodes, each in folders and on ports of its own.
SLURM_TESTS = \
	tests/slurm/admin.sh \
	tests/slurm/configless.sh \
	tests/slurm/control_groups.sh \
	tests/slurm/demo.sh \
	tests/slurm/epilog.sh \
	tests/slurm/faults.sh \
	tests/slurm/gpus.sh \
	tests/slurm/hostile.sh \
	tests/slurm/flags.sh \
	tests/slurm/jobs.sh \
	tests/slurm/kill.sh \
	tests/slurm/launch.sh \
	tests/slurm/lost.sh \
	tests/slurm/plain.sh \
	tests/slurm/plan.sh \
	tests/slurm/protect.sh \
	tests/slurm/recover.sh \
	tests/slurm/refuse.sh \
	tests/slurm/requeue.sh \
	tests/slurm/switch.sh \
	tests/slurm/readme.sh \
	tests/slurm/tasks.sh
SCRIPT_TESTS += $(SLURM_TESTS)
EXTRA_DIST += tests/slurm/cluster.sh tests/slurm/nodes.sh tests/slurm/picture.py \
	tests/slurm/given.sh tests/slurm/sized.sh tests/slurm/table.sh

# The program that tasks run to print their rank and settings.
check_PROGRAMS += tests/slurm/report_task
tests_slurm_report_task_SOURCES = tests/slurm/report_task.c tests/ranks/ranks.h
tests_slurm_report_task_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests $(MPI_CFLAGS)
tests_slurm_report_task_CFLAGS = $(OUTER_CFLAGS)
tests_slurm_report_task_LDADD = $(LDADD) $(MPI_LIBS)
tests_slurm_report_task_LDFLAGS = $(ranks_link)

# make check-slurm SLURM_PREFIX=DIR: these tests with the release of Slurm that is installed in DIR, in a
# copy of the sources that is built for it.
EXTRA_DIST += tests/slurm/release.sh
check-slurm:
	bash $(abs_top_srcdir)/tests/slurm/release.sh '$(SLURM_PREFIX)' true
	$(MAKE) $(AM_MAKEFLAGS) distdir distdir=build-$@
	cd build-$@ && \
	eval ./configure "`cd $(abs_top_builddir) && ./config.status --config`" "--with-slurm='$(SLURM_PREFIX)'" && \
	$(MAKE) $(AM_MAKEFLAGS) all && \
	bash tests/slurm/release.sh '$(SLURM_PREFIX)' $(MAKE) $(AM_MAKEFLAGS) -j1 check \
		check_PROGRAMS='$(slurm_built)' check_LTLIBRARIES='$(slurm_doubles)' \
		TESTS='$(or $(RELEASE_TESTS),$(SLURM_TESTS) tests/pmix/slurm.sh)'
slurm_built = tests/slurm/report_task tests/ranks/lost tests/ranks/protect tests/ranks/sizing.ranks \
	tests/pmix/rendezvous
slurm_doubles = tests/double/nvml.la tests/double/container.la tests/double/mpi_late.la

# What the plugin costs a step.
EXTRA_DIST += tests/slurm/bench.sh
bench-slurm: all tests/slurm/report_task tests/double/nvml.la
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/tests/slurm/bench.sh
.PHONY: bench-slurm check-slurm
