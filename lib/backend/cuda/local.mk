# SPDX-License-Identifier: Apache-2.0
# zero_cuda.so: the backend of GPUs and NCCL. Both are loaded when a job asks for them, so that the
# module itself needs neither.
cuda_sources = \
	lib/backend/account.c \
	lib/backend/newton_schulz.c \
	lib/backend/rendezvous.c \
	lib/backend/team_comm.c \
	lib/backend/cuda/all_gather.c \
	lib/backend/cuda/all_to_all.c \
	lib/backend/cuda/backend_ops.c \
	lib/backend/cuda/collectives.c \
	lib/backend/cuda/comm_open.c \
	lib/backend/cuda/comm_ops.c \
	lib/backend/cuda/copy.c \
	lib/backend/cuda/device.c \
	lib/backend/cuda/driver.c \
	lib/backend/cuda/driver.h \
	lib/backend/cuda/event.c \
	lib/backend/cuda/gpu.h \
	lib/backend/cuda/gpu_comm.h \
	lib/backend/cuda/kernel_launch.c \
	lib/backend/cuda/memory.c \
	lib/backend/cuda/nccl_api.c \
	lib/backend/cuda/nccl_api.h \
	lib/backend/cuda/nccl_comm.c \
	lib/backend/cuda/nccl_watchdog.c \
	lib/backend/cuda/gather_slot.c \
	lib/backend/cuda/gemm.c \
	lib/backend/cuda/reduce_grid.c \
	lib/backend/cuda/reduce_ordered.c \
	lib/backend/cuda/reduce_scatter.c \
	lib/backend/cuda/rendezvous.c \
	lib/backend/cuda/scatter.c \
	lib/backend/cuda/team.c \
	lib/backend/cuda/waits.c \
	lib/backend/cuda/window.c
EXTRA_DIST += $(cuda_sources)
if HAVE_CUDA
if HAVE_NCCL
modules_LTLIBRARIES += lib/zero_cuda.la
lib_zero_cuda_la_SOURCES = $(cuda_sources)
lib_zero_cuda_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS) $(NCCL_CFLAGS)
lib_zero_cuda_la_LIBADD = lib/liboptions.la kernels/libkernels.la kernels/libdevice.la $(DL_LIBS) -lm
lib_zero_cuda_la_LDFLAGS = $(MODULE_LDFLAGS)
endif
endif
