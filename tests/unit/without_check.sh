#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stands for the unit tests in a build without Check, so that they are missed by name.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need check
