#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The quick part of make check-torch, and make demo-torch with few steps.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need mpi
[[ ${TORCH_PYTHON-} ]] || skip torch "TORCH_PYTHON names no Python that has it"
TORCH_QUICK=yes bash "$top_srcdir/python/tests/check.sh" || fail "check-torch"
TORCH_QUICK=yes bash "$top_srcdir/python/tests/unedited.sh" || fail "programs that nobody edits"
STEPS=2 TEXT=$top_srcdir/README.md bash "$top_srcdir/examples/demo_torch.sh" || fail "demo-torch"
