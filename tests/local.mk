# SPDX-License-Identifier: Apache-2.0
# A new test is a name in one of these lists, and for a program its sources.
#
#   UNIT_TESTS     programs of Check, one process
#   RANKS_TESTS    programs named *.ranks, which tests/ranks/run.sh runs at several world sizes;
#                  in tests/ranks/local.mk
#   SCRIPT_TESTS   bash scripts named *.sh
#
#   LONG_TESTS     of either kind, run by make check-long: minutes each, or random with many seeds;
#                  ZERO_TEST_LONG=1 in the environment asks a test of make check for more of it
#
# Exit status 77 is a skip: what a test needs it says with `need` of tests/common.sh.
UNIT_TESTS = \
	tests/unit/test_shared_arena \
	tests/unit/test_budget \
	tests/unit/test_control \
	tests/unit/test_control_ends \
	tests/unit/test_convert \
	tests/unit/test_guard \
	tests/unit/test_hostlist \
	tests/unit/test_kernels \
	tests/unit/test_layout \
	tests/unit/test_protect \
	tests/unit/test_net \
	tests/unit/test_options \
	tests/unit/test_philox \
	tests/unit/test_progress \
	tests/unit/test_quantize \
	tests/unit/test_record \
	tests/unit/test_recover \
	tests/unit/test_restart \
	tests/unit/test_sizing \
	tests/unit/test_slow \
	tests/unit/test_workers \
	tests/unit/test_task_gpus \
	tests/unit/test_vram \
	tests/unit/test_vram_process \
	tests/unit/test_watch
SCRIPT_TESTS = \
	tests/require.sh \
	tests/rooms.sh \
	tests/exports.sh \
	tests/format.sh \
	tests/doc.sh \
	tests/install.sh \
	tests/launcher/completion.sh \
	tests/launcher/config.sh \
	tests/launcher/inspect.sh \
	tests/launcher/plan.sh \
	tests/launcher/restart.sh \
	tests/launcher/zerorun.sh \
	tests/ranks/leaks.sh \
	tests/ranks/lost.sh \
	tests/ranks/protect.sh \
	tests/ranks/none_lost.sh \
	tests/ranks/restore_worlds.sh \
	tests/ranks/world.sh \
	tests/unit/checkpoint_interop.sh \
	tests/unit/files_interop.sh \
	tests/gpt/bad.sh \
	tests/gpt/device.sh \
	tests/gpt/reference.sh \
	tests/gpt/resume.sh \
	tests/gpt/stages.sh \
	tests/gpt/stream.sh \
	tests/bench/smoke.sh \
	tests/readme.sh \
	tests/wheel.sh

LONG_TESTS += \
	tests/aarch64.sh \
	tests/analyze.sh \
	tests/bench/smoke.sh \
	tests/dist.sh \
	tests/fuzz/smoke.sh \
	tests/gpt/kill.sh \
	tests/gpu/doubles.sh \
	tests/package.sh \
	tests/warnings.sh

if HAVE_FILES
UNIT_TESTS += tests/unit/test_files tests/unit/test_manifest
endif
if HAVE_CXX
UNIT_TESTS += tests/unit/test_device
else
TESTS += tests/unit/without_cxx.sh
endif
if HAVE_YAML
UNIT_TESTS += tests/unit/test_config tests/unit/test_reader tests/unit/test_resolve
endif
if HAVE_CUDA
UNIT_TESTS += tests/unit/test_double_cuda tests/unit/test_double_graph tests/unit/test_double_virtual
endif
if HAVE_CHECK
check_PROGRAMS += $(UNIT_TESTS)
TESTS += $(UNIT_TESTS)
else
TESTS += tests/unit/without_check.sh
endif
if HAVE_CBLAS
check_PROGRAMS += tests/gpt/gradients
TESTS += tests/gpt/gradients
if HAVE_CXX
check_PROGRAMS += tests/gpt/gpt_device tests/gpt/gradients_device
TESTS += tests/gpt/gradients_device
endif
endif
if HAVE_CUBLAS
check_PROGRAMS += tests/gpt/gradients_cuda
endif
check_PROGRAMS += $(RANKS_TESTS) tests/ranks/large.ranks
TESTS += $(RANKS_TESTS) $(SCRIPT_TESTS)

