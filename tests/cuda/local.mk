# SPDX-License-Identifier: Apache-2.0
# The CUDA backend, where tests/double stands in for a GPU and for NCCL: what goes wrong, and what
# callers bring. tests/ranks/run.sh runs all programs of several ranks with it, and
# tests/gpu/doubles.sh those that a GPU runs.
SCRIPT_TESTS += tests/cuda/caller.sh tests/cuda/errors.sh
if HAVE_CUDA
check_PROGRAMS += tests/cuda/life
tests_cuda_life_SOURCES = tests/cuda/life.c tests/ranks/ranks.h
tests_cuda_life_LDFLAGS = $(ranks_link)
if HAVE_NCCL
check_PROGRAMS += tests/cuda/caller
tests_cuda_caller_SOURCES = \
	tests/cuda/caller.c tests/gpu/device.c tests/gpu/device.h tests/ranks/ranks.h
tests_cuda_caller_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS) $(NCCL_CFLAGS)
tests_cuda_caller_CFLAGS = $(OUTER_CFLAGS)
tests_cuda_caller_LDADD = $(LDADD) $(DL_LIBS)
tests_cuda_caller_LDFLAGS = $(ranks_link)
endif
endif
