#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The property test on random schedules: streams run late and far apart from each other, and what is
# to be written holds poison before. Each seed is another schedule and another few random models; in
# make check-long there are 200, or 20 times ZERO_TEST_SEEDS, otherwise six. ZERO_TEST_SCHEDULE=N
# repeats seed N alone.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cuda nccl pmix mpi
scratch
mkdir "$scratch/files" || fail "no folder"
gpu_doubles "$scratch/gpu"
export LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ZERO_BACKEND=cuda \
	ZERO_TEST_FILES=$scratch/files ZERO_TEST_CASES=3 \
	DOUBLE_CUDA_LEGACY=wait DOUBLE_CUDA_DELAY_OF=16 DOUBLE_CUDA_MEMORY=4G DOUBLE_CUDA_LEAKS=1 \
	DOUBLE_NCCL_LEAKS=1 OMPI_MCA_rmaps_base_oversubscribe=1
export ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
base=$ZERO_TEST_SEED seeds=6
[[ ! ${ZERO_TEST_LONG-} ]] || seeds=$((20 * ${ZERO_TEST_SEEDS:-10}))
first=$((base % 1000000 + 1)) last=$((base % 1000000 + seeds))
if [[ ${ZERO_TEST_SCHEDULE-} ]]; then
	first=$ZERO_TEST_SCHEDULE last=$ZERO_TEST_SCHEDULE
fi

for ((seed = first; seed <= last; seed++)); do
	ranks=$((seed % 3 + 1))
	# a world that hangs has a circle of waits
	DOUBLE_SEED=$seed ZERO_TEST_SEED=$seed timeout -k 5 300 "$ZERORUN" --zero-preload=no \
		-n $ranks \
		"$top_builddir/tests/ranks/property.ranks" >"$scratch/out" 2>&1 </dev/null
	status=$?
	if ((status != 0)); then
		tail -n 40 "$scratch/out"
		((status != 124 && status != 137)) || echo "it was still running after 300 seconds"
		fail "$ranks ranks ended with status $status; repeat it by ZERO_TEST_SCHEDULE=$seed"
	fi
	rm -f "$scratch/files"/*
done
