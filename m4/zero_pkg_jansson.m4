dnl SPDX-License-Identifier: Apache-2.0
dnl Jansson reads and writes the JSON of safetensors headers.
AC_DEFUN([ZERO_PKG_JANSSON], [
ZERO_PKG([jansson], [JANSSON], [safetensors files], [jansson], ["-ljansson"],
	[jansson.h],
	[[json_decref(json_loads("{}", JSON_REJECT_DUPLICATES, NULL));]],
	[libjansson-dev or jansson-devel])
])
