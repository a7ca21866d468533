#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program of several ranks: alone, without a launcher, and then at its world sizes, where all
# ranks share memory, and some more with fewer that do: 4/2 is four ranks, of which each two do, 4:2
# has names of nodes for each two (tests/double/nodes.c), and 3! is three on an older or stricter
# system (tests/double/forbid.c). 2g is two ranks with GPUs, which tests/double stands in for: the
# CUDA backend with the host's arithmetic. Each run is bounded, so that a hang is a failure, and
# shows its output only if it fails. Lines that begin with "same " must be the same in all runs,
# those with "world N " in all of N ranks. ZERO_TEST_SEEDS=N: the property test does N times as many
# random cases; make check-long has 10, and more random models and damages too.
# ZERO_TEST_WORLDS="2 3/2 2g": only those of the program's world sizes, or the first if it has none.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi
program=$1
name=$(basename "$program" .ranks)
[[ $name != report && $name != slow ]] || need jansson
worlds=(alone 1 2 3 4 2/1 3/2 4/2)
limit=300
case $name in
# they say themselves how many ranks share memory
property) worlds=(alone 2 3 4 5 3!) ;;
flatten | tiers) worlds=(alone 2 3 3!) ;;
address) worlds=(alone 1 2 3 4 2/1 3/2 3!) ;;
step | sizing) worlds=(alone 2 3 4) ;;
groups) worlds=(alone 2 3) ;;
# what they do differs by who shares memory, not by how many ranks there are
shared | teams | threads | update | views) worlds=(alone 3 2/1 4/2) ;;
own_step | states_8bit | set_moments | muon | grid | slices) worlds=(alone 2 3 2/1 4/2) ;;
same_values) worlds=(alone 1 2 3 4 3/2) ;;
order) worlds=(2 3 3/2) ;;
atomic) worlds=(alone 2) ;;
memory) worlds=(1 3) ;;
no_memory) worlds=(alone 2) ;;
none) worlds=(alone 1 2 3) ;;
earlier) worlds=(alone 2 3) ;;
save | restore | load_model | f8) worlds=(alone 2 3/2) ;;
load_model_refused) worlds=(alone 2) ;;
# what they do differs by who leaves or reports, not by how memory is shared
report) worlds=(alone 3) ;;
slow) worlds=(alone 3 4:2) ;;
leave | apart | stop) worlds=(alone 2 3) ;;
close) worlds=(alone 2 2/1) ;;
export) worlds=(alone 3 4/2) ;;
own_mpi) worlds=(1 2 3 4 5 3/1) ;;
large) worlds=(2) limit=900 ;;
esac
gpus=(alone-g 2g 3g)
case $name in
# what they measure or do is the host's: the process's memory, MPI, shared memory
memory | no_memory | none | own_mpi | shared | large | atomic | address) gpus=() ;;
order | own_step | states_8bit | set_moments | muon | slices) gpus=(2g 3g) ;;
grid) gpus=(2g 4g) ;;
flatten | sizing | teams | threads | tiers | views) gpus=(alone-g 3g) ;;
# it opens many jobs
close) gpus=(3g) ;;
save | restore | load_model) gpus=(alone-g 2g) ;;
f8 | earlier) gpus=(2g) ;;
load_model_refused) gpus=(2g) ;;
report | leave | apart | slow | stop | export) gpus=(3g) ;;
esac
if ((${#gpus[@]})) && has_gpu_doubles; then
	worlds+=("${gpus[@]}")
fi
if [[ ${ZERO_TEST_WORLDS-} ]]; then
	some=()
	for world in "${worlds[@]}"; do
		[[ " $ZERO_TEST_WORLDS " != *" $world "* ]] || some+=("$world")
	done
	worlds=("${some[@]:-${worlds[0]}}")
fi
if [[ $name == large ]]; then
	free=$(awk '$1 == "MemAvailable:" {print int($2 / 1048576)}' /proc/meminfo)
	((free >= 12)) || skip large "it needs 12 GiB of free memory, and $free GiB are free"
fi

scratch
if [[ ${ZERO_TEST_LONG-} ]]; then
	: "${ZERO_TEST_SEEDS:=10}" "${ZERO_TEST_MODELS:=80}" "${ZERO_TEST_FLIPS:=1000}"
	export ZERO_TEST_SEEDS ZERO_TEST_MODELS ZERO_TEST_FLIPS
fi
export ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
# Open MPI leaks, and a preloaded library comes before a sanitizer's own.
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}

# run COMMAND...: ends the test if the command fails
run() {
	local status
	mkdir "$scratch/files" || fail "no folder for files"
	ZERO_TEST_FILES=$scratch/files timeout -k 5 "$limit" "$@" >"$scratch/out" 2>&1 </dev/null
	status=$?
	rm -rf "$scratch/files"
	if ((status == 77)); then
		skip "$name" "$(grep -v '^[- ]*$' "$scratch/out" | head -n 1)"
	fi
	((status == 0)) && return
	tail -n 60 "$scratch/out"
	((status != 124 && status != 137)) || echo "it was still running after $limit seconds"
	fail "$name: '$*' ended with status $status; ZERO_TEST_SEED=$ZERO_TEST_SEED"
}

# The driver, on whose default stream each call returns when it is done, and NCCL.
use_gpu_doubles() {
	export ZERO_BACKEND=cuda LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
		DOUBLE_CUDA_LEGACY=wait DOUBLE_CUDA_DELAY_OF=16 DOUBLE_CUDA_MEMORY=4G \
		DOUBLE_CUDA_GRAIN=4096 \
		DOUBLE_CUDA_LEAKS=1 DOUBLE_NCCL_LEAKS=1
	# a child that it forks has copies of all
	# what one rank refuses is an error on all only where they agree on each operation
	[[ $name != order ]] || export ZERO_CHECK=1
	# its device is to be behind the host
	[[ $name != slow ]] || unset DOUBLE_CUDA_LEGACY
	[[ $name != apart ]] || unset DOUBLE_CUDA_LEAKS DOUBLE_NCCL_LEAKS
	gpu_doubles "$scratch/gpu"
}

export ZERO_BACKEND=host
# a product's bits may depend on the number of threads
[[ $name != muon ]] || export OPENBLAS_NUM_THREADS=1
doubles=$top_builddir/tests/double/.libs
declare -A before
for world in "${worlds[@]}"; do
	if [[ $world == *g ]]; then
		[[ $ZERO_BACKEND == cuda ]] || use_gpu_doubles
		world=${world%g} world=${world%-}
	fi
	if [[ $world == alone ]]; then
		run "$program"
	else
		share=0 ranks=${world%[:\!]*} with=()
		[[ $ZERO_BACKEND == host ]] || share=1
		[[ $ranks != */* ]] || share=${ranks#*/}
		preload=
		[[ $ZERO_BACKEND == cuda || $name != property ]] || preload=$doubles/mpi_requests.so
		[[ $world != *! ]] || preload=$preload:$doubles/forbid.so
		[[ $world != *:* ]] || preload=$doubles/nodes.so
		# by the ranks, not by the launcher
		[[ ! $preload ]] || with=(env "LD_PRELOAD=$preload"
			"ASAN_OPTIONS=$ASAN_OPTIONS:verify_asan_link_order=0")
		[[ $world != *:* ]] || with+=("DOUBLE_RANKS_OF_NODE=${world#*:}")
		[[ $world != *! ]] || export OMPI_MCA_btl_vader_single_copy_mechanism=none
		ZERO_SHARE=$share run "$ZERORUN" --zero-preload=no -n "${ranks%/*}" "${with[@]}" \
			"$program"
		unset OMPI_MCA_btl_vader_single_copy_mechanism
	fi
	grep '^same ' "$scratch/out" >"$scratch/same"
	if [[ -e $scratch/first ]] && ! cmp -s "$scratch/first" "$scratch/same"; then
		diff "$scratch/first" "$scratch/same"
		fail "$name: other values at world size $world; ZERO_TEST_SEED=$ZERO_TEST_SEED"
	fi
	mv "$scratch/same" "$scratch/first"
	while read -r line; do
		key=${line%%:*}
		[[ ${before[$key]-$line} == "$line" ]] ||
			fail "$name: '${before[$key]}', but '$line' in $world;" \
				"ZERO_TEST_SEED=$ZERO_TEST_SEED"
		before[$key]=$line
	done < <(grep '^world ' "$scratch/out")
done
