#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The fuzz targets run over what is in corpus/: where fuzzing begins, and what it has found.
. "${top_srcdir:?run me by make check}/tests/common.sh"

scratch
export TMPDIR=$scratch
count=0
for folder in "$top_srcdir"/tests/fuzz/corpus/*/; do
	target=$(basename "$folder")
	case $target in
	config) have yaml || continue ;;
	manifest | safetensors) have files || continue ;;
	esac
	program=$top_builddir/tests/fuzz/$target
	timeout 60 "$program" "$folder"* >"$scratch/out" 2>&1 ||
		fail "$target: status $?: $(tail -n 5 "$scratch/out")"
	count=$((count + $(wc -l <"$scratch/out")))
done
((count > 20)) || fail "only $count files were tried"
