# SPDX-License-Identifier: Apache-2.0
# zero_pmix.so by itself: alone, under mpirun, and on a real Slurm.
SCRIPT_TESTS += tests/pmix/wire.sh tests/pmix/slurm.sh
EXTRA_DIST += tests/pmix/nccl.sh

if HAVE_PMIX
check_PROGRAMS += tests/pmix/wire
tests_pmix_wire_SOURCES = tests/pmix/wire.c
tests_pmix_wire_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_pmix_wire_CFLAGS = $(OUTER_CFLAGS)
tests_pmix_wire_LDADD = $(MPI_LIBS) $(DL_LIBS)
tests_pmix_wire_LDFLAGS = $(ranks_link)
endif
