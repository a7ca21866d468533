# SPDX-License-Identifier: Apache-2.0
# zero_cuda.so: GPUs and NCCL, both opened when a job asks for them, so that it needs neither to be
# loaded. A test compiles the control connections by themselves.
control_sources = \
	lib/cuda/control.c \
	lib/cuda/control_collective.c \
	lib/cuda/control_team.c \
	lib/cuda/control.h \
	lib/cuda/control_connect.c \
	lib/cuda/control_link.c \
	lib/cuda/control_private.h \
	lib/cuda/control_reader.c \
	lib/watch/address.c \
	lib/watch/dial.c
cuda_sources = \
	lib/backend/account.c \
	lib/backend/agree.c \
	lib/backend/channel.c \
	lib/backend/queue.c \
	$(control_sources) \
	lib/cuda/comm.c \
	lib/cuda/copies.c \
	lib/cuda/cuda.c \
	lib/cuda/gpu.h \
	lib/cuda/device.c \
	lib/cuda/driver.c \
	lib/cuda/driver.h \
	lib/cuda/launch.c \
	lib/cuda/memory.c \
	lib/cuda/nccl.c \
	lib/cuda/nccl_api.c \
	lib/cuda/nccl_api.h \
	lib/cuda/open.c \
	lib/cuda/reduce.c \
	lib/cuda/run.c \
	lib/cuda/scatter.c \
	lib/cuda/watch.c \
	lib/cuda/windows.c
EXTRA_DIST += $(control_sources) $(cuda_sources)
if HAVE_CUDA
if HAVE_NCCL
modules_LTLIBRARIES += lib/zero_cuda.la
lib_zero_cuda_la_SOURCES = $(cuda_sources)
lib_zero_cuda_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS) $(NCCL_CFLAGS)
lib_zero_cuda_la_LIBADD = lib/liboptions.la kernels/libkernels.la kernels/libdevice.la $(DL_LIBS) -lm
lib_zero_cuda_la_LDFLAGS = $(MODULE_LDFLAGS)
endif
endif
