dnl SPDX-License-Identifier: Apache-2.0
dnl What the compiler and the C library must offer. Sets ZERO_CFLAGS (how all our code is compiled),
dnl ZERO_LDFLAGS (how all of it is linked), ZERO_WARNINGS, DL_LIBS and the conditionals HAVE_X86 and
dnl HAVE_NEON.

dnl ZERO_HARDENED: ends a process at a wrong write instead of letting an attacker control it, for
dnl code that root runs and that reads other people's files: canaries, checked copies, and tables of
dnl symbols that are filled at once and read-only from then on. Sanitizers see more without. Where a
dnl distribution's compiler has its own _FORTIFY_SOURCE, that one holds; without optimisation there
dnl is none.
AC_DEFUN([ZERO_HARDENED], [
zero_hardened=
AS_CASE(["$CC $CPPFLAGS $CFLAGS"], [*-fsanitize*], [zero_hardened="no, for the sanitizer"])
zero_hardened_CFLAGS=$CFLAGS
zero_hardened_LDFLAGS=$LDFLAGS
AC_MSG_CHECKING([for hardening])
AS_IF([test -z "$zero_hardened"], [
	CFLAGS="$zero_hardened_CFLAGS -Werror -fstack-protector-strong"
	AC_LINK_IFELSE([AC_LANG_PROGRAM([[]], [[]])],
		[ZERO_CFLAGS="$ZERO_CFLAGS -fstack-protector-strong"
		 zero_hardened="$zero_hardened -fstack-protector-strong"])
	CFLAGS="$zero_hardened_CFLAGS -Werror -D_FORTIFY_SOURCE=2"
	AC_LINK_IFELSE([AC_LANG_PROGRAM(
		[[#ifndef __OPTIMIZE__
		  #error nothing would be checked
		  #endif
		  #include <string.h>]], [[]])],
		[ZERO_CFLAGS="$ZERO_CFLAGS -D_FORTIFY_SOURCE=2"
		 zero_hardened="$zero_hardened -D_FORTIFY_SOURCE=2"])
	CFLAGS=$zero_hardened_CFLAGS
	LDFLAGS="$zero_hardened_LDFLAGS -Wl,-z,relro -Wl,-z,now"
	AC_LINK_IFELSE([AC_LANG_PROGRAM([[]], [[]])],
		[ZERO_LDFLAGS="-Wl,-z,relro -Wl,-z,now"
		 zero_hardened="$zero_hardened $ZERO_LDFLAGS"])])
CFLAGS=$zero_hardened_CFLAGS
LDFLAGS=$zero_hardened_LDFLAGS
AC_MSG_RESULT([${zero_hardened:-no}])
AC_SUBST([ZERO_LDFLAGS])
])

AC_DEFUN([ZERO_COMPILER], [
AC_ARG_ENABLE([werror],
	[AS_HELP_STRING([--enable-werror], [make compiler warnings errors])], [], [enable_werror=no])

dnl The same bits everywhere: a compiler must not fuse a multiplication and an addition by itself.
dnl Nobody reads errno after sqrtf, and setting it keeps loops from being vectorised.
ZERO_CFLAGS="-std=gnu11 -pthread -ffp-contract=off -fno-math-errno"
ZERO_WARNINGS="-Wall -Wextra -Wshadow -Wconversion"
AS_IF([test "$enable_werror" = yes], [ZERO_WARNINGS="$ZERO_WARNINGS -Werror"])

zero_saved_CFLAGS=$CFLAGS
CFLAGS="$CFLAGS $ZERO_CFLAGS"
AC_MSG_CHECKING([whether $CC is a C11 compiler with atomics and threads])
AC_LINK_IFELSE([AC_LANG_PROGRAM(
	[[#include <pthread.h>
	  #include <stdatomic.h>
	  #include <stddef.h>
	  #if __STDC_VERSION__ < 201112L
	  #error not C11
	  #endif
	  static _Atomic size_t bytes;
	  static _Thread_local char sentence[16];
	  static void *work(void *unused)
	  {
		atomic_fetch_add(&bytes, sizeof(sentence));
		return unused;
	  }]],
	[[pthread_t thread;
	  return pthread_create(&thread, NULL, work, NULL) || pthread_join(thread, NULL);]])],
	[AC_MSG_RESULT([yes])],
	[AC_MSG_RESULT([no])
	 AC_MSG_ERROR(m4_normalize([$CC does not compile C11 with stdatomic.h, pthread.h and the flags
		"$ZERO_CFLAGS": GCC 5 or Clang 4 and later do; choose one with CC=. config.log has the
		compiler's words.]))])

CFLAGS=$zero_saved_CFLAGS
ZERO_HARDENED
CFLAGS="$CFLAGS $ZERO_CFLAGS"

dnl One file for each instruction set, chosen when the program runs.
AC_MSG_CHECKING([for AVX2 and AVX-512])
CFLAGS="$CFLAGS -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl"
AC_LINK_IFELSE([AC_LANG_PROGRAM(
	[[#if !defined(__x86_64__)
	  #error not an x86-64
	  #endif
	  #include <immintrin.h>]],
	[[float x[16] = {0};
	  _mm512_storeu_ps(x, _mm512_fmadd_ps(_mm512_loadu_ps(x), _mm512_set1_ps(2), _mm512_set1_ps(1)));
	  return !__builtin_cpu_supports("avx512f");]])],
	[zero_x86=yes], [zero_x86=no])
AC_MSG_RESULT([$zero_x86])
AM_CONDITIONAL([HAVE_X86], [test $zero_x86 = yes])
zero_kernels=scalar
AS_IF([test $zero_x86 = yes],
	[zero_kernels="avx512, avx2 and scalar, chosen at run time"
	 AC_DEFINE([HAVE_X86], [1], [Define to 1 if the compiler makes AVX2 and AVX-512 code.])])
CFLAGS=$zero_saved_CFLAGS

AC_MSG_CHECKING([for NEON])
AC_LINK_IFELSE([AC_LANG_PROGRAM(
	[[#if !defined(__aarch64__) || defined(__AARCH64EB__)
	  #error not a little-endian AArch64
	  #endif
	  #include <arm_neon.h>
	  #include <sys/auxv.h>]],
	[[float x[4] = {0};
	  vst1q_f32(x, vsqrtq_f32(vld1q_f32(x)));
	  return !(getauxval(AT_HWCAP) & HWCAP_ASIMD);]])],
	[zero_neon=yes], [zero_neon=no])
AC_MSG_RESULT([$zero_neon])
AM_CONDITIONAL([HAVE_NEON], [test $zero_neon = yes])
AS_IF([test $zero_neon = yes],
	[zero_kernels="neon and scalar, chosen at run time"
	 AC_DEFINE([HAVE_NEON], [1], [Define to 1 if the compiler makes NEON code of AArch64.])])

dnl In the C library since glibc 2.34.
zero_saved_LIBS=$LIBS
AC_SEARCH_LIBS([dlopen], [dl], [], [AC_MSG_ERROR([dlopen is in neither the C library nor libdl.])])
AS_CASE([$ac_cv_search_dlopen], [-l*], [DL_LIBS=$ac_cv_search_dlopen], [DL_LIBS=])
LIBS=$zero_saved_LIBS

AC_SUBST([ZERO_CFLAGS])
AC_SUBST([ZERO_WARNINGS])
AC_SUBST([DL_LIBS])
])
