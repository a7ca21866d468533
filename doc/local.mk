# SPDX-License-Identifier: Apache-2.0
# Man pages. A line such as @flags@ of a page becomes the list of that name, which is made from the
# table of options, and @functions@ what zero.h declares.
MAN_PAGES = doc/zerorun.1 doc/zero.3 doc/zero.yaml.5 doc/zero_checkpoint.5 \
	doc/spank_zero.8
MAN_LISTS = doc/flags.roff doc/environment.roff doc/yaml.roff doc/facts.roff
nodist_man_MANS = $(MAN_PAGES)
doc_DATA += doc/recovery.md doc/threats.md
EXTRA_DIST += doc/functions.awk \
	doc/c_programs.md doc/deepspeed.md doc/design.md doc/faults.md doc/figures.md doc/limits.md \
	doc/pytorch.md doc/recovery.md doc/testing.md doc/threats.md \
	doc/group.svg doc/recovery.svg doc/report.png doc/rooms.svg doc/streaming.svg \
	doc/options_roff.c doc/zerorun.1.in doc/zero.3.in doc/zero.yaml.5.in doc/zero_checkpoint.5.in \
	doc/spank_zero.8.in
CLEANFILES += $(MAN_PAGES) $(MAN_LISTS) doc/functions.roff doc/options_roff

# It runs while building, so it is compiled for the machine that builds.
OPTIONS_ROFF = $(top_srcdir)/doc/options_roff.c \
	$(lib_liboptions_la_SOURCES:%=$(top_srcdir)/%)
doc/options_roff: $(OPTIONS_ROFF) lib/core/options.h lib/core/options_table.h lib/core/text.h \
		lib/zero.h
	$(AM_V_GEN)$(MKDIR_P) doc && $(CC_FOR_BUILD) -std=gnu11 $(ZERO_WARNINGS) $(AM_CPPFLAGS) \
		-o $@.new $(OPTIONS_ROFF) && mv $@.new $@

$(MAN_LISTS): doc/options_roff
	$(AM_V_GEN)doc/options_roff `basename $@ .roff` >$@.new && mv $@.new $@

doc/functions.roff: lib/zero.h doc/functions.awk
	$(AM_V_GEN)$(MKDIR_P) doc && \
	awk -f $(srcdir)/doc/functions.awk $(srcdir)/lib/zero.h >$@.new && mv $@.new $@

$(MAN_PAGES): $(MAN_LISTS) doc/functions.roff Makefile
	$(AM_V_GEN)sed \
		-e 's|[@]VERSION@|$(VERSION)|g; s|[@]includedir@|$(includedir)|g' \
		-e 's|[@]libdir@|$(libdir)|g; s|[@]docdir@|$(docdir)|g' \
		-e 's|[@]slurmconfdir@|$(slurmconfdir)|g' \
		-e '/^@flags@$$/{' -e 'r doc/flags.roff' -e d -e '}' \
		-e '/^@environment@$$/{' -e 'r doc/environment.roff' -e d -e '}' \
		-e '/^@yaml@$$/{' -e 'r doc/yaml.roff' -e d -e '}' \
		-e '/^@facts@$$/{' -e 'r doc/facts.roff' -e d -e '}' \
		-e '/^@functions@$$/{' -e 'r doc/functions.roff' -e d -e '}' \
		$(srcdir)/$@.in >$@.new && mv $@.new $@
doc/zerorun.1: doc/zerorun.1.in
doc/zero.3: doc/zero.3.in
doc/zero.yaml.5: doc/zero.yaml.5.in
doc/zero_checkpoint.5: doc/zero_checkpoint.5.in
doc/spank_zero.8: doc/spank_zero.8.in