EXTRA_DIST += \
	tests/bugs tests/mutants.py \
	tests/common.sh \
	tests/analyze.h \
	tests/analyze.known \
	tests/tsan.supp \
	tests/gpt/blas_emulated.h \
	tests/gpt/gpt.sh \
	tests/launcher/run.sh \
	tests/gpt/reference.py \
	tests/ranks/lost_job.sh \
	tests/ranks/run.sh \
	tests/double/kernels.cpp \
	tests/double/emulate.h \
	tests/double/emulate_words.h \
	tests/unit/unit.h \
	tests/unit/without_check.sh \
	tests/unit/without_cxx.sh \
	tests/aarch64.sh tests/analyze.sh tests/dist.sh tests/gpt/kill.sh tests/package.sh tests/roots.sh tests/warnings.sh \
	$(SCRIPT_TESTS)

UNIT_CFLAGS = $(OUTER_CFLAGS) $(CHECK_CFLAGS)
UNIT_LIBS = $(CHECK_LIBS) -lm

tests_unit_test_kernels_SOURCES = tests/unit/test_kernels.c tests/unit/sets.h
tests_unit_test_kernels_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_kernels_LDADD = kernels/libkernels.la $(UNIT_LIBS)

tests_unit_test_convert_SOURCES = tests/unit/test_convert.c tests/unit/sets.h
tests_unit_test_convert_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_convert_LDADD = $(tests_unit_test_kernels_LDADD)

tests_unit_test_progress_SOURCES = tests/unit/test_progress.c lib/backend/progress.c
tests_unit_test_progress_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_progress_LDADD = $(UNIT_LIBS)
tests_unit_test_philox_SOURCES = tests/unit/test_philox.c tests/unit/sets.h
tests_unit_test_philox_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_philox_LDADD = $(tests_unit_test_kernels_LDADD)
tests_unit_test_quantize_SOURCES = tests/unit/test_quantize.c tests/unit/sets.h
tests_unit_test_quantize_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_quantize_LDADD = $(tests_unit_test_kernels_LDADD)

# The device's kernels, compiled for the host. The cases are those of tests/gpu/kernels.
tests_unit_test_device_SOURCES = \
	tests/unit/test_device.c tests/gpu/kernels_check.c tests/gpu/kernels_muon.c tests/gpu/kernels_more.c \
	tests/gpu/kernels_shared.c tests/ranks/reference.c \
	tests/double/kernels.h tests/gpu/device.h tests/gpu/kernels.h tests/ranks/reference.h
tests_unit_test_device_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_device_CFLAGS = $(OUTER_CFLAGS)
tests_unit_test_device_LDADD = tests/double/kernels_emulated.o kernels/libkernels.la \
	lib/liboptions.la -lm -lstdc++

tests/double/kernels_emulated.o: tests/double/kernels.cpp tests/double/kernels.h $(DEVICE_KERNELS) \
		kernels/device.cu kernels/device.cuh kernels/philox.h kernels/kernels.h \
		lib/backend/backend.h lib/core/module.h lib/zero.h \
		tests/double/emulate.h tests/double/emulate_words.h
	$(AM_V_GEN)$(MKDIR_P) tests/double && $(CXX) -std=gnu++17 -ffp-contract=off -Wall -Wextra \
		-Wno-unknown-pragmas -I. -I$(top_srcdir) -I$(top_srcdir)/lib \
		-I$(top_srcdir)/kernels $(CPPFLAGS) $(CXXFLAGS) -pthread -c -o $@ $(top_srcdir)/tests/double/kernels.cpp

tests_unit_test_shared_arena_SOURCES = tests/unit/test_shared_arena.c lib/backend/host/huge_file.c lib/backend/host/shared_arena.c
tests_unit_test_shared_arena_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_shared_arena_LDADD = $(UNIT_LIBS)

tests_unit_test_workers_SOURCES = tests/unit/test_workers.c
tests_unit_test_workers_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_workers_LDADD = lib/libzerocore.la kernels/libkernels.la $(UNIT_LIBS)

tests_unit_test_control_SOURCES = tests/unit/test_control.c tests/unit/control_ranks.h \
	$(net_sources) lib/core/error.c lib/core/text.c
tests_unit_test_control_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_control_LDADD = $(UNIT_LIBS)

