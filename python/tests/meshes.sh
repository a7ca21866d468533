#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copies of the model, tensor parallel ones, experts and pipelines.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"

for what in mesh pipeline; do
	run_ranks 2 "$what"
	long 4 "$what"
done
