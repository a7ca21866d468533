#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zero_files.so and the safetensors package read the files that the other one writes.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need files
need_python numpy safetensors
"$python" "$top_srcdir/tests/unit/files_interop.py" "$top_builddir/lib/.libs/zero_files.so"
