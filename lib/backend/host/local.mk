# SPDX-License-Identifier: Apache-2.0
# Memory, one queue and collectives on CPUs. Without MPI there is one rank.
modules_LTLIBRARIES += lib/zero_host.la
lib_zero_host_la_SOURCES = \
	lib/backend/account.c \
	lib/backend/newton_schulz.c \
	lib/backend/team_comm.c \
	lib/backend/host/host.c \
	lib/backend/host/huge_file.c \
	lib/backend/host/all_to_all.c \
	lib/backend/host/memory_pool.c \
	lib/backend/host/gather_buffers.c \
	lib/backend/host/own_buffer.c \
	lib/backend/host/gemm.c \
	lib/backend/host/shared_arena.c \
	lib/backend/host/single_rank.c \
	lib/core/available_memory.c
lib_zero_host_la_CPPFLAGS = $(AM_CPPFLAGS)
lib_zero_host_la_LIBADD = kernels/libkernels.la $(DL_LIBS) -lm
lib_zero_host_la_LDFLAGS = $(MODULE_LDFLAGS)
if HAVE_MPI
lib_zero_host_la_SOURCES += \
	lib/backend/host/mpi_agree.c \
	lib/backend/host/mpi_all_gather.c \
	lib/backend/host/mpi_all_to_all.c \
	lib/backend/host/mpi_comm.c \
	lib/backend/host/mpi_init.c \
	lib/backend/host/mpi_reduce_scatter.c \
	lib/backend/host/mpi_scatter.c \
	lib/backend/host/node_memory.c \
	lib/backend/host/shared_buffer.c
lib_zero_host_la_CPPFLAGS += $(MPI_CFLAGS)
lib_zero_host_la_LIBADD += $(MPI_LIBS)
endif
noinst_HEADERS += \
	lib/backend/host/host.h \
	lib/backend/host/mpi_comm.h \
	lib/backend/host/node_memory.h \
	lib/backend/host/gather_buffers.h \
	lib/backend/host/shared_arena.h
