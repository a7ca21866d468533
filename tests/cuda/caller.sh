#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests/cuda/caller (allocator, stream and communicator of the caller) with one to three ranks.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cuda nccl pmix mpi
scratch
gpu_doubles "$scratch/gpu"
export LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for ranks in 1 2 3; do
	mkdir "$scratch/$ranks" && export ZERO_TEST_FILES=$scratch/$ranks
	timeout -k 5 60 "$ZERORUN" --zero-preload=no -n $ranks "$top_builddir/tests/cuda/caller" \
		>"$scratch/out" 2>&1 </dev/null && continue
	cat "$scratch/out"
	fail "$ranks ranks"
done
