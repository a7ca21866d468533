# SPDX-License-Identifier: Apache-2.0
# The package slurm_zero for PyTorch. Its extension is one file for all Pythons since 3.10, and it
# needs libzero, but no torch to be built.
PYTHON_FILES = \
	python/slurm_zero/__init__.py \
	python/slurm_zero/_checkpoint.py \
	python/slurm_zero/_hooks.py \
	python/slurm_zero/_overlay.py \
	python/slurm_zero/_tensor.py
EXTRA_DIST += $(PYTHON_FILES) \
	python/slurm_zero/_files.c python/slurm_zero/_zero.c python/slurm_zero/_zero.h python/tests/cases.py \
	python/tests/checkpoint.py python/tests/dcp.py python/tests/frameworks.py python/tests/tensors.py \
	python/tests/models.py python/tests/check.sh

# libtool makes no file of that name, and what is beside it is not installed yet.
if HAVE_PYTHON
noinst_LTLIBRARIES += python/_zero.la
python__zero_la_SOURCES = \
	python/slurm_zero/_files.c \
	python/slurm_zero/_zero.c \
	python/slurm_zero/_zero.h
python__zero_la_CPPFLAGS = $(AM_CPPFLAGS) $(PYTHON_CPPFLAGS)
python__zero_la_CFLAGS = $(OUTER_CFLAGS)
python__zero_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -rpath $(abs_builddir)/python \
	-export-symbols-regex '^PyInit_'
python__zero_la_LIBADD = lib/libzero.la

all-local: python/slurm_zero/_zero.abi3.so
python/slurm_zero/_zero.abi3.so: python/_zero.la
	$(AM_V_GEN)$(MKDIR_P) python/slurm_zero && cp python/.libs/_zero.so $@.new && mv $@.new $@
CLEANFILES += python/slurm_zero/_zero.abi3.so
endif

# With torch: make check-torch TORCH_PYTHON=venv/bin/python; TORCH_CASES names some of the cases,
# TORCH_WORLDS the numbers of ranks.
check-torch: all
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/python/tests/check.sh

.PHONY: check-torch
