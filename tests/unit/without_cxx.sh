#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stands for the tests of device code in a build without a C++ compiler.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cxx
