#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests/cuda/caller (allocator, stream and communicator of the caller) with one to three ranks.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cuda nccl pmix mpi
scratch
gpu_doubles "$scratch/gpu"
export LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# runs RANKS [late]
runs() {
	rm -rf "$scratch/files" && mkdir "$scratch/files"
	ZERO_TEST_FILES=$scratch/files timeout -k 5 60 "$ZERORUN" --zero-preload=no -n "$1" \
		"$top_builddir/tests/cuda/caller" "${@:2}" >"$scratch/out" 2>&1 </dev/null && return
	cat "$scratch/out"
	fail "$1 ranks, DOUBLE_CUDA_FABRIC=${DOUBLE_CUDA_FABRIC-}"
}

for ranks in 1 2 3; do
	runs $ranks
done
# GPUs of several nodes with NVLink among them, and a process that may not use that.
for fabric in yes refused; do
	DOUBLE_CUDA_FABRIC=$fabric runs 2
done
# What is released cannot be read any more, but in a job without checks.
runs 2 late
ZERO_CHECK=1 timeout -k 5 60 "$ZERORUN" --zero-preload=no -n 2 \
	"$top_builddir/tests/cuda/caller" late >"$scratch/out" 2>&1 </dev/null &&
	fail "a late access was not found"
grep -q "is an address that is reserved, and no memory is mapped there" "$scratch/out" ||
	fail "a late access: $(<"$scratch/out")"
