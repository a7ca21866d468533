dnl SPDX-License-Identifier: Apache-2.0
dnl A C++17 compiler, for tests alone: they run device code on the host. Sets CXX, CXXFLAGS and the
dnl conditional HAVE_CXX; the word for the tests is cxx.
AC_DEFUN([ZERO_PROG_CXX], [
AC_ARG_VAR([CXX], [C++ compiler, for tests of device code])
AC_ARG_VAR([CXXFLAGS], [its flags])
: ${CXXFLAGS="-O2 -g"}
AC_CHECK_TOOLS([CXX], [g++ c++ clang++])
AC_MSG_CHECKING([whether it compiles C++17])
zero_found=no
AS_IF([test -n "$CXX"],
	[AS_ECHO(['template <class... T> auto sum(T... x) { return (x + ...); }
inline thread_local int last; int main() { return last = sum(0, 0); }']) >conftest.cu
	 AS_IF([$CXX -std=gnu++17 -x c++ -c conftest.cu -o conftest.o >&AS_MESSAGE_LOG_FD 2>&1 &&
			$CC conftest.o -o conftest$EXEEXT -lstdc++ >&AS_MESSAGE_LOG_FD 2>&1],
		[zero_found=yes
		 zero_have="$zero_have cxx"])
	 rm -f conftest.cu conftest.o conftest$EXEEXT])
AC_MSG_RESULT([$zero_found])
AM_CONDITIONAL([HAVE_CXX], [test $zero_found = yes])
])
