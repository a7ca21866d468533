dnl SPDX-License-Identifier: Apache-2.0
dnl What the checks for the packages share.
dnl
dnl Each package NAME has --with-NAME: left out, it is used if it is found; "no" leaves it out;
dnl "yes" or the path of its folder makes configure stop if it cannot be used. A check ends with
dnl ZERO_PKG_RESULT, which sets the conditional HAVE_VAR, its twin in config.h, VAR_CFLAGS, VAR_LIBS,
dnl a word in $zero_have for the tests and a line of the summary.

dnl ZERO_PKG_INIT: once, before the first package.
AC_DEFUN([ZERO_PKG_INIT], [
AC_REQUIRE([PKG_PROG_PKG_CONFIG])
zero_have=
zero_summary=
])

dnl ZERO_PKG_WITH(NAME, BRINGS): the flag. A check then sets zero_found, and zero_version if known.
AC_DEFUN([ZERO_PKG_WITH], [
AC_ARG_WITH([$1],
	[AS_HELP_STRING([--with-$1@<:@=PATH|yes|no@:>@], [$2 @<:@if found@:>@])],
	[], [with_$1=auto])
AS_CASE([$with_$1],
	[auto|yes|no], [],
	[/*], [AS_IF([test -d "$with_$1"], [],
		[AC_MSG_ERROR([--with-$1=$with_$1: there is no such folder.])])],
	[AC_MSG_ERROR([--with-$1=$with_$1: say yes, no or the absolute path of a folder.])])
zero_found=no
zero_version=
zero_reason='not found'
])

dnl ZERO_PKG_LINK(VAR, CFLAGS, LIBS, PROLOGUE, BODY): sets zero_found, and if it is yes VAR_CFLAGS and
dnl VAR_LIBS.
AC_DEFUN([ZERO_PKG_LINK], [
zero_saved_CFLAGS=$CFLAGS
zero_saved_LIBS=$LIBS
CFLAGS="$CFLAGS $2"
LIBS="$3 $LIBS"
AC_LINK_IFELSE([AC_LANG_PROGRAM([$4], [$5])],
	[zero_found=yes
	 $1_CFLAGS="$2"
	 $1_LIBS="$3"],
	[zero_found=no])
CFLAGS=$zero_saved_CFLAGS
LIBS=$zero_saved_LIBS
])

dnl ZERO_PKG_FOLDER(PATH, HEADER): sets zero_cflags and zero_ldflags for a package installed in PATH,
dnl or zero_header to nothing if it is not there, lest the system's own be taken for it. The run path
dnl goes with it, since the loader would not look there by itself.
AC_DEFUN([ZERO_PKG_FOLDER], [
zero_header=$(find "$1/include/" -follow -path "*/$2" 2>/dev/null | sed 1q)
zero_cflags="-I${zero_header%/$2}"
zero_ldflags=
for zero_dir in "$1/lib64" "$1/lib"; do
	AS_IF([test -d "$zero_dir"],
		[zero_ldflags="$zero_ldflags -L$zero_dir -Wl,-rpath,$zero_dir"])
done
AS_IF([test -z "$zero_header"], [zero_reason="no $2 under $1/include"])
])

dnl ZERO_PKG_RESULT(NAME, VAR, BRINGS, PACKAGES)
AC_DEFUN([ZERO_PKG_RESULT], [
AS_IF([test $zero_found = yes],
	[zero_have="$zero_have $1"
	 zero_line="on   ${zero_version:-found}"
	 AS_CASE([$with_$1], [/*], [zero_line="$zero_line in $with_$1"])
	 AC_DEFINE([HAVE_$2], [1], [Define to 1 for $3 ($1).])],
	[AS_CASE([$with_$1],
		[no], [zero_line="off  no $3: --with-$1=no"],
		[auto], [zero_line="off  no $3: $zero_reason; in $4, or --with-$1=PATH"],
		[AC_MSG_ERROR(m4_normalize([--with-$1=$with_$1: no $1 that works ($zero_reason). It is in
			$4. config.log has what was tried; --with-$1=no builds without $3.]))])])
AS_VAR_APPEND([zero_summary], ["$(printf '  %-8s %s' '$1' "$zero_line")
"])
AM_CONDITIONAL([HAVE_$2], [test $zero_found = yes])
AC_SUBST([$2_CFLAGS])
AC_SUBST([$2_LIBS])
])

dnl ZERO_PKG(NAME, VAR, BRINGS, MODULES, LIBS, HEADER, BODY, PACKAGES): the whole check for a library
dnl that pkg-config knows by one of MODULES, or that one of LIBS (shell words) links.
AC_DEFUN([ZERO_PKG], [
ZERO_PKG_WITH([$1], [$3])
AC_MSG_CHECKING([for $1])
AS_CASE([$with_$1],
	[no], [],
	[/*],
	[ZERO_PKG_FOLDER([$with_$1], [$6])
	 for zero_libs in $5; do
		test -n "$zero_header" || break
		ZERO_PKG_LINK([$2], [$zero_cflags], [$zero_ldflags $zero_libs],
			[#include <$6>], [$7])
		test $zero_found = yes && break
	 done],
	[for zero_module in $4; do
		$PKG_CONFIG --exists $zero_module 2>/dev/null || continue
		zero_cflags=$($PKG_CONFIG --cflags $zero_module)
		zero_libs=$($PKG_CONFIG --libs $zero_module)
		zero_version=$($PKG_CONFIG --modversion $zero_module)
		ZERO_PKG_LINK([$2], [$zero_cflags], [$zero_libs], [#include <$6>], [$7])
		test $zero_found = yes && break
		zero_reason="$zero_module $zero_version does not link"
		zero_version=
	 done
	 for zero_libs in $5; do
		test $zero_found = yes && break
		ZERO_PKG_LINK([$2], [], [$zero_libs], [#include <$6>], [$7])
	 done])
AC_MSG_RESULT([$zero_found])
ZERO_PKG_RESULT([$1], [$2], [$3], [$8])
])
