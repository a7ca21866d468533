#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests/cuda/counts: what a training step asks of the driver and of NCCL, on stand-ins that
# count. In make check-long it has 1000 steps. The figures are in the log.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cuda nccl pmix mpi
scratch
gpu_doubles "$scratch/gpu"
export LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
	ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
export DOUBLE_SEED=$((ZERO_TEST_SEED + 1)) DOUBLE_CUDA_DELAY_OF=4 \
	OMPI_MCA_rmaps_base_oversubscribe=1
steps=100
[[ ! ${ZERO_TEST_LONG-} ]] || steps=1000
timeout -k 5 300 "$ZERORUN" --zero-preload=no -n 3 "$top_builddir/tests/cuda/counts" $steps \
	>"$scratch/out" 2>&1 </dev/null
status=$?
cat "$scratch/out"
((status == 0)) || fail "it ended with status $status; ZERO_TEST_SEED=$ZERO_TEST_SEED"

# With ncclReduceScatter on the stream of the gathers this never ended.
DOUBLE_NCCL_FAIL=hang:ncclReduceScatter:1 timeout -k 5 60 "$ZERORUN" --zero-preload=no -n 2 \
	"$top_builddir/tests/cuda/counts" beside >"$scratch/out" 2>&1 </dev/null
[[ $(grep -c "gathered beside a reduce" "$scratch/out") == 2 ]] ||
	fail "a gather waits for a reduce: $(<"$scratch/out")"
DOUBLE_CUDA_DELAY_OF=1 DOUBLE_CUDA_DELAY_US=30000 timeout -k 5 60 "$ZERORUN" \
	--zero-preload=no -n 2 "$top_builddir/tests/cuda/counts" agree >"$scratch/out" 2>&1 \
	</dev/null || fail "zero_agree waits for no reduce: $(<"$scratch/out")"
