#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The safetensors package reads checkpoints, with the values of an export.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi files
need_python numpy safetensors
scratch
export ZERO_BACKEND=host ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
export ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
echo "ZERO_TEST_SEED=$ZERO_TEST_SEED"
for ranks in 1 3; do
	dir=${scratch:?}/$ranks
	timeout -k 5 120 "$ZERORUN" --zero-preload=no -n $ranks \
		"${top_builddir:?}/tests/ranks/restore.ranks" save "$dir" "$dir.safetensors" \
		>"$scratch/out" 2>&1 </dev/null || fail "$(<"$scratch/out")"
	"$python" "$top_srcdir/tests/unit/checkpoint_interop.py" "$dir/latest" \
		"$dir.safetensors" || exit
done
