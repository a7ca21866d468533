dnl SPDX-License-Identifier: Apache-2.0
dnl A BLAS with the C interface multiplies the matrices of the examples; libzero needs none.
AC_DEFUN([ZERO_PKG_CBLAS], [
ZERO_PKG([cblas], [CBLAS], [examples], [openblas cblas], ["-lopenblas" "-lcblas" "-lblas"],
	[cblas.h],
	[[float x = 1, y = 0;
	  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 1, 1, 1, 1, &x, 1, &x, 1, 0, &y, 1);]],
	[libopenblas-dev or openblas-devel])
])
