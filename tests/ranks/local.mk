# SPDX-License-Identifier: Apache-2.0
# Programs of several ranks. They link libzero as any other program does (LDADD), and are real
# programs rather than libtool's scripts around them, since a launcher starts them as they are.
#
#	values     property: random models against a plain reference, from load to step
#	partition  load_model, load_model_refused; f8: converted and scaled; large: beyond 2^32 elements
#	flatten    flatten, tiers; views: after a step
#	gather     shared, threads; update: changes that are refused or not declared; address: where
#	           parameters are, and what an access to a released one does
#	step       step: arguments, memory and bytes; same_values: at all world sizes; groups: steps
#	           of some groups, means, factors that change, groups that are laid out later
#	slices     slices: a parameter that is whole nowhere
#	step       own_step: a step of the program's own, and zero_reset
#	teams      teams; grid: a copy for each team, but for values, which the property test has
#	sizes      memory, sizing; no_memory: each allocation of the library fails once
#	errors     order: other calls on other ranks; apart, close, leave: ranks that give up
#	none       none: a job without tensors; none_lost: one that loses a rank
#	report     report: what it says, against what the ranks know; slow: ranks that others wait for
LDADD = lib/libzero.la -lm
ranks_link = $(AM_LDFLAGS) -no-install

RANKS_TESTS = \
	tests/ranks/address.ranks \
	tests/ranks/apart.ranks \
	tests/ranks/close.ranks \
	tests/ranks/export.ranks \
	tests/ranks/f8.ranks \
	tests/ranks/flatten.ranks \
	tests/ranks/grid.ranks \
	tests/ranks/groups.ranks \
	tests/ranks/leave.ranks \
	tests/ranks/load_model.ranks \
	tests/ranks/load_model_refused.ranks \
	tests/ranks/memory.ranks \
	tests/ranks/muon.ranks \
	tests/ranks/no_memory.ranks \
	tests/ranks/none.ranks \
	tests/ranks/order.ranks \
	tests/ranks/own_step.ranks \
	tests/ranks/property.ranks \
	tests/ranks/report.ranks \
	tests/ranks/restore.ranks \
	tests/ranks/same_values.ranks \
	tests/ranks/set_moments.ranks \
	tests/ranks/shared.ranks \
	tests/ranks/sizing.ranks \
	tests/ranks/states_8bit.ranks \
	tests/ranks/slices.ranks \
	tests/ranks/slow.ranks \
	tests/ranks/step.ranks \
	tests/ranks/stop.ranks \
	tests/ranks/teams.ranks \
	tests/ranks/threads.ranks \
	tests/ranks/tiers.ranks \
	tests/ranks/update.ranks \
	tests/ranks/views.ranks
LONG_TESTS += \
	tests/ranks/large.ranks \
	tests/ranks/load_model.ranks \
	tests/ranks/property.ranks \
	tests/ranks/restore.ranks
if HAVE_MPI
RANKS_TESTS += tests/ranks/own_mpi.ranks
endif
# they write checkpoints, whose checksums save computes itself
if HAVE_FILES
RANKS_TESTS += tests/ranks/atomic.ranks tests/ranks/earlier.ranks tests/ranks/save.ranks
endif

EXTRA_DIST += tests/ranks/page.js tests/ranks/report.py
tests_ranks_report_ranks_SOURCES = tests/ranks/report.c tests/ranks/ranks.h
tests_ranks_report_ranks_LDFLAGS = $(ranks_link)
tests_ranks_address_ranks_SOURCES = \
	tests/ranks/address.c tests/ranks/address_fault.c tests/ranks/address.h tests/ranks/ranks.h
tests_ranks_address_ranks_LDFLAGS = $(ranks_link)
tests_ranks_apart_ranks_SOURCES = tests/ranks/apart.c tests/ranks/ranks.h
tests_ranks_apart_ranks_LDFLAGS = $(ranks_link)
tests_ranks_atomic_ranks_SOURCES = \
	tests/ranks/atomic.c tests/double/disk.c tests/double/disk.h tests/ranks/ranks.h
