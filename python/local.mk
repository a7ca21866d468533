# SPDX-License-Identifier: Apache-2.0
# The package slurm_zero for PyTorch. Its extension is one file for all Pythons since 3.10, and it
# needs libzero, but no torch to be built.
PYTHON_FILES = \
	python/slurm_zero/__init__.py \
	python/slurm_zero/_adamw.py \
	python/slurm_zero/_api.py \
	python/slurm_zero/_checkpoint.py \
	python/slurm_zero/_device.py \
	python/slurm_zero/_flat_shard.py \
	python/slurm_zero/_from_rank0.py \
	python/slurm_zero/_group.py \
	python/slurm_zero/_job.py \
	python/slurm_zero/_layout.py \
	python/slurm_zero/_module.py \
	python/slurm_zero/_overlay.py \
	python/slurm_zero/_param.py \
	python/slurm_zero/_plan.py \
	python/slurm_zero/_protect.py \
	python/slurm_zero/_rendezvous.py \
	python/slurm_zero/_saved.py \
	python/slurm_zero/_start.py \
	python/slurm_zero/_steps.py \
	python/slurm_zero/_streamed.py \
	python/slurm_zero/_streamed_loss.py \
	python/slurm_zero/_team.py \
	python/slurm_zero/_unsharded.py \
	python/slurm_zero/_watch.py
PYTHON_DEEPSPEED_FILES = \
	python/slurm_zero/deepspeed/__init__.py \
	python/slurm_zero/deepspeed/checkpoint.py \
	python/slurm_zero/deepspeed/config.py \
	python/slurm_zero/deepspeed/convert.py \
	python/slurm_zero/deepspeed/engine.py \
	python/slurm_zero/deepspeed/foreign.py \
	python/slurm_zero/deepspeed/foreign_files.py \
	python/slurm_zero/deepspeed/fragments.py \
	python/slurm_zero/deepspeed/init.py \
	python/slurm_zero/deepspeed/moved.py \
	python/slurm_zero/deepspeed/optimizer.py \
	python/slurm_zero/deepspeed/pretrained.py \
	python/slurm_zero/deepspeed/shard.py \
	python/slurm_zero/deepspeed/zero_to_fp32.py
TORCH_TESTS = \
	python/tests/cases.sh \
	python/tests/deepspeed.sh \
	python/tests/demo.sh \
	python/tests/device.sh \
	python/tests/foreign.sh \
	python/tests/meshes.sh \
	python/tests/models.sh \
	python/tests/refused.sh \
	python/tests/protected.sh \
	python/tests/saved.sh \
	python/tests/unedited.sh
TESTS += $(TORCH_TESTS)
TORCH_LONG_TESTS = \
	python/tests/rendezvous.sh \
	tests/slurm/torch.sh \
	tests/slurm/unedited.sh
EXTRA_DIST += $(PYTHON_FILES) $(PYTHON_DEEPSPEED_FILES) \
	python/slurm_zero.dist-info/entry_points.txt \
	python/build_backend.py \
	python/pyproject.toml \
	python/tests/adopted.py \
	python/tests/cases.py \
	python/tests/checkpoint.py \
	python/tests/dcp.py \
	python/tests/deepspeed_cases.py \
	python/tests/deepspeed_model.py \
	python/tests/deepspeed_write.py \
	python/tests/device.py \
	python/tests/device/device.cpp \
	python/tests/device/standin.py \
	python/tests/ends.py \
	python/tests/engines.py \
	python/tests/foreign.py \
	python/tests/frameworks.py \
	python/tests/gradients.py \
	python/tests/harness.py \
	python/tests/kept.py \
	python/tests/loading.py \
	python/tests/mesh.py \
	python/tests/models.py \
	python/tests/optimizers.py \
	python/tests/pipeline.py \
	python/tests/planned.py \
	python/tests/pretrained.py \
	python/tests/protect.py \
	python/tests/protect_engine.py \
	python/tests/refused.py \
	python/tests/rendezvous.py \
	python/tests/slow.py \
	python/tests/steps.py \
	python/tests/streamed.py \
	python/tests/surface.py \
	python/tests/tensors.py \
	python/tests/torch.sh \
	python/tests/train.py \
	python/tests/unedited.py \
	$(TORCH_TESTS) $(TORCH_LONG_TESTS)

# All of it is one folder that the plugin and zerorun put on PYTHONPATH, so that nothing else is there.
# A .pth file names the folder to the Python that configure found, if its packages are in the prefix.
if HAVE_PYTHON
pythonmodulesdir = $(modulesdir)/python
slurm_zerodir = $(pythonmodulesdir)/slurm_zero
slurm_zero_DATA = $(PYTHON_FILES)
slurm_zero_deepspeeddir = $(slurm_zerodir)/deepspeed
slurm_zero_deepspeed_DATA = $(PYTHON_DEEPSPEED_FILES)
# The entry point by which torch calls the package.
slurm_zero_infodir = $(pythonmodulesdir)/slurm_zero-$(PACKAGE_VERSION).dist-info
slurm_zero_info_DATA = \
	python/slurm_zero.dist-info/METADATA \
	python/slurm_zero.dist-info/entry_points.txt
slurm_zero_LTLIBRARIES = python/slurm_zero/_zero.abi3.la
pythonsite_DATA = python/slurm-zero.pth
python/slurm-zero.pth: Makefile
	$(AM_V_GEN)echo '$(pythonmodulesdir)' >$@.new && mv $@.new $@
CLEANFILES += python/slurm-zero.pth python/slurm_zero/_zero.abi3.so

# The library is three folders up, also where all of it was moved.
PYTHON_LDFLAGS = -Wl,-rpath,'$$ORIGIN/../../..'
python_slurm_zero__zero_abi3_la_SOURCES = \
	lib/net/address.c \
	python/slurm_zero/_zero.c
python_slurm_zero__zero_abi3_la_CPPFLAGS = $(AM_CPPFLAGS) $(PYTHON_CPPFLAGS)
python_slurm_zero__zero_abi3_la_CFLAGS = $(OUTER_CFLAGS)
python_slurm_zero__zero_abi3_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-export-symbols-regex '^PyInit_' $(PYTHON_LDFLAGS)
python_slurm_zero__zero_abi3_la_LIBADD = lib/libzero.la

# Python looks for the module beside the other files.
all-local: python/slurm_zero/_zero.abi3.so
python/slurm_zero/_zero.abi3.so: python/slurm_zero/_zero.abi3.la
	$(AM_V_GEN)cp python/slurm_zero/.libs/_zero.abi3.so $@.new && mv $@.new $@
endif

# All that make check runs of PyTorch, and more of it.
check-torch:
	TORCH_PYTHON=$${TORCH_PYTHON-python3} ZERO_TEST_LONG=1 ZERO_REQUIRE=torch \
		$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(TORCH_TESTS) $(TORCH_LONG_TESTS)'

.PHONY: check-torch
