# SPDX-License-Identifier: Apache-2.0
# zero_none.so: ranks that only meet, agree and are watched. It needs nothing but the pmix module.
modules_LTLIBRARIES += lib/zero_none.la
lib_zero_none_la_SOURCES = \
	lib/backend/none/none.c \
	lib/backend/rendezvous.c
lib_zero_none_la_CPPFLAGS = $(AM_CPPFLAGS)
lib_zero_none_la_LDFLAGS = $(MODULE_LDFLAGS)
