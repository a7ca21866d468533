# SPDX-License-Identifier: Apache-2.0
# Memory, one queue and collectives on CPUs. Without MPI there is one rank.
modules_LTLIBRARIES += lib/zero_host.la
lib_zero_host_la_SOURCES = \
	lib/backend/account.c \
	lib/backend/agree.c \
	lib/backend/team_comm.c \
	lib/backend/queue.c \
	lib/backend/host/arena.c \
	lib/backend/host/available.c \
	lib/backend/host/comm_self.c \
	lib/backend/host/host.c \
	lib/backend/host/pool.c
lib_zero_host_la_CPPFLAGS = $(AM_CPPFLAGS)
lib_zero_host_la_LIBADD = kernels/libkernels.la -lm
lib_zero_host_la_LDFLAGS = $(MODULE_LDFLAGS)
if HAVE_MPI
lib_zero_host_la_SOURCES += \
	lib/backend/host/comm_mpi.c \
	lib/backend/host/gather.c \
	lib/backend/host/max.c \
	lib/backend/host/mpi_world.c \
	lib/backend/host/node.c \
	lib/backend/host/reduce.c \
	lib/backend/host/scatter.c \
	lib/backend/host/shared.c
lib_zero_host_la_CPPFLAGS += $(MPI_CFLAGS)
lib_zero_host_la_LIBADD += $(MPI_LIBS)
endif
noinst_HEADERS += \
	lib/backend/host/arena.h \
	lib/backend/host/available.h \
	lib/backend/host/host.h \
	lib/backend/host/mpi_comm.h \
	lib/backend/host/node.h
