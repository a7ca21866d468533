dnl SPDX-License-Identifier: Apache-2.0
dnl NCCL communicates between GPUs. It lies beside CUDA or in a folder of its own.
AC_DEFUN([ZERO_PKG_NCCL], [
AC_REQUIRE([ZERO_PKG_CUDA])
ZERO_PKG_WITH([nccl], [collectives of GPUs])
AC_MSG_CHECKING([for nccl])
zero_cflags=
zero_ldflags=
zero_header=nccl.h
AS_CASE([$with_nccl],
	[no], [zero_header=],
	[/*], [ZERO_PKG_FOLDER([$with_nccl], [nccl.h])])
AS_IF([test -z "$zero_header"], [],
	[test $zero_cuda = no], [zero_reason='CUDA is off'],
	[dnl A communicator from several ids came with 2.23.
	 ZERO_PKG_LINK([NCCL], [$zero_cflags $CUDA_CFLAGS], [$zero_ldflags $CUDA_LIBS -lnccl],
		[[#include <nccl.h>
		  #if NCCL_VERSION_CODE < NCCL_VERSION(2, 23, 4)
		  #error NCCL 2.23.4 is needed
		  #endif]],
		[[ncclComm_t comm; ncclUniqueId id;
		  return ncclCommInitRankScalable(&comm, 1, 0, 1, &id, NULL);]])
	 AS_IF([test $zero_found = no], [zero_reason='none that links, or older than 2.23.4'],
		[zero_saved_CPPFLAGS=$CPPFLAGS
		 CPPFLAGS="$CPPFLAGS $NCCL_CFLAGS"
		 AC_COMPUTE_INT([zero_n], [NCCL_VERSION_CODE], [[#include <nccl.h>]], [zero_n=0])
		 CPPFLAGS=$zero_saved_CPPFLAGS
		 zero_version="$((zero_n / 10000)).$((zero_n / 100 % 100)).$((zero_n % 100))"])])
AC_MSG_RESULT([$zero_found])
ZERO_PKG_RESULT([nccl], [NCCL], [collectives of GPUs], [libnccl-dev or libnccl-devel])
])
