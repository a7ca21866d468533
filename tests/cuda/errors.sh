#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The doubles make calls of the driver and of NCCL fail on one rank of two, and kill a rank inside
# operations. All ranks must end in time, with a sentence, and free all memory.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cuda nccl pmix mpi
scratch
gpu_doubles "$scratch/gpu"
program=$top_builddir/tests/cuda/life
export LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ZERO_BACKEND=cuda \
	DOUBLE_CUDA_DELAY_US=0 ZERO_OPEN_SECONDS=10 ZERO_TEST_FILES=$scratch \
	ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}

# life RANKS [ARGUMENT]...: its output is in $scratch/out
life() {
	timeout -k 5 40 "$ZERORUN" --zero-preload=no -n "$1" "$program" "${@:2}" \
		>"$scratch/out" 2>&1 </dev/null
}

broken() {
	cat "$scratch/out"
	fail "$*"
}

# one_ends_well FOLDER RULE: two ranks, in a process of its own; their output is added to
# $scratch/all
one_ends_well() {
	local all=$scratch/all scratch=$1
	trap - EXIT
	mkdir -p "$scratch"
	export ZERO_TEST_FILES=$scratch "$variable=$2"
	ends_well 2 "$2"
	cat "$scratch/out" >>"$all"
}

# all_end_well VARIABLE RULE...: each by itself, four at a time
all_end_well() {
	local variable=$1 rule pids=() pid
	shift
	: >"$scratch/all"
	for rule; do
		one_ends_well "$scratch/${#pids[@]}" "$rule" &
		pids+=($!)
		((${#pids[@]} == 4)) || continue
		for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
		pids=()
	done
	for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
}

# ends_well RANKS WHAT: each rank prints its result and leaves nothing allocated.
ends_well() {
	local rank status
	DOUBLE_CUDA_LEAKS=1 DOUBLE_NCCL_LEAKS=1 life "$1"
	status=$?
	((status == 0)) || broken "$2: ended with status $status"
	for ((rank = 0; rank < $1; rank++)); do
		grep -q "^rank $rank: " "$scratch/out" || broken "$2: rank $rank printed nothing"
	done
	! grep -q 'no sentence' "$scratch/out" || broken "$2: an error without a sentence"
}

ends_well 2 "nothing wrong"
[[ $(grep -c ': ok$' "$scratch/out") == 2 ]] || broken "nothing wrong, but not all is well"

# Sums in the order of the ranks, and NCCL 2.19, which takes one id and has no windows.
ZERO_REDUCE=ordered ends_well 2 "ordered sums"
[[ $(grep -c ': ok$' "$scratch/out") == 2 ]] || broken "ordered sums: not all is well"
ln -sf "$top_builddir/tests/double/.libs/nccl_old.so" "$scratch/gpu/libnccl.so.2"
ends_well 3 "NCCL 2.19"
[[ $(grep -c ': ok$' "$scratch/out") == 3 ]] || broken "NCCL 2.19: not all is well"
gpu_doubles "$scratch/gpu"

# Each call fails on rank 1, the first time or later. 2 is out of memory, 719 a failed launch.
rules=(cuInit:1:100 cuDeviceGetCount:1:100 cuDevicePrimaryCtxRetain:1:2
	cuModuleLoadData:1:209 cuModuleGetFunction:2:500 cuMemPoolCreate:1:801
	cuStreamCreateWithPriority:1:2 cuEventCreate:1:2 cuEventCreate:5:2
	cuMemAllocFromPoolAsync:1+:2 cuMemAllocFromPoolAsync:4+:2 cuMemAllocFromPoolAsync:7+:2
	cuMemAllocFromPoolAsync:9+:2 cuMemHostAlloc:1+:2 cuMemHostAlloc:2+:2 cuLaunchKernel:1:719
	cuLaunchKernel:9:719 cuMemcpyAsync:2:1 cuMemsetD8Async:1:1 cuEventRecord:9:700
	cuEventQuery:4:700 cuStreamWaitEvent:6:700)
all_end_well DOUBLE_CUDA_FAIL "${rules[@]/%/:1}"
failed=$(grep -vc ': ok$' "$scratch/all")
((failed > 40)) || fail "only $failed ranks met an error: do the rules still fit the calls?"

all_end_well DOUBLE_NCCL_FAIL ncclGetUniqueId:1:3:0 ncclCommInitRankConfig:1:2:1 \
	ncclAllGather:1:3:1 \
	ncclAllGather:3:2:0 ncclSend:1:3:0 ncclRecv:2:6:1 \
	ncclRecv:3:6:1,slow:ncclSend:3:0,slow:ncclCommAbort:1:0 ncclGroupEnd:3:3:1 \
	ncclCommWindowRegister:1:2:1 ncclMemAlloc:1:1:1 async:3:6:1 async:9:3:0 \
	ncclCommSplit:2:2:1 ncclCommSplit:3:2:0 ncclReduceScatter:1:3:1 ncclReduceScatter:3:2:0 \
	ncclCommWindowRegister:2:2:0
failed=$(grep -vc ': ok$' "$scratch/all")
((failed > 24)) || fail "only $failed ranks met an error: do the rules still fit the calls?"

# NCCL refuses two ranks of one GPU, without saying so in its sentence.
DOUBLE_NCCL_FAIL=ncclCommInitRankConfig:1:5 ends_well 2 "one GPU"
[[ $(grep -c '2 ranks of .* have the same GPU, .*: start at most' "$scratch/out") == 2 ]] ||
	broken "two ranks of one GPU"

# A rank that cannot make a communicator of a team, of its ranks or for its reduces.
for rule in ncclCommSplit:4:2:1 ncclCommSplit:5:2:0 ncclCommSplit:6:2:1 ncclCommSplit:6:2:2 \
		ncclCommWindowRegister:2:2:1; do
	DOUBLE_NCCL_FAIL=$rule life 3 team
	status=$?
	((status != 124 && status != 137)) || broken "$rule in a team: was still running after 40 s"
	! grep 'died of signal' "$scratch/out" || broken "$rule in a team: a rank crashed"
	[[ $(grep -c '^rank .*ncclComm[SW].* failed' "$scratch/out") == 3 ]] ||
		broken "$rule in a team: not all ranks say so"
done

# In a team the error is that of the rank of the job that met it.
DOUBLE_NCCL_FAIL=ncclAllGather:1:3:2 life 3 team || broken "an error in a team: status $?"
[[ $(grep -c '^rank .*was told to fail (of rank 2)$' "$scratch/out") == 3 ]] ||
	broken "an error in a team: not all say that it is of rank 2"

# A device fails while much work is queued, and no other rank waits for that work for ever. What a
# stand-in says of memory that the failed device still uses does not matter.
for rule in cuLaunchKernel:26:700 cuLaunchKernel:50:700; do
	DOUBLE_CUDA_DELAY_US=3000 DOUBLE_CUDA_FAIL=$rule:1 life 2
	status=$?
	((status != 124 && status != 137)) || broken "$rule: was still running after 40 s"
done

# A call that had no memory can be repeated.
for rule in cuMemAllocFromPoolAsync:5:2:1 ncclMemAlloc:1:1:0; do
	variable=DOUBLE_CUDA_FAIL
	[[ $rule != nccl* ]] || variable=DOUBLE_NCCL_FAIL
	env "$variable=$rule" timeout -k 5 60 "$ZERORUN" --zero-preload=no -n 2 "$program" retry \
		>"$scratch/out" 2>&1 </dev/null || broken "$rule, again: status $?"
	[[ $(grep -c ': ok$' "$scratch/out") == 2 ]] || broken "$rule, again: not all is well"
done

# A rank is killed: the others name it, whatever they wait for, and free no memory that an abort
# still uses.
for rule in die:1 kill:ncclAllGather:1:1 kill:ncclSend:2:2 kill:ncclBroadcast:1:0 \
		kill:ncclGroupEnd:5:1 kill:ncclReduceScatter:2:2; do
	how=() fails=$rule
	[[ $rule != die:* ]] || how=(die) fails=slow:ncclCommAbort:1
	ZERO_ON_FAULT=return DOUBLE_NCCL_FAIL=$fails \
		timeout -k 5 60 "$ZERORUN" --zero-preload=no -n 3 \
		--launcher-arg=--enable-recovery "$program" "${how[@]}" \
		>"$scratch/out" 2>&1 </dev/null
	status=$?
	((status != 124 && status != 137)) || broken "$rule: was still running after 40 s"
	! grep '^double NCCL\|^stand-in for CUDA' "$scratch/out" || broken "$rule: misuse"
	# A load whose values never came does not succeed.
	[[ $rule != *Broadcast* ||
		$(grep -c '^rank [12]: zero_load(.*&from_rank): ' "$scratch/out") == 2 ]] ||
		broken "$rule: a load without values"
	gone=${rule##*:}
	! grep -q "^rank $gone: ok" "$scratch/out" || continue
	for rank in 0 1 2; do
		((rank == gone)) || grep -q "^rank $rank: .*rank $gone" "$scratch/out" ||
			broken "$rule: rank $rank does not name rank $gone"
	done
done
