dnl SPDX-License-Identifier: Apache-2.0
dnl NCCL communicates between GPUs. Its header is all that is needed here, beside CUDA's or in a
dnl folder of its own: the library is opened when a program runs, the system's or the program's own.
AC_DEFUN([ZERO_PKG_NCCL], [
AC_REQUIRE([ZERO_PKG_CUDA])
ZERO_PKG_WITH([nccl], [collectives of GPUs])
AC_MSG_CHECKING([for nccl])
zero_cflags=
zero_header=nccl.h
AS_CASE([$with_nccl],
	[no], [zero_header=],
	[/*], [ZERO_PKG_FOLDER([$with_nccl], [nccl.h])])
AS_IF([test -z "$zero_header"], [],
	[test $zero_cuda = no], [zero_reason='CUDA is off'],
	[dnl Buffers of its own (ncclMemAlloc) came with 2.19. Without a library, the linker wants nothing.
	 ZERO_PKG_LINK([NCCL], [$zero_cflags $CUDA_CFLAGS], [],
		[[#include <nccl.h>
		  #if NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 0)
		  #error NCCL 2.19 is needed
		  #endif]],
		[[ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
		  return config.splitShare == 0 || sizeof(ncclMemAlloc) == 0;]])
	 AS_IF([test $zero_found = no], [zero_reason='no nccl.h of NCCL 2.19 or later'],
		[zero_saved_CPPFLAGS=$CPPFLAGS
		 CPPFLAGS="$CPPFLAGS $NCCL_CFLAGS"
		 AC_COMPUTE_INT([zero_n], [NCCL_VERSION_CODE], [[#include <nccl.h>]], [zero_n=0])
		 CPPFLAGS=$zero_saved_CPPFLAGS
		 zero_version="$((zero_n / 10000)).$((zero_n / 100 % 100)).$((zero_n % 100))"])])
AC_MSG_RESULT([$zero_found])
ZERO_PKG_RESULT([nccl], [NCCL], [collectives of GPUs], [libnccl-dev or libnccl-devel])
])
