dnl SPDX-License-Identifier: Apache-2.0
dnl PMIx carries what ranks must know of each other before they can communicate.
AC_DEFUN([ZERO_PKG_PMIX], [
ZERO_PKG([pmix], [PMIX], [wire-up by PMIx], [pmix], ["-lpmix"],
	[pmix.h],
	[[pmix_proc_t self; PMIx_Init(&self, NULL, 0); PMIx_Finalize(NULL, 0);]],
	[libpmix-dev or pmix-devel])
])