tests_unit_test_control_ends_SOURCES = tests/unit/test_control_ends.c tests/unit/control_ranks.h \
	$(net_sources) lib/core/error.c lib/core/text.c
tests_unit_test_control_ends_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_control_ends_LDADD = $(UNIT_LIBS)

tests_unit_test_net_SOURCES = tests/unit/test_net.c lib/net/address.c lib/net/dial.c
tests_unit_test_net_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_net_LDADD = $(UNIT_LIBS)

tests_unit_test_record_SOURCES = tests/unit/test_record.c
tests_unit_test_record_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_record_LDADD = lib/libzerocore.la $(UNIT_LIBS) -lm

tests_unit_test_slow_SOURCES = tests/unit/test_slow.c lib/report/slow_find.c
tests_unit_test_slow_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_slow_LDADD = $(UNIT_LIBS) -lm

tests_unit_test_watch_SOURCES = \
	tests/unit/test_watch.c tests/unit/watch_processes.c \
	tests/unit/watch_ring.h tests/unit/watch_test.h
tests_unit_test_watch_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_watch_LDADD = lib/libzerocore.la $(UNIT_LIBS)

tests_unit_test_sizing_SOURCES = tests/unit/test_sizing.c
tests_unit_test_sizing_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_sizing_LDADD = launcher/libmodel.la $(UNIT_LIBS)

tests_unit_test_protect_SOURCES = tests/unit/test_protect.c
tests_unit_test_protect_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_protect_LDADD = lib/libzerocore.la $(UNIT_LIBS)
tests_unit_test_layout_SOURCES = tests/unit/test_layout.c
tests_unit_test_layout_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_layout_LDADD = lib/libzerocore.la $(UNIT_LIBS)

tests_unit_test_options_SOURCES = tests/unit/test_options.c
tests_unit_test_options_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_options_LDADD = lib/liboptions.la $(UNIT_LIBS)

tests_unit_test_budget_SOURCES = tests/unit/test_budget.c
tests_unit_test_budget_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_budget_LDADD = spank/libvram.la $(UNIT_LIBS)

tests_unit_test_guard_SOURCES = tests/unit/test_guard.c launcher/launch/guard.c launcher/text.c
tests_unit_test_guard_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_guard_LDFLAGS = -Wl,--wrap=poll
tests_unit_test_guard_LDADD = lib/liboptions.la $(UNIT_LIBS)

# The clock is the test's.
tests_unit_test_restart_SOURCES = tests/unit/test_restart.c launcher/launch/restart.c \
	launcher/plan/find.c launcher/plan/script.c launcher/recover/choose.c \
	launcher/recover/listen.c launcher/recover/nodes.c launcher/recover/recover.c launcher/text.c
tests_unit_test_restart_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_LIBDIR=\"$(libdir)\"
tests_unit_test_restart_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_restart_LDFLAGS = -Wl,--wrap=clock_gettime,--wrap=sigtimedwait \
	-Wl,--wrap=waitpid,--wrap=print_error
tests_unit_test_restart_LDADD = lib/libzerocore.la $(UNIT_LIBS)

tests_unit_test_recover_SOURCES = tests/unit/test_recover.c launcher/recover/choose.c \
	launcher/plan/find.c launcher/plan/script.c launcher/recover/listen.c launcher/recover/nodes.c \
	launcher/text.c
tests_unit_test_recover_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_LIBDIR=\"$(libdir)\"
tests_unit_test_recover_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_recover_LDFLAGS = -Wl,--wrap=connect
tests_unit_test_recover_LDADD = lib/libzerocore.la $(UNIT_LIBS)

tests_unit_test_task_gpus_SOURCES = tests/unit/test_task_gpus.c tests/unit/device_groups.h \
	tests/unit/nvml_double.h
tests_unit_test_task_gpus_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_task_gpus_LDFLAGS = -Wl,--wrap=access
tests_unit_test_task_gpus_LDADD = spank/libvram.la $(UNIT_LIBS)

tests_unit_test_vram_SOURCES = tests/unit/test_vram.c tests/unit/nvml_double.h
tests_unit_test_vram_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_vram_LDADD = spank/libvram.la $(UNIT_LIBS)

