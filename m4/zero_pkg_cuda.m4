dnl SPDX-License-Identifier: Apache-2.0
dnl The CUDA toolkit makes the device module: nvcc for the kernels, the runtime for memory and streams.
dnl Sets NVCC and CUDA_HOME.
AC_DEFUN([ZERO_PKG_CUDA], [
ZERO_PKG_WITH([cuda], [GPUs])
AS_CASE([$with_cuda],
	[no], [NVCC=],
	[/*], [AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])],
	[AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])])
AC_MSG_CHECKING([for cuda])
AS_IF([test -n "$NVCC"],
	[CUDA_HOME=$(cd "$(dirname "$NVCC")/.." && pwd)
	 ZERO_PKG_FOLDER([$CUDA_HOME], [cuda_runtime_api.h])
	 ZERO_PKG_LINK([CUDA], [$zero_cflags], [$zero_ldflags -lcudart],
		[[#include <cuda_runtime_api.h>]],
		[[int count; return cudaGetDeviceCount(&count);]])
	 AS_IF([test $zero_found = no], [zero_reason="$NVCC has no runtime beside it"],
		[AS_ECHO(['__global__ void probe(float *x) { x@<:@threadIdx.x@:>@ = 0; }']) >conftest.cu
		 AS_IF([$NVCC -c conftest.cu -o conftest.o >&AS_MESSAGE_LOG_FD 2>&1],
			[zero_version=$($NVCC --version | sed -n 's/.*release \(@<:@0-9.@:>@*\).*/\1/p')],
			[zero_found=no
			 zero_reason="$NVCC does not compile"])
		 rm -f conftest.cu conftest.o])])
AC_MSG_RESULT([$zero_found])
AC_SUBST([CUDA_HOME])
ZERO_PKG_RESULT([cuda], [CUDA], [GPUs], [the CUDA toolkit])
zero_cuda=$zero_found
])
