# SPDX-License-Identifier: Apache-2.0
# The rooms of the library, lowest first. A file includes headers of its own room and of lower ones;
# tests/rooms.sh fails if it does not.
#
#	core        errors, dtypes, options and their table, clock, threads, opening of modules
#	net         TCP between ranks: connections, one thread, a tree of ranks that agree
#	backend     the only interface to hardware: memory, collectives, kernels; host/ cuda/ none/ pmix/
#	files       safetensors, manifests and reports in JSON, as the module zero_files.so
#	job         a job, its ranks and settings, submissions, teams, signals that ask for an end
#	model       groups and parameters, their layout, where they are stored, optimizer states
#	load        how values get there: sources, partition, whole checkpoints, flattening
#	train       a step, in order: gather, reduce, norm, AdamW; ZERO_CHECK=1
#	checkpoint  save, restore, export
#	protect     copies of shards in the memory of nodes, and restoring from them
#	report      --zero-report, --zero-slow
#	watch       lost ranks
#	open.c      zero_open, the only file that refers to all rooms
include_HEADERS += lib/zero.h
noinst_HEADERS += \
	lib/backend/account.h \
	lib/backend/backend.h \
	lib/backend/comm.h \
	lib/backend/exchange.h \
	lib/backend/launcher_world_size.h \
	lib/backend/meter.h \
	lib/backend/newton_schulz.h \
	lib/backend/rendezvous.h \
	lib/backend/step_rule.h \
	lib/backend/workers.h \
	lib/checkpoint/checkpoint.h \
	lib/checkpoint/export.h \
	lib/checkpoint/restore.h \
	lib/checkpoint/save.h \
	lib/checkpoint/write.h \
	lib/core/available_memory.h \
	lib/core/clock.h \
	lib/core/error.h \
	lib/core/module.h \
	lib/core/options.h \
	lib/core/options_table.h \
	lib/core/text.h \
	lib/core/thread.h \
	lib/job/hooks.h \
	lib/job/job.h \
	lib/load/load.h \
	lib/model/flatten_tier.h \
	lib/model/model.h \
	lib/model/plan.h \
	lib/model/segments.h \
	lib/model/sizing.h \
	lib/model/slices.h \
	lib/net/address.h \
	lib/net/dial.h \
	lib/net/launcher.h \
	lib/net/link.h \
	lib/net/net.h \
	lib/net/net_internal.h \
	lib/protect/leftover.h \
	lib/protect/protect.h \
	lib/protect/protect_internal.h \
	lib/report/folder.h \
	lib/report/job_report.h \
	lib/report/record.h \
	lib/report/slow.h \
	lib/train/train.h \
	lib/watch/watch_internal.h \
	lib/watch/watch.h

# The table of options, and what follows from a budget: shared with launcher and plugin.
noinst_LTLIBRARIES += lib/liboptions.la
lib_liboptions_la_SOURCES = \
	lib/core/dtype.c \
	lib/core/option_value.c \
	lib/core/options.c \
	lib/core/settings_text.c \
	lib/core/text.c

# A test compiles the network alone.
net_sources = \
	lib/net/address.c \
	lib/net/collective.c \
	lib/net/connect.c \
	lib/net/dial.c \
	lib/net/launcher.c \
	lib/net/link.c \
	lib/net/net.c \
	lib/net/net_team.c \
	lib/net/thread.c

