# SPDX-License-Identifier: Apache-2.0
# zero_cuda.so: GPUs and NCCL, both opened when a job asks for them, so that it needs neither to be
# loaded. A test compiles the control connections by themselves.
control_sources = \
	lib/backend/cuda/control.c \
	lib/backend/cuda/control_collective.c \
	lib/backend/cuda/control_team.c \
	lib/backend/cuda/control.h \
	lib/backend/cuda/control_connect.c \
	lib/backend/cuda/control_link.c \
	lib/backend/cuda/control_private.h \
	lib/backend/cuda/control_reader.c \
	lib/net/address.c \
	lib/net/dial.c
cuda_sources = \
	lib/backend/account.c \
	lib/backend/agree.c \
	lib/backend/team_comm.c \
	lib/backend/queue.c \
	$(control_sources) \
	lib/backend/cuda/comm.c \
	lib/backend/cuda/copies.c \
	lib/backend/cuda/cuda.c \
	lib/backend/cuda/gpu.h \
	lib/backend/cuda/device.c \
	lib/backend/cuda/driver.c \
	lib/backend/cuda/driver.h \
	lib/backend/cuda/launch.c \
	lib/backend/cuda/memory.c \
	lib/backend/cuda/nccl.c \
	lib/backend/cuda/nccl_api.c \
	lib/backend/cuda/nccl_api.h \
	lib/backend/cuda/open.c \
	lib/backend/cuda/reduce.c \
	lib/backend/cuda/run.c \
	lib/backend/cuda/scatter.c \
	lib/backend/cuda/watch.c \
	lib/backend/cuda/windows.c
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