tests_ranks_atomic_ranks_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_ranks_atomic_ranks_LDFLAGS = $(ranks_link)
tests_ranks_slow_ranks_SOURCES = tests/ranks/slow.c tests/ranks/ranks.h
tests_ranks_slow_ranks_LDADD = $(LDADD) $(DL_LIBS)
tests_ranks_slow_ranks_LDFLAGS = $(ranks_link)
tests_ranks_stop_ranks_SOURCES = tests/ranks/stop.c tests/ranks/ranks.h
tests_ranks_stop_ranks_LDFLAGS = $(ranks_link)
tests_ranks_close_ranks_SOURCES = tests/ranks/close.c tests/ranks/ranks.h
tests_ranks_close_ranks_LDFLAGS = $(ranks_link)
tests_ranks_earlier_ranks_SOURCES = tests/ranks/earlier.c tests/ranks/ranks.h
tests_ranks_earlier_ranks_LDFLAGS = $(ranks_link)
EXTRA_DIST += tests/ranks/earlier-0.1.0.tar.gz
tests_ranks_export_ranks_SOURCES = tests/ranks/export.c tests/ranks/ranks.h
tests_ranks_export_ranks_LDFLAGS = $(ranks_link)
# It chooses how large files are, by a function that libzero does not export. Modules are beside it.
tests_ranks_export_ranks_LDADD = lib/libzerocore.la -lm
tests_ranks_export_ranks_DEPENDENCIES = lib/libzerocore.la tests/ranks/slurm-zero
tests/ranks/slurm-zero:
	$(AM_V_GEN)$(MKDIR_P) tests/ranks && ln -sfn ../../lib/.libs $@
CLEANFILES += tests/ranks/slurm-zero
tests_ranks_f8_ranks_SOURCES = \
	tests/ranks/f8.c tests/ranks/reference.c tests/ranks/checkpoint.h tests/ranks/reference.h \
	tests/ranks/ranks.h
tests_ranks_f8_ranks_LDFLAGS = $(ranks_link)
tests_ranks_flatten_ranks_SOURCES = tests/ranks/flatten.c tests/ranks/ranks.h
tests_ranks_flatten_ranks_LDFLAGS = $(ranks_link)
tests_ranks_grid_ranks_SOURCES = tests/ranks/grid.c tests/ranks/ranks.h
tests_ranks_grid_ranks_LDFLAGS = $(ranks_link)
tests_ranks_large_ranks_SOURCES = tests/ranks/large.c tests/ranks/ranks.h
tests_ranks_large_ranks_LDFLAGS = $(ranks_link)
tests_ranks_leave_ranks_SOURCES = tests/ranks/leave.c tests/ranks/ranks.h
tests_ranks_leave_ranks_LDFLAGS = $(ranks_link)
tests_ranks_load_model_ranks_SOURCES = \
	tests/ranks/load_model.c tests/ranks/load_model_random.c tests/ranks/load_model.h \
	tests/ranks/checkpoint.h tests/ranks/ranks.h
tests_ranks_load_model_ranks_LDFLAGS = $(ranks_link)
tests_ranks_load_model_refused_ranks_SOURCES = \
	tests/ranks/load_model_refused.c tests/ranks/checkpoint.h tests/ranks/ranks.h
tests_ranks_load_model_refused_ranks_LDFLAGS = $(ranks_link)
tests_ranks_memory_ranks_SOURCES = tests/ranks/memory.c tests/ranks/ranks.h
tests_ranks_memory_ranks_LDFLAGS = $(ranks_link)
tests_ranks_no_memory_ranks_SOURCES = tests/ranks/no_memory.c tests/ranks/ranks.h
tests_ranks_no_memory_ranks_LDFLAGS = $(ranks_link) -rdynamic
tests_ranks_none_ranks_SOURCES = tests/ranks/none.c tests/ranks/ranks.h
tests_ranks_none_ranks_LDFLAGS = $(ranks_link)
tests_ranks_order_ranks_SOURCES = \
	tests/ranks/order.c tests/ranks/order_job.c tests/ranks/order.h tests/ranks/ranks.h
tests_ranks_order_ranks_LDFLAGS = $(ranks_link)
tests_ranks_muon_ranks_SOURCES = \
	tests/ranks/muon.c tests/double/disk.c tests/double/disk.h tests/ranks/ranks.h
tests_ranks_muon_ranks_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_ranks_muon_ranks_LDFLAGS = $(ranks_link)
tests_ranks_set_moments_ranks_SOURCES = tests/ranks/set_moments.c tests/ranks/ranks.h
tests_ranks_set_moments_ranks_LDFLAGS = $(ranks_link)
tests_ranks_states_8bit_ranks_SOURCES = tests/ranks/states_8bit.c tests/ranks/ranks.h
tests_ranks_states_8bit_ranks_LDFLAGS = $(ranks_link)
tests_ranks_own_step_ranks_SOURCES = tests/ranks/own_step.c tests/ranks/ranks.h
tests_ranks_own_step_ranks_LDFLAGS = $(ranks_link)
tests_ranks_property_ranks_SOURCES = \
	tests/ranks/property.c tests/ranks/property_gather.c tests/ranks/property_layout.c \
	tests/ranks/property_load.c tests/ranks/property_ops.c tests/ranks/property_slices.c \
	tests/ranks/property_step.c tests/ranks/reference.c tests/ranks/property.h \
	tests/ranks/reference.h tests/ranks/ranks.h