# All of libzero, with its inner functions in sight: unit tests link this one.
noinst_LTLIBRARIES += lib/libzerocore.la
lib_libzerocore_la_SOURCES = \
	lib/backend/agree.c \
	lib/backend/cpu_step.c \
	lib/backend/progress.c \
	lib/backend/queue.c \
	lib/backend/workers.c \
	lib/checkpoint/export.c \
	lib/checkpoint/export_names.c \
	lib/checkpoint/find.c \
	lib/checkpoint/names.c \
	lib/checkpoint/restore.c \
	lib/checkpoint/restore_match.c \
	lib/checkpoint/restore_reshard.c \
	lib/checkpoint/save.c \
	lib/checkpoint/save_folder.c \
	lib/checkpoint/save_manifest.c \
	lib/checkpoint/save_shard.c \
	lib/checkpoint/save_thread.c \
	lib/checkpoint/shard_reader.c \
	lib/checkpoint/write.c \
	lib/core/available_memory.c \
	lib/core/error.c \
	lib/core/module.c \
	lib/job/compute.c \
	lib/job/replicas.c \
	lib/job/hooks.c \
	lib/job/job.c \
	lib/job/settings.c \
	lib/job/stop.c \
	lib/job/stream.c \
	lib/job/submit.c \
	lib/job/team.c \
	lib/load/adopt.c \
	lib/load/agree_tier.c \
	lib/load/flatten.c \
	lib/load/load_hooks.c \
	lib/load/load_model.c \
	lib/load/partition.c \
	lib/load/slice.c \
	lib/load/source.c \
	lib/load/staging.c \
	lib/load/tensor_file.c \
	lib/model/describe.c \
	lib/model/flatten_tier.c \
	lib/model/grid_size.c \
	lib/model/group.c \
	lib/model/layout.c \
	lib/model/convert_states.c \
	lib/model/named_states.c \
	lib/model/plan.c \
	lib/model/segments.c \
	lib/model/sizing.c \
	lib/model/slices.c \
	lib/model/states.c \
	lib/model/storage.c \
	$(net_sources) \
	lib/open.c \
	lib/protect/ask.c \
	lib/protect/find.c \
	lib/protect/folder.c \
	lib/protect/leftover.c \
	lib/protect/open.c \
	lib/protect/partner.c \
	lib/protect/protect.c \
	lib/protect/records.c \
	lib/protect/serve.c \
	lib/report/folder.c \
	lib/report/record.c \
	lib/report/report.c \
	lib/report/slow.c \
	lib/report/slow_find.c \
	lib/train/adamw.c \
	lib/train/check_changes.c \
	lib/train/gather.c \
	lib/train/loss_scale.c \
	lib/train/muon.c \
	lib/train/norm.c \
	lib/train/gather_buffer.c \
	lib/train/own_step.c \
	lib/train/param_changed.c \
	lib/train/reduce.c \
	lib/train/set_moments.c \
	lib/train/step.c \
	lib/train/step_state.c \
	lib/train/unmapped_access.c \
	lib/train/train_hooks.c \
	lib/train/write.c \
	lib/watch/activity.c \
	lib/watch/deadlock.c \
	lib/watch/diagnose.c \
	lib/watch/end_job.c \
	lib/watch/exit_notice.c \
	lib/watch/heartbeat.c \
	lib/watch/inquiry.c \
	lib/watch/loss_message.c \
	lib/watch/oom.c \
	lib/watch/open_timeout.c \
	lib/watch/process.c \
	lib/watch/ring.c \
	lib/watch/signals.c \
	lib/watch/watch.c
nodist_lib_libzerocore_la_SOURCES = lib/report/page_html.c
lib_libzerocore_la_LIBADD = lib/liboptions.la $(DL_LIBS) -lm

# The page of a report, as a string of C.
lib/report/page_html.c: lib/report/page.html
	$(AM_V_GEN)$(MKDIR_P) lib/report && { \
	printf '/* clang-format off */\n#include "report/folder.h"\nconst char zero_report_html[] =\n' && \
	sed 's/[\\"?]/\\&/g; s/.*/"&\\n"/' $(top_srcdir)/lib/report/page.html && echo ';'; } >$@.new && \
	mv $@.new $@
CLEANFILES += lib/report/page_html.c
EXTRA_DIST += lib/report/page.html

# What programs link and zero jobs get preloaded: the C library and nothing else.
lib_LTLIBRARIES += lib/libzero.la
lib_libzero_la_SOURCES =
lib_libzero_la_LIBADD = lib/libzerocore.la
lib_libzero_la_LDFLAGS = $(AM_LDFLAGS) -version-info 2:0:0 -Wl,--version-script=lib/libzero.map \
	-Wl,-z,nodelete
EXTRA_lib_libzero_la_DEPENDENCIES = lib/libzero.map

# It exports what zero.h declares, under a version: a later library, preloaded before a program's own
# copy, can keep the old form of a function beside a new one.
lib/libzero.map: lib/zero.h
	$(AM_V_GEN)$(MKDIR_P) lib && { echo 'ZERO_2 { global:' && \
	sed -n '/^typedef/d; s/^[a-z].*\(zero_[a-z0-9_]*\)(.*/	\1;/p' $(top_srcdir)/lib/zero.h && \
	echo 'local: *; };'; } >$@.new && mv $@.new $@
CLEANFILES += lib/libzero.map
