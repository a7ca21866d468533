# SPDX-License-Identifier: Apache-2.0
# zero_pmix.so by itself: alone, under mpirun, and on a real Slurm.
SCRIPT_TESTS += tests/pmix/bootstrap.sh tests/pmix/slurm.sh
EXTRA_DIST += tests/pmix/nccl.sh

if HAVE_PMIX
check_PROGRAMS += tests/pmix/bootstrap
tests_pmix_bootstrap_SOURCES = tests/pmix/bootstrap.c
tests_pmix_bootstrap_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_pmix_bootstrap_CFLAGS = $(OUTER_CFLAGS)
tests_pmix_bootstrap_LDADD = $(MPI_LIBS) $(DL_LIBS)
tests_pmix_bootstrap_LDFLAGS = $(ranks_link)
endif
