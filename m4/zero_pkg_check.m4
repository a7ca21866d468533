dnl SPDX-License-Identifier: Apache-2.0
dnl Check runs the unit tests.
AC_DEFUN([ZERO_PKG_CHECK], [
ZERO_PKG([check], [CHECK], [unit tests], [check],
	["-lcheck" "-lcheck_pic -lsubunit -lrt -lm -pthread"],
	[check.h],
	[[Suite *suite = suite_create("probe"); srunner_free(srunner_create(suite));]],
	[check or check-devel])
])