tests_unit_test_vram_process_SOURCES = tests/unit/test_vram_process.c tests/unit/nvml_double.h
tests_unit_test_vram_process_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_vram_process_LDFLAGS = -Wl,--wrap=clock_gettime,--wrap=nanosleep,--wrap=setitimer
tests_unit_test_vram_process_LDADD = spank/libvram.la $(UNIT_LIBS)

tests_unit_test_hostlist_SOURCES = tests/unit/test_hostlist.c spank/yaml/hostlist.c
tests_unit_test_hostlist_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_hostlist_LDADD = lib/liboptions.la $(UNIT_LIBS)

tests_unit_test_config_SOURCES = tests/unit/test_config.c tests/unit/configs.h
tests_unit_test_config_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_config_LDADD = spank/libconfig.la $(UNIT_LIBS)

tests_unit_test_reader_SOURCES = tests/unit/test_reader.c tests/unit/configs.h
tests_unit_test_reader_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_reader_LDADD = spank/libconfig.la $(UNIT_LIBS)

tests_unit_test_resolve_SOURCES = tests/unit/test_resolve.c tests/unit/configs.h
tests_unit_test_resolve_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_resolve_LDADD = spank/libconfig.la $(UNIT_LIBS)

tests_unit_test_double_cuda_SOURCES = tests/unit/test_double_cuda.c tests/unit/double_cuda.h
tests_unit_test_double_cuda_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_double_cuda_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_unit_test_double_cuda_LDADD = $(DL_LIBS) $(UNIT_LIBS)

tests_unit_test_double_graph_SOURCES = tests/unit/test_double_graph.c tests/unit/double_cuda.h
tests_unit_test_double_graph_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_double_graph_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_unit_test_double_graph_LDADD = $(DL_LIBS) $(UNIT_LIBS)

tests_unit_test_double_virtual_SOURCES = tests/unit/test_double_virtual.c tests/unit/double_cuda.h
tests_unit_test_double_virtual_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_double_virtual_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_unit_test_double_virtual_LDADD = $(DL_LIBS) $(UNIT_LIBS)

tests_unit_test_files_SOURCES = tests/unit/test_files.c tests/unit/files_refused.c \
	tests/unit/files_valid.c tests/unit/files_core.h tests/unit/files_test.h $(files_sources)
tests_unit_test_files_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS) $(XXHASH_CFLAGS)
tests_unit_test_files_LDADD = $(JANSSON_LIBS) $(UNIT_LIBS)

tests_unit_test_manifest_SOURCES = tests/unit/test_manifest.c $(files_sources)
tests_unit_test_manifest_CFLAGS = $(tests_unit_test_files_CFLAGS)
tests_unit_test_manifest_LDADD = $(tests_unit_test_files_LDADD)

# It is examples/gpt.c once more, with a main of its own.
tests_gpt_gradients_SOURCES = tests/gpt/gradients.c
tests_gpt_gradients_CFLAGS = $(examples_gpt_CFLAGS)
tests_gpt_gradients_LDADD = $(examples_gpt_LDADD)
tests_gpt_gradients_LDFLAGS = $(examples_gpt_LDFLAGS)

# And with the layers of a GPU; only where there is one can it be run.
tests_gpt_gradients_cuda_SOURCES = tests/gpt/gradients.c
tests_gpt_gradients_cuda_CPPFLAGS = $(examples_gpt_cuda_CPPFLAGS)
tests_gpt_gradients_cuda_CFLAGS = $(examples_gpt_cuda_CFLAGS)
tests_gpt_gradients_cuda_LDADD = $(examples_gpt_cuda_LDADD)
tests_gpt_gradients_cuda_LDFLAGS = $(examples_gpt_LDFLAGS)

# The same two on the host, which does what the device would.
tests_gpt_gpt_device_SOURCES = $(examples_gpt_cuda_SOURCES)
tests_gpt_gpt_device_CPPFLAGS = $(examples_gpt_cuda_CPPFLAGS) -DGPT_BACKEND='"host"'
tests_gpt_gpt_device_CFLAGS = $(examples_gpt_cuda_CFLAGS)
tests_gpt_gpt_device_LDADD = tests/gpt/gpt_device_emulated.o $(examples_gpt_LDADD) -lstdc++
tests_gpt_gpt_device_LDFLAGS = $(examples_gpt_LDFLAGS)

