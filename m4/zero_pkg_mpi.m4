dnl SPDX-License-Identifier: Apache-2.0
dnl MPI communicates between hosts. Its wrapper compiler is asked for the flags and not used, so that
dnl only what needs MPI is linked with it. The wrapper of the machine that builds knows
dnl nothing of another one: pkg-config does, or a wrapper that has its name.
AC_DEFUN([ZERO_PKG_MPI], [
ZERO_PKG_WITH([mpi], [jobs of several ranks])
dnl Fedora and its relatives keep each MPI out of PATH, in a folder of its own.
AS_CASE([$with_mpi:$cross_compiling],
	[no:*], [MPICC=],
	[/*:*], [AC_PATH_PROG([MPICC], [mpicc], [], [$with_mpi/bin])],
	[*:yes], [AC_PATH_PROG([MPICC], [$host_alias-mpicc])],
	[AC_PATH_PROG([MPICC], [mpicc], [],
		[$PATH:/usr/lib64/openmpi/bin:/usr/lib64/mpich/bin])])
AC_MSG_CHECKING([for mpi])
zero_cflags=
zero_libs=
AS_IF([test $with_mpi = no], [],
	[test -z "$MPICC"],
	[AS_CASE([$with_mpi],
		[/*], [zero_reason="there is no $with_mpi/bin/mpicc"],
		[for zero_module in ompi-c mpi-c mpich; do
			$PKG_CONFIG --exists $zero_module 2>/dev/null || continue
			zero_cflags=$($PKG_CONFIG --cflags $zero_module)
			zero_libs=$($PKG_CONFIG --libs $zero_module)
			zero_version="$($PKG_CONFIG --modversion $zero_module) ($zero_module)"
			break
		 done])],
	[zero_libs=$($MPICC --showme:link 2>/dev/null)],
	[zero_cflags=$($MPICC --showme:compile)
	 zero_version=$($MPICC --showme:version 2>&1 | sed 's/^@<:@^:@:>@*: *//; s/ *(.*//')],
	[for zero_word in $($MPICC -show 2>/dev/null); do
		AS_CASE([$zero_word],
			[-I*|-D*], [zero_cflags="$zero_cflags $zero_word"],
			[-L*|-l*|-Wl,*], [zero_libs="$zero_libs $zero_word"])
	 done
	 zero_version=$MPICC])
dnl Windows of shared memory came with MPI 3.
AS_IF([test -n "$zero_libs"],
	[ZERO_PKG_LINK([MPI], [$zero_cflags], [$zero_libs],
		[[#include <mpi.h>
		  #if MPI_VERSION < 3
		  #error MPI 3 is needed
		  #endif]],
		[[int level; MPI_Win window; void *base;
		  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
		  MPI_Win_allocate_shared(8, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);]])
	 AS_IF([test $zero_found = no], [zero_reason="$zero_version does not link, or is older than MPI 3"])])
AC_MSG_RESULT([$zero_found])
ZERO_PKG_RESULT([mpi], [MPI], [jobs of several ranks], [libopenmpi-dev or openmpi-devel])
])
