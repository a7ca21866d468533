dnl SPDX-License-Identifier: Apache-2.0
dnl The compiler of the program that writes lists for the man pages, which runs while building. Only
dnl where this package is built for another machine is it not CC.
AC_DEFUN([ZERO_CC_FOR_BUILD], [
AC_ARG_VAR([CC_FOR_BUILD], [C compiler for the machine that builds, if CC is for another])
AS_IF([test -n "$CC_FOR_BUILD"], [],
	[test "$cross_compiling" = yes],
		[AC_CHECK_PROGS([CC_FOR_BUILD], [gcc cc clang])
		 AS_IF([test -n "$CC_FOR_BUILD"], [],
			[AC_MSG_ERROR([no C compiler for this machine itself: choose one with CC_FOR_BUILD=.])])],
	[CC_FOR_BUILD=$CC])
])