tests_ranks_property_ranks_LDFLAGS = $(ranks_link)
tests_ranks_restore_ranks_SOURCES = \
	tests/ranks/restore.c tests/ranks/restore_damage.c tests/ranks/restore_model.c \
	tests/ranks/restore_states.c tests/ranks/restore.h tests/ranks/ranks.h
tests_ranks_restore_ranks_LDFLAGS = $(ranks_link)
tests_ranks_same_values_ranks_SOURCES = tests/ranks/same_values.c tests/ranks/ranks.h
tests_ranks_same_values_ranks_LDFLAGS = $(ranks_link)
tests_ranks_save_ranks_SOURCES = \
	tests/ranks/save.c tests/ranks/save_model.c tests/double/disk.c \
	tests/ranks/save_model.h tests/double/disk.h tests/ranks/ranks.h
tests_ranks_save_ranks_CPPFLAGS = $(AM_CPPFLAGS) $(XXHASH_CFLAGS) -I$(top_srcdir)/tests
tests_ranks_save_ranks_LDFLAGS = $(ranks_link)
tests_ranks_shared_ranks_SOURCES = tests/ranks/shared.c tests/ranks/ranks.h
tests_ranks_shared_ranks_LDFLAGS = $(ranks_link)
tests_ranks_sizing_ranks_SOURCES = tests/ranks/sizing.c tests/ranks/ranks.h
tests_ranks_sizing_ranks_LDFLAGS = $(ranks_link)
tests_ranks_slices_ranks_SOURCES = tests/ranks/slices.c tests/ranks/ranks.h
tests_ranks_slices_ranks_LDFLAGS = $(ranks_link)
tests_ranks_step_ranks_SOURCES = tests/ranks/step.c tests/ranks/ranks.h
tests_ranks_step_ranks_LDFLAGS = $(ranks_link)
tests_ranks_groups_ranks_SOURCES = tests/ranks/groups.c tests/ranks/ranks.h
tests_ranks_groups_ranks_LDFLAGS = $(ranks_link)
tests_ranks_teams_ranks_SOURCES = \
	tests/ranks/teams.c tests/ranks/teams_model.c tests/ranks/teams_train.c \
	tests/ranks/teams.h tests/ranks/ranks.h
tests_ranks_teams_ranks_LDFLAGS = $(ranks_link)
tests_ranks_threads_ranks_SOURCES = tests/ranks/threads.c tests/ranks/ranks.h
tests_ranks_threads_ranks_LDFLAGS = $(ranks_link)
tests_ranks_tiers_ranks_SOURCES = tests/ranks/tiers.c tests/ranks/ranks.h
tests_ranks_tiers_ranks_LDFLAGS = $(ranks_link)
tests_ranks_update_ranks_SOURCES = \
	tests/ranks/update.c tests/ranks/reference.c tests/ranks/reference.h tests/ranks/ranks.h
tests_ranks_update_ranks_LDFLAGS = $(ranks_link)
tests_ranks_views_ranks_SOURCES = tests/ranks/views.c tests/ranks/ranks.h
tests_ranks_views_ranks_LDFLAGS = $(ranks_link)

tests_ranks_own_mpi_ranks_SOURCES = tests/ranks/own_mpi.c tests/ranks/ranks.h
tests_ranks_own_mpi_ranks_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_ranks_own_mpi_ranks_LDADD = $(LDADD) $(MPI_LIBS)
tests_ranks_own_mpi_ranks_LDFLAGS = $(ranks_link)

# A job without tensors that loses a rank: none_lost.sh of tests/ranks and of tests/slurm run it.
check_PROGRAMS += tests/ranks/none_lost
tests_ranks_none_lost_SOURCES = tests/ranks/none_lost.c tests/ranks/ranks.h
tests_ranks_none_lost_LDFLAGS = $(ranks_link)

# A job that protects itself: protect.sh of tests/ranks and of tests/slurm run it.
check_PROGRAMS += tests/ranks/protect
tests_ranks_protect_SOURCES = tests/ranks/protect.c tests/ranks/ranks.h
tests_ranks_protect_LDFLAGS = $(ranks_link)

# A job that loses a rank: tests/ranks/lost.sh and tests/slurm/lost.sh run it.
check_PROGRAMS += tests/ranks/lost
tests_ranks_lost_SOURCES = tests/ranks/lost.c tests/ranks/ranks.h
tests_ranks_lost_LDFLAGS = $(ranks_link)
