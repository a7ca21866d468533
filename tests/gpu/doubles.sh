#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the device tests without a device: the driver and NCCL are stand-ins with asynchronous
# streams. This does not test the arithmetic of a device or its speed. Three ranks run it, and in
# make check-long other numbers of them, too.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cuda
kernels=$top_builddir/tests/gpu/kernels ranks=$top_builddir/tests/gpu/ranks
scratch
mkdir "$scratch/files" || fail "no folder"
gpu_doubles "$scratch/doubles"
export LD_LIBRARY_PATH=$scratch/doubles${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))} ZERO_TEST_FILES=$scratch/files
# The reference adds in the order of the ranks.
export ZERO_REDUCE=ordered
# With DOUBLE_CUDA_PROTECT a program dies if its host code reads device memory.
export DOUBLE_CUDA_PROTECT=1
export DOUBLE_CUDA_MEMORY=${DOUBLE_CUDA_MEMORY:-2G} OMPI_MCA_rmaps_base_oversubscribe=1
unset ZERO_RESOLVED ZERO_STAGE ZERO_BACKEND ZERO_TEST_BACKEND

# runs LIMIT COMMAND...: the command must succeed
runs() {
	local limit=$1 status
	shift
	timeout -k 5 "$limit" "$@" >"$scratch/out" 2>&1 </dev/null
	status=$?
	rm -f "$scratch/files"/*
	((status == 0)) && return
	tail -n 40 "$scratch/out"
	((status != 124 && status != 137)) || echo "it was still running after $limit seconds"
	fail "'$*' ended with status $status; ZERO_TEST_SEED=$ZERO_TEST_SEED"
}

# What its kernels compute is the host's: tests/unit/test_device has the device's own.
runs 300 "$kernels" check 300
have nccl || exit 0
if ! have mpi || ! have pmix; then
	runs 300 "$ranks"
	exit 0
fi
worlds=(3)
if [[ ${ZERO_TEST_LONG-} ]]; then
	runs 300 "$ranks"
	worlds=(1 2 3 4)
else
	export DOUBLE_CUDA_DELAY_OF=4
fi
for world in "${worlds[@]}"; do
	runs 300 "$ZERORUN" --zero-preload=no -n "$world" "$ranks"
done
runs 300 "$ZERORUN" --zero-preload=no -n 2 "$ranks" capture
# Copy engines have no part in NCCL's order of launches.
ZERO_REDUCE=nccl NCCL_LAUNCH_ORDER_IMPLICIT=1 \
	runs 300 "$ZERORUN" --zero-preload=no -n 2 "$ranks" capture
[[ ${ZERO_TEST_LONG-} ]] || exit 0
# Only the printing of figures is tested; their values mean nothing here.
for subject in stream downcast connect; do
	runs 120 "$ZERORUN" --zero-preload=no -n 2 "$top_builddir/tests/gpu/transfers" $subject 0.01
	grep -q '^{"row": .*"figure": ' "$scratch/out" || fail "$subject: $(<"$scratch/out")"
done
