# SPDX-License-Identifier: Apache-2.0
# zero_pmix.so: what ranks publish before they can communicate, by the launcher's PMIx.
if HAVE_PMIX
modules_LTLIBRARIES += lib/zero_pmix.la
lib_zero_pmix_la_SOURCES = lib/backend/pmix/pmix.c
lib_zero_pmix_la_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)
lib_zero_pmix_la_LDFLAGS = $(MODULE_LDFLAGS)
lib_zero_pmix_la_LIBADD = $(PMIX_LIBS)
endif
