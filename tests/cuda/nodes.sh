#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests/cuda/nodes with eight ranks that find themselves on one to eight nodes, as many on each
# or not, with sums by NCCL and in the order of the ranks.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cuda nccl pmix mpi
scratch
gpu_doubles "$scratch/gpu"
export LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ZERO_BACKEND=cuda \
	DOUBLE_CUDA_LEAKS=1 DOUBLE_NCCL_LEAKS=1 \
	DOUBLE_CUDA_LEGACY=wait DOUBLE_CUDA_DELAY_OF=16 \
	ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))} \
	ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}:verify_asan_link_order=0
for how in "nccl 8" "nccl 4" "nccl 3" "nccl 2" "nccl 1" "ordered 4"; do
	ZERO_REDUCE=${how% *} DOUBLE_RANKS_OF_NODE=${how#* } \
		timeout -k 5 120 "$ZERORUN" --zero-preload=no -n 8 \
		env "LD_PRELOAD=$top_builddir/tests/double/.libs/nodes.so" \
		"$top_builddir/tests/cuda/nodes" >"$scratch/out" 2>&1 </dev/null && continue
	cat "$scratch/out"
	fail "$how ranks a node; ZERO_TEST_SEED=$ZERO_TEST_SEED"
done
