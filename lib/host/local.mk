# SPDX-License-Identifier: Apache-2.0
# Memory, one queue and collectives on CPUs. Without MPI there is one rank.
modules_LTLIBRARIES += lib/zero_host.la
lib_zero_host_la_SOURCES = \
	lib/backend/account.c \
	lib/backend/agree.c \
	lib/backend/channel.c \
	lib/backend/queue.c \
	lib/host/arena.c \
	lib/host/available.c \
	lib/host/comm_self.c \
	lib/host/host.c \
	lib/host/pool.c
lib_zero_host_la_CPPFLAGS = $(AM_CPPFLAGS)
lib_zero_host_la_LIBADD = kernels/libkernels.la -lm
lib_zero_host_la_LDFLAGS = $(MODULE_LDFLAGS)
if HAVE_MPI
lib_zero_host_la_SOURCES += \
	lib/host/comm_mpi.c \
	lib/host/gather.c \
	lib/host/max.c \
	lib/host/mpi_world.c \
	lib/host/node.c \
	lib/host/reduce.c \
	lib/host/scatter.c \
	lib/host/shared.c
lib_zero_host_la_CPPFLAGS += $(MPI_CFLAGS)
lib_zero_host_la_LIBADD += $(MPI_LIBS)
endif
noinst_HEADERS += \
	lib/host/arena.h \
	lib/host/available.h \
	lib/host/host.h \
	lib/host/mpi_comm.h \
	lib/host/node.h