tests_gpt_gradients_device_SOURCES = tests/gpt/gradients.c
tests_gpt_gradients_device_CPPFLAGS = $(tests_gpt_gpt_device_CPPFLAGS)
tests_gpt_gradients_device_CFLAGS = $(examples_gpt_cuda_CFLAGS)
tests_gpt_gradients_device_LDADD = $(tests_gpt_gpt_device_LDADD)
tests_gpt_gradients_device_LDFLAGS = $(examples_gpt_LDFLAGS)

tests/gpt/gpt_device_emulated.o: $(GPT_DEVICE) examples/gpt_device.h lib/zero.h \
		tests/gpt/blas_emulated.h tests/double/emulate.h tests/double/emulate_words.h
	$(AM_V_GEN)$(MKDIR_P) tests/gpt && $(CXX) -std=gnu++17 -x c++ -Wall -Wextra -Wshadow \
		-I$(top_srcdir)/lib -I$(top_srcdir)/tests/gpt $(CBLAS_CFLAGS) -D_GNU_SOURCE \
		-DGPT_THREADS=64 -DGPT_STRIP=64 $(CPPFLAGS) $(CXXFLAGS) -pthread \
		-c -o $@ $(top_srcdir)/examples/gpt_device.cu

# Stand-ins for hardware; -rpath makes libtool build shared objects of them.
check_LTLIBRARIES += tests/double/forbid.la tests/double/nodes.la
check_LTLIBRARIES += tests/double/nvml.la tests/double/nvml_old.la
tests_double_nodes_la_SOURCES = tests/double/nodes.c
tests_double_nodes_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_nodes_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)
tests_double_forbid_la_SOURCES = tests/double/forbid.c
tests_double_forbid_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_forbid_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)
if HAVE_MPI
check_LTLIBRARIES += tests/double/mpi_requests.la
tests_double_mpi_requests_la_SOURCES = tests/double/mpi_requests.c
tests_double_mpi_requests_la_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_double_mpi_requests_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_mpi_requests_la_LIBADD = $(MPI_LIBS)
tests_double_mpi_requests_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)
check_LTLIBRARIES += tests/double/mpi_late.la
tests_double_mpi_late_la_SOURCES = tests/double/mpi_late.c
tests_double_mpi_late_la_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_double_mpi_late_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_mpi_late_la_LIBADD = $(MPI_LIBS)
tests_double_mpi_late_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)
endif
tests_double_nvml_la_SOURCES = tests/double/nvml.c
tests_double_nvml_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_nvml_la_LIBADD = $(DL_LIBS)
tests_double_nvml_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere
tests_double_nvml_old_la_SOURCES = $(tests_double_nvml_la_SOURCES)
tests_double_nvml_old_la_CPPFLAGS = $(AM_CPPFLAGS) -DOLD_DRIVER
tests_double_nvml_old_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_nvml_old_la_LIBADD = $(DL_LIBS)
tests_double_nvml_old_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)

# The CUDA driver. A test makes a folder with libcuda.so.1 -> tests/double/.libs/cuda.so in it.
if HAVE_CUDA
check_LTLIBRARIES += tests/double/cuda.la
tests_double_cuda_la_SOURCES = \
	tests/double/cuda.c \
	tests/double/cuda.h \
	tests/double/cuda_access.c \
	tests/double/cuda_block.c \
	tests/double/cuda_capture.c \
	tests/double/cuda_copy.c \
	tests/double/cuda_counts.c \
	tests/double/cuda_graph.c \
	tests/double/cuda_kernels.c \
	tests/double/cuda_memory.c \
	tests/double/cuda_module.c \
	tests/double/cuda_schedule.c \
	tests/double/cuda_settings.c \
	tests/double/cuda_stream.c \
	tests/double/cuda_virtual.c
tests_double_cuda_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_double_cuda_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_cuda_la_LIBADD = kernels/libkernels.la lib/liboptions.la -lm
tests_double_cuda_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS) \
	-export-symbols-regex '^(cu[A-Z]|double_cuda_)' -Wl,-z,nodelete

