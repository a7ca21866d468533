#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests/cuda/pinned with one rank and with two.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cuda nccl pmix mpi jansson
scratch
gpu_doubles "$scratch/gpu"
export LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ZERO_BACKEND=cuda \
	DOUBLE_CUDA_LEAKS=1 DOUBLE_NCCL_LEAKS=1 DOUBLE_CUDA_LEGACY=wait DOUBLE_CUDA_DELAY_OF=16 \
	ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
for ranks in 1 2; do
	mkdir "$scratch/$ranks"
	ZERO_TEST_FILES=$scratch/$ranks timeout -k 5 120 "$ZERORUN" --zero-preload=no -n $ranks \
		"$top_builddir/tests/cuda/pinned" >"$scratch/out" 2>&1 </dev/null && continue
	cat "$scratch/out"
	fail "$ranks ranks"
done
