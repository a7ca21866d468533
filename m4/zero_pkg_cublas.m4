dnl SPDX-License-Identifier: Apache-2.0
dnl cuBLAS, of the CUDA toolkit, multiplies the matrices of the examples on GPUs; libzero needs none.
AC_DEFUN([ZERO_PKG_CUBLAS], [
AC_REQUIRE([ZERO_PKG_CUDA])
ZERO_PKG_WITH([cublas], [examples on GPUs])
AC_MSG_CHECKING([for cublas])
AS_CASE([$zero_cuda,$with_cublas],
	[*,no], [],
	[no,*], [zero_reason='CUDA is off'],
	[AS_CASE([$with_cublas],
		[/*], [ZERO_PKG_FOLDER([$with_cublas], [cublas_v2.h])],
		[ZERO_PKG_FOLDER([$CUDA_HOME], [cublas_v2.h])])
	 AS_IF([test -n "$zero_header"],
		[zero_reason='it does not link'
		 ZERO_PKG_LINK([CUBLAS], [$zero_cflags $CUDA_CFLAGS], [$zero_ldflags -lcublas -lcudart],
			[[#include <cublas_v2.h>]],
			[[cublasHandle_t blas; return cublasCreate(&blas) || cudaGetLastError();]])])])
AC_MSG_RESULT([$zero_found])
ZERO_PKG_RESULT([cublas], [CUBLAS], [examples on GPUs], [the CUDA toolkit])
])