# cuBLAS: libcublas.so.13 -> tests/double/.libs/cublas.so.
check_LTLIBRARIES += tests/double/cublas.la
tests_double_cublas_la_SOURCES = tests/double/cublas.c
tests_double_cublas_la_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_double_cublas_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_cublas_la_LIBADD = $(DL_LIBS)
tests_double_cublas_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS) -Wl,-z,nodelete
endif

# NCCL: libnccl.so.2 -> tests/double/.libs/nccl.so; nccl_old.so is 2.19.
if HAVE_NCCL
check_LTLIBRARIES += tests/double/libnccl.la tests/double/nccl.la tests/double/nccl_old.la
nccl_double_sources = \
	tests/double/nccl.c \
	tests/double/nccl.h \
	tests/double/nccl_agree.c \
	tests/double/nccl_check.c \
	tests/double/nccl_comm.c \
	tests/double/nccl_counts.c \
	tests/double/nccl_driver.c \
	tests/double/nccl_group.c \
	tests/double/nccl_init.c \
	tests/double/nccl_memory.c \
	tests/double/nccl_run.c \
	tests/double/nccl_segment.c \
	tests/double/nccl_settings.c \
	tests/double/nccl_types.c
tests_double_libnccl_la_SOURCES = $(nccl_double_sources)
tests_double_libnccl_la_CPPFLAGS = $(AM_CPPFLAGS) $(NCCL_CFLAGS)
tests_double_libnccl_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_nccl_la_SOURCES =
tests_double_nccl_la_LIBADD = tests/double/libnccl.la $(DL_LIBS) -lm
tests_double_nccl_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS) \
	-export-symbols-regex '^(nccl[A-Z]|double_nccl_)'
tests_double_nccl_old_la_SOURCES = $(nccl_double_sources)
tests_double_nccl_old_la_CPPFLAGS = $(tests_double_libnccl_la_CPPFLAGS) -DOLD_NCCL
tests_double_nccl_old_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_nccl_old_la_LIBADD = $(DL_LIBS) -lm
tests_double_nccl_old_la_LDFLAGS = $(tests_double_nccl_la_LDFLAGS)

# Collectives of the CUDA backend, whose calls are recorded.
UNIT_TESTS += tests/unit/test_reduce_scatter
tests_unit_test_reduce_scatter_SOURCES = \
	tests/unit/test_reduce_scatter.c tests/unit/nccl_record.h \
	lib/backend/cuda/reduce_grid.c lib/backend/cuda/reduce_ordered.c lib/backend/cuda/reduce_scatter.c \
	tests/ranks/reference.c tests/ranks/reference.h
UNIT_TESTS += tests/unit/test_scatter
tests_unit_test_scatter_SOURCES = \
	tests/unit/test_scatter.c tests/unit/nccl_record.h lib/backend/cuda/scatter.c \
	tests/ranks/reference.c tests/ranks/reference.h
tests_unit_test_scatter_CPPFLAGS = $(tests_unit_test_reduce_scatter_CPPFLAGS)
tests_unit_test_scatter_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_scatter_LDADD = $(tests_unit_test_reduce_scatter_LDADD)
tests_unit_test_reduce_scatter_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS) $(NCCL_CFLAGS) -I$(top_srcdir)
tests_unit_test_reduce_scatter_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_reduce_scatter_LDADD = lib/liboptions.la $(UNIT_LIBS)

UNIT_TESTS += tests/unit/test_double_nccl tests/unit/test_double_nccl_use
tests_unit_test_double_nccl_use_SOURCES = \
	tests/unit/double_cuda.h \
	tests/unit/double_nccl.h \
	tests/unit/test_double_nccl_use.c
tests_unit_test_double_nccl_use_CPPFLAGS = $(AM_CPPFLAGS) $(NCCL_CFLAGS)
tests_unit_test_double_nccl_use_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_double_nccl_use_LDADD = $(tests_unit_test_double_nccl_LDADD)
tests_unit_test_double_nccl_SOURCES = \
	tests/unit/double_cuda.h \
	tests/unit/double_nccl.h \
	tests/unit/test_double_nccl.c
tests_unit_test_double_nccl_CPPFLAGS = $(AM_CPPFLAGS) $(NCCL_CFLAGS)
tests_unit_test_double_nccl_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_double_nccl_LDADD = tests/double/libnccl.la $(DL_LIBS) $(UNIT_LIBS)
endif

