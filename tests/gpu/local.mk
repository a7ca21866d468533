# SPDX-License-Identifier: Apache-2.0
# What needs a GPU: tests/gpu/run builds and runs it where there is one. The driver is opened when
# these programs run, so that they are built without a GPU too, and tests/gpu/doubles.sh runs them
# with stand-ins for the driver and NCCL.
EXTRA_DIST += doc/gpu.md tests/gpu/run tests/gpu/table.awk tests/gpu/fsdp2.py \
	tests/gpu/doubles.sh
SCRIPT_TESTS += tests/gpu/doubles.sh

gpu_parts =
if HAVE_CUDA
gpu_parts += tests/gpu/kernels tests/gpu/ranks tests/gpu/transfers
endif
check_PROGRAMS += $(gpu_parts)

tests_gpu_kernels_SOURCES = \
	tests/gpu/device.c tests/gpu/kernels.c tests/gpu/kernels_check.c \
	tests/gpu/kernels_large.c tests/gpu/kernels_more.c tests/gpu/kernels_muon.c tests/gpu/kernels_shared.c \
	tests/gpu/kernels_time.c \
	tests/ranks/reference.c \
	tests/gpu/device.h tests/gpu/kernels.h tests/gpu/record.h tests/ranks/reference.h
tests_gpu_kernels_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_gpu_kernels_CFLAGS = $(OUTER_CFLAGS)
tests_gpu_kernels_LDADD = \
	kernels/libdevice.la kernels/libkernels.la lib/liboptions.la $(DL_LIBS) -lm

tests_gpu_ranks_SOURCES = \
	tests/gpu/device.c tests/gpu/ranks.c tests/gpu/ranks_flatten.c \
	tests/gpu/ranks_gather.c tests/gpu/ranks_graph.c tests/gpu/ranks_load.c \
	tests/gpu/ranks_step.c \
	tests/ranks/reference.c \
	tests/gpu/device.h tests/gpu/ranks.h tests/ranks/ranks.h tests/ranks/reference.h
tests_gpu_ranks_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_gpu_ranks_CFLAGS = $(OUTER_CFLAGS)
tests_gpu_ranks_LDADD = $(LDADD) $(DL_LIBS)
tests_gpu_ranks_LDFLAGS = $(ranks_link)

tests_gpu_transfers_SOURCES = \
	tests/gpu/device.c tests/gpu/libraries.c tests/gpu/transfers.c tests/gpu/transfers_load.c \
	tests/gpu/transfers_comm.c tests/gpu/transfers_step.c \
	tests/gpu/device.h tests/gpu/record.h tests/gpu/transfers.h tests/ranks/ranks.h
tests_gpu_transfers_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_gpu_transfers_CFLAGS = $(OUTER_CFLAGS)
tests_gpu_transfers_LDADD = kernels/libdevice.la $(LDADD) $(DL_LIBS)
tests_gpu_transfers_LDFLAGS = $(ranks_link)

gpu-programs: $(gpu_parts)

.PHONY: gpu-programs
