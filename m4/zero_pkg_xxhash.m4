dnl SPDX-License-Identifier: Apache-2.0
dnl xxHash gives the checksums of checkpoints; its header holds all of it, nothing is linked.
AC_DEFUN([ZERO_PKG_XXHASH], [
ZERO_PKG([xxhash], [XXHASH], [checksums of checkpoints], [libxxhash], ["-lxxhash"],
	[xxhash.h],
	[[return !XXH3_64bits("", 0);]],
	[libxxhash-dev or xxhash-devel])
dnl One module reads both kinds of files, and needs both libraries.
AM_CONDITIONAL([HAVE_FILES], [test -z "$HAVE_JANSSON_TRUE" && test -z "$HAVE_XXHASH_TRUE"])
AS_IF([test -z "$HAVE_FILES_TRUE"],
	[zero_have="$zero_have files"
	 AC_DEFINE([HAVE_FILES], [1], [Define to 1 for safetensors files and checkpoints.])])
])
