#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/doubles.sh with other numbers of ranks, every operation delayed, and figures printed.
export ZERO_TEST_LONG=1
. "${top_srcdir:?run me by make check}/tests/gpu/doubles.sh"
