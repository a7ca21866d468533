# SPDX-License-Identifier: Apache-2.0
# Programs of several ranks. They link libzero as any other program does (LDADD), and are real
# programs rather than libtool's scripts around them, since a launcher starts them as they are.
LDADD = lib/libzero.la -lm
ranks_link = $(AM_LDFLAGS) -no-install

RANKS_TESTS = \
	tests/ranks/apart.ranks \
	tests/ranks/close.ranks \
	tests/ranks/export.ranks \
	tests/ranks/large.ranks \
	tests/ranks/memory.ranks \
	tests/ranks/order.ranks \
	tests/ranks/partition.ranks \
	tests/ranks/same_values.ranks \
	tests/ranks/sizing.ranks \
	tests/ranks/threads.ranks \
	tests/ranks/train.ranks
if HAVE_MPI
RANKS_TESTS += tests/ranks/own_mpi.ranks
endif

tests_ranks_apart_ranks_SOURCES = tests/ranks/apart.c tests/ranks/ranks.h
tests_ranks_apart_ranks_LDFLAGS = $(ranks_link)
tests_ranks_close_ranks_SOURCES = tests/ranks/close.c tests/ranks/ranks.h
tests_ranks_close_ranks_LDFLAGS = $(ranks_link)
tests_ranks_export_ranks_SOURCES = tests/ranks/export.c tests/ranks/ranks.h
tests_ranks_export_ranks_LDFLAGS = $(ranks_link)
tests_ranks_large_ranks_SOURCES = tests/ranks/large.c tests/ranks/ranks.h
tests_ranks_large_ranks_LDFLAGS = $(ranks_link)
tests_ranks_memory_ranks_SOURCES = tests/ranks/memory.c tests/ranks/ranks.h
tests_ranks_memory_ranks_LDFLAGS = $(ranks_link)
tests_ranks_order_ranks_SOURCES = tests/ranks/order.c tests/ranks/ranks.h
tests_ranks_order_ranks_LDFLAGS = $(ranks_link)
tests_ranks_partition_ranks_SOURCES = tests/ranks/partition.c tests/ranks/ranks.h
tests_ranks_partition_ranks_LDFLAGS = $(ranks_link)
tests_ranks_same_values_ranks_SOURCES = tests/ranks/same_values.c tests/ranks/ranks.h
tests_ranks_same_values_ranks_LDFLAGS = $(ranks_link)
tests_ranks_sizing_ranks_SOURCES = tests/ranks/sizing.c tests/ranks/ranks.h
tests_ranks_sizing_ranks_LDFLAGS = $(ranks_link)
tests_ranks_threads_ranks_SOURCES = tests/ranks/threads.c tests/ranks/ranks.h
tests_ranks_threads_ranks_LDFLAGS = $(ranks_link)
tests_ranks_train_ranks_SOURCES = tests/ranks/train.c tests/ranks/ranks.h
tests_ranks_train_ranks_LDFLAGS = $(ranks_link)

tests_ranks_own_mpi_ranks_SOURCES = tests/ranks/own_mpi.c tests/ranks/ranks.h
tests_ranks_own_mpi_ranks_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_ranks_own_mpi_ranks_LDADD = $(LDADD) $(MPI_LIBS)
tests_ranks_own_mpi_ranks_LDFLAGS = $(ranks_link)
