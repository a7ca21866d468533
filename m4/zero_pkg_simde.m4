dnl SPDX-License-Identifier: Apache-2.0
dnl SIMD Everywhere lets a test run the AVX-512 kernels on machines that have no AVX-512.
AC_DEFUN([ZERO_PKG_SIMDE], [
ZERO_PKG([simde], [SIMDE], [tests of foreign instruction sets], [simde], [""],
	[simde/x86/avx512.h],
	[[simde__m512 x = simde_mm512_setzero_ps(); (void)x;]],
	[libsimde-dev or simde-devel])
])