if HAVE_SLURM
check_LTLIBRARIES += tests/double/container.la
tests_double_container_la_SOURCES = tests/double/container.c
tests_double_container_la_CPPFLAGS = $(AM_CPPFLAGS) $(SLURM_CFLAGS)
tests_double_container_la_CFLAGS = $(OUTER_CFLAGS)
tests_double_container_la_LDFLAGS = $(tests_double_nvml_la_LDFLAGS)
endif

TEST_EXTENSIONS = .ranks .sh
SH_LOG_COMPILER = bash
RANKS_LOG_COMPILER = bash $(top_srcdir)/tests/ranks/run.sh

# What scripts and programs get to know of the build.
TEST_ENVIRONMENT = \
	export top_srcdir='$(abs_top_srcdir)' top_builddir='$(abs_top_builddir)' \
		ZERORUN='$(abs_top_builddir)/launcher/zerorun' ZERO_HAVE='$(zero_have)' \
		ZERO_REQUIRE="$$ZERO_REQUIRE" \
		ZERO_COMPILE_FLAGS='$(AM_CFLAGS) $(MPI_CFLAGS) $(PMIX_CFLAGS) $(JANSSON_CFLAGS) \
			$(SLURM_CFLAGS) $(YAML_CFLAGS) $(CUDA_CFLAGS) $(NCCL_CFLAGS)';
AM_TESTS_ENVIRONMENT = $(TEST_ENVIRONMENT)

# The tests of our own code alone, and nothing else compiled for them; the sanitizers run them.
check-own:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(OWN_TESTS)' \
		check_PROGRAMS='$(filter-out %.sh,$(OWN_TESTS)) $(FUZZ_TARGETS)'
# The programs of Check, and nothing else compiled for them: for whoever builds packages.
check-unit:
	$(MAKE) $(AM_MAKEFLAGS) check check_PROGRAMS='$(CHECK_UNIT)' TESTS='$(CHECK_UNIT)'
CHECK_UNIT =
OWN_TESTS = $(RANKS_TESTS)
if HAVE_CHECK
CHECK_UNIT += $(UNIT_TESTS)
OWN_TESTS += $(UNIT_TESTS)
endif
if HAVE_CBLAS
OWN_TESTS += tests/gpt/gradients
endif

# What takes minutes, and the random tests with more seeds than make check has time for.
check-long:
	ZERO_TEST_LONG=1 $(MAKE) $(AM_MAKEFLAGS) check TESTS='$(LONG_TESTS)'

# What is random, or kills: tests/soak/local.mk.
SOAK_TESTS = \
	python/tests/device.sh \
	tests/cuda/schedules.sh \
	tests/fuzz/smoke.sh \
	tests/gpt/kill.sh \
	tests/ranks/load_model.ranks \
	tests/ranks/lost.sh \
	tests/ranks/protect.sh \
	tests/ranks/no_memory.ranks \
	tests/ranks/property.ranks \
	tests/ranks/restore.ranks

# Those of them that have threads, for the sanitizer that watches these.
check-threads:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(THREADS_TESTS)' check_PROGRAMS='$(THREADS_TESTS)'
THREADS_TESTS = \
	tests/ranks/close.ranks \
	tests/ranks/export.ranks \
	tests/ranks/leave.ranks \
	tests/ranks/load_model.ranks \
	tests/ranks/property.ranks \
	tests/ranks/save.ranks \
	tests/ranks/threads.ranks \
	tests/ranks/views.ranks
if HAVE_CHECK
THREADS_TESTS += \
	tests/unit/test_shared_arena \
	tests/unit/test_control \
	tests/unit/test_control_ends \
	tests/unit/test_watch \
	tests/unit/test_workers
endif

format-check:
	@$(TEST_ENVIRONMENT) ZERO_REQUIRE=clang-format bash $(top_srcdir)/tests/format.sh

# The packages in clean roots of Debian, as root and with a network: see the head of the script.
check-roots:
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/tests/roots.sh

# cppcheck, and clang's analyser, which takes minutes.
analyze:
	@$(TEST_ENVIRONMENT) ZERO_REQUIRE=clang,cppcheck bash $(top_srcdir)/tests/analyze.sh

.PHONY: analyze check-long check-own check-threads check-unit format-check check-roots
