# SPDX-License-Identifier: Apache-2.0
# Tests on a real Slurm of three nodes, each in folders and on ports of its own.
SLURM_TESTS = \
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
	tests/slurm/refuse.sh \
	tests/slurm/requeue.sh \
	tests/slurm/switch.sh \
	tests/slurm/readme.sh \
	tests/slurm/tasks.sh
SCRIPT_TESTS += $(SLURM_TESTS)
EXTRA_DIST += tests/slurm/cluster.sh tests/slurm/given.sh tests/slurm/table.sh

# The program that tasks run to print their rank and settings.
check_PROGRAMS += tests/slurm/report_task
tests_slurm_report_task_SOURCES = tests/slurm/report_task.c tests/ranks/ranks.h
tests_slurm_report_task_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests $(MPI_CFLAGS)
tests_slurm_report_task_CFLAGS = $(OUTER_CFLAGS)
tests_slurm_report_task_LDADD = $(LDADD) $(MPI_LIBS)
tests_slurm_report_task_LDFLAGS = $(ranks_link)

# What the plugin costs a step.
EXTRA_DIST += tests/slurm/bench.sh
bench-slurm: all tests/slurm/report_task tests/double/nvml.la
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/tests/slurm/bench.sh
.PHONY: bench-slurm
