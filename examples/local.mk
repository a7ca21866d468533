# SPDX-License-Identifier: Apache-2.0
EXTRA_DIST += examples/demo.sh

if HAVE_CBLAS
noinst_PROGRAMS += examples/gpt
endif
examples_gpt_SOURCES = examples/gpt.c examples/gpt_input.h examples/gpt_math.h
examples_gpt_CFLAGS = $(OUTER_CFLAGS) $(CBLAS_CFLAGS) $(JANSSON_CFLAGS)
examples_gpt_LDADD = lib/libzero.la $(CBLAS_LIBS) $(JANSSON_LIBS) -lm
# A real program rather than libtool's script around one: a launcher starts it as it is.
examples_gpt_LDFLAGS = $(AM_LDFLAGS) -no-install

demo: all
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/examples/demo.sh

.PHONY: demo
