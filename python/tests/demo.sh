#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make demo-torch with few steps.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"
STEPS=2 TEXT=$top_srcdir/README.md bash "$top_srcdir/examples/demo_torch.sh" || fail "demo-torch"
