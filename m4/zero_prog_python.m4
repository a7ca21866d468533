dnl SPDX-License-Identifier: Apache-2.0
dnl Python's headers, for the package slurm_zero. It uses the limited API, so that what is built with
dnl one Python works with later ones.
AC_DEFUN([ZERO_PROG_PYTHON], [
AC_ARG_WITH([python], [AS_HELP_STRING([--with-python=no],
	[without the Python package slurm_zero])], [], [with_python=auto])
AC_ARG_VAR([PYTHON], [the Python whose headers are used, 3.10 or later])
AC_ARG_VAR([PYTHON_CPPFLAGS], [where Python's headers are])
zero_python=no
AS_IF([test "x$with_python" != xno], [
	AC_CHECK_PROGS([PYTHON], [python3])
	AS_IF([test -n "$PYTHON" && test -z "$PYTHON_CPPFLAGS"], [
		PYTHON_CPPFLAGS=-I`$PYTHON -c 'import sysconfig; print(sysconfig.get_path("include"))'`])
	zero_save_CPPFLAGS=$CPPFLAGS
	CPPFLAGS="$CPPFLAGS $PYTHON_CPPFLAGS"
	AC_CACHE_CHECK([for Python's headers], [zero_cv_python], [
		AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#define Py_LIMITED_API 0x030a0000
#include <Python.h>]], [[PyModule_AddObjectRef(NULL, "", NULL)]])],
			[zero_cv_python=yes], [zero_cv_python=no])])
	CPPFLAGS=$zero_save_CPPFLAGS
	zero_python=$zero_cv_python
])
AS_IF([test "$with_python,$zero_python" = yes,no],
	[AC_MSG_ERROR([--with-python, but the headers of $PYTHON were not found, or are
those of a free-threaded Python, which has no limited API: install python3-dev or python3-devel])])
AM_CONDITIONAL([HAVE_PYTHON], [test $zero_python = yes])
AC_ARG_VAR([pythonsitedir], [the folder of packages that gets slurm-zero.pth; none by default where
	that Python has none in the prefix])
AS_IF([test "x$pythonsitedir" = x && test $zero_python = yes], [
	zero_prefix=$prefix
	AS_IF([test "$zero_prefix" = NONE], [zero_prefix=$ac_default_prefix])
	pythonsitedir=`$PYTHON -c 'import site, sys
folders = site.getsitepackages() + @<:@site.getusersitepackages()@:>@
print(next((f for f in folders if f.startswith(sys.argv@<:@1@:>@ + "/lib")), ""))' "$zero_prefix"`])
])
