# SPDX-License-Identifier: Apache-2.0
# make bench. The bare operations that a figure is held against are MPI's.
EXTRA_DIST += \
	tests/bench/fsdp2.py \
	tests/bench/zero3.py \
	tests/bench/misses.txt \
	tests/bench/peers.py \
	tests/bench/run.sh \
	tests/bench/streamed.py \
	tests/bench/torch_load.py \
	tests/bench/torch_save.py
CLEANFILES += bench.json
tests_bench_bench_SOURCES = \
	lib/backend/cpu_step.c \
	tests/bench/bench.c \
	tests/bench/bench.h \
	tests/bench/copies.c \
	tests/bench/downcast.c \
	tests/bench/flatten.c \
	tests/bench/gather.c \
	tests/bench/goals.c \
	tests/bench/gpt.c \
	tests/bench/harness.c \
	tests/bench/load.c \
	tests/bench/machine.c \
	tests/bench/memory.c \
	tests/bench/naive.c \
	tests/bench/partition.c \
	tests/bench/protect.c \
	tests/bench/record.c \
	tests/bench/record.h \
	tests/bench/reduce.c \
	tests/bench/save.c \
	tests/bench/small.c \
	tests/bench/sources.c \
	tests/bench/step.c \
	tests/bench/table.c \
	tests/bench/values.c
tests_bench_bench_CFLAGS = $(OUTER_CFLAGS) $(MPI_CFLAGS)
tests_bench_bench_LDADD = lib/liboptions.la lib/libzero.la kernels/libkernels.la $(MPI_LIBS) -lm
tests_bench_bench_LDFLAGS = $(AM_LDFLAGS) -no-install
if HAVE_MPI
check_PROGRAMS += tests/bench/bench
bench_parts = tests/bench/bench tests/double/nodes.la
else
EXTRA_PROGRAMS += tests/bench/bench
bench_parts =
endif

bench: all $(bench_parts)
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/tests/bench/run.sh

.PHONY: bench
