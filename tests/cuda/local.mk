# SPDX-License-Identifier: Apache-2.0
# The CUDA backend with the stand-ins of tests/double for a GPU and NCCL: errors, several nodes, random
# schedules, and what callers provide (streams, allocators, communicators). tests/ranks/run.sh runs all
# programs of several ranks with it, and tests/gpu/doubles.sh those written for a GPU.
SCRIPT_TESTS += tests/cuda/caller.sh tests/cuda/counts.sh tests/cuda/errors.sh tests/cuda/nodes.sh \
	tests/cuda/pinned.sh tests/cuda/schedules.sh
LONG_TESTS += tests/cuda/counts.sh tests/cuda/schedules.sh
if HAVE_CUDA
check_PROGRAMS += tests/cuda/life tests/cuda/nodes tests/cuda/pinned
tests_cuda_pinned_SOURCES = tests/cuda/pinned.c tests/ranks/ranks.h
tests_cuda_pinned_LDADD = $(LDADD) $(DL_LIBS)
tests_cuda_pinned_LDFLAGS = $(ranks_link)
tests_cuda_nodes_SOURCES = \
	tests/cuda/nodes.c tests/ranks/reference.c tests/ranks/reference.h tests/ranks/ranks.h
tests_cuda_nodes_LDFLAGS = $(ranks_link)
tests_cuda_life_SOURCES = tests/cuda/life.c tests/ranks/ranks.h
tests_cuda_life_LDFLAGS = $(ranks_link)
if HAVE_NCCL
check_PROGRAMS += tests/cuda/caller tests/cuda/counts
tests_cuda_counts_SOURCES = \
	tests/cuda/counts.c tests/gpu/device.c tests/gpu/device.h tests/ranks/ranks.h
tests_cuda_counts_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_cuda_counts_CFLAGS = $(OUTER_CFLAGS)
tests_cuda_counts_LDADD = $(LDADD) $(DL_LIBS)
tests_cuda_counts_LDFLAGS = $(ranks_link)
tests_cuda_caller_SOURCES = \
	tests/cuda/caller.c tests/gpu/device.c tests/gpu/device.h tests/ranks/ranks.h
tests_cuda_caller_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS) $(NCCL_CFLAGS)
tests_cuda_caller_CFLAGS = $(OUTER_CFLAGS)
tests_cuda_caller_LDADD = $(LDADD) $(DL_LIBS)
tests_cuda_caller_LDFLAGS = $(ranks_link)
endif
endif
