# SPDX-License-Identifier: Apache-2.0
# zero_pmix.so by itself: alone, under mpirun, and on a real Slurm.
SCRIPT_TESTS += tests/pmix/rendezvous.sh tests/pmix/slurm.sh

if HAVE_PMIX
check_PROGRAMS += tests/pmix/rendezvous
tests_pmix_rendezvous_SOURCES = tests/pmix/rendezvous.c
tests_pmix_rendezvous_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_pmix_rendezvous_CFLAGS = $(OUTER_CFLAGS)
tests_pmix_rendezvous_LDADD = lib/libzero.la $(MPI_LIBS) $(DL_LIBS)
tests_pmix_rendezvous_LDFLAGS = $(ranks_link)
endif
