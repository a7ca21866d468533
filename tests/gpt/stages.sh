#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training gives the same losses to the last bit however the model is sharded and whatever the
# machine's vectors are, and the same losses but for rounding at every number of ranks.
# shellcheck source=tests/gpt/gpt.sh
. "${top_srcdir:?run me by make check}/tests/gpt/gpt.sh"

need mpi
# A width that no number of ranks divides, so that tensors straddle shards.
train=(--text "$text" --layers 2 --heads 3 --width 60 --context 48 --steps 10 --warmup 4 --lr 2e-3)

bits() {
	sed 's/.*"loss_bits": "\([0-9a-f]*\)".*/\1/' "$1"
}

# like FILE: the losses of the run just made are those of FILE.
like() {
	local steps
	steps=$(bits "$scratch/log" | sort -u | wc -l)
	((steps >= 9)) || fail "$steps different losses in 10 steps"
	diff <(bits "$1") <(bits "$scratch/log") >&2 ||
		fail "$world ranks: $2 has other losses than stage 0"
}

# same WORLD STAGE [NAME=VALUE]...: the same losses as at stage 0
same() {
	world=$1
	(export "${@:3}" && trains "$world" "$2" "${train[@]}" --batch 2 --log "$scratch/log") ||
		exit
	like "$scratch/stage-0-world-$world" "stage $2 ${*:3}"
}

isas=(scalar)
grep -qs avx2 /proc/cpuinfo && isas+=(avx2)
for world in 1 3 4; do
	trains "$world" 0 "${train[@]}" --batch 2 --log "$scratch/stage-0-world-$world"
done
for isa in "${isas[@]}"; do
	same 1 0 ZERO_ISA="$isa"
	same 3 3 ZERO_ISA="$isa"
done
for stage in 1 2 3; do
	same 1 $stage ZERO_SHARE=0
	same 3 $stage ZERO_SHARE=0
done
for stage in 0 1 3; do
	same 4 $stage ZERO_SHARE=$((1 + stage / 3))
done
same 3 3 ZERO_SHARE=2
# With a copy on each two ranks sums have an order of their own, whoever shares memory.
(export ZERO_SHARD=2 ZERO_SHARE=1 && trains 4 3 "${train[@]}" --batch 2 --log "$scratch/copies") ||
	exit
(export ZERO_SHARD=2 ZERO_SHARE=2 && trains 4 3 "${train[@]}" --batch 2 --log "$scratch/log") ||
	exit
like "$scratch/copies" "a copy on each two ranks that share memory"

# The moments of 8 bits, and the matrices of Muon, are those of each number of ranks, too.
export OPENBLAS_NUM_THREADS=1
for optimizer in adamw8bit muon; do
	world=3
	trains 3 0 "${train[@]}" --batch 2 --optimizer $optimizer --log "$scratch/$optimizer"
	cmp -s <(bits "$scratch/$optimizer") <(bits "$scratch/stage-0-world-3") &&
		fail "$optimizer has the losses of adamw"
	for stage in 1 2 3; do
		trains 3 $stage "${train[@]}" --batch 2 --optimizer $optimizer --log "$scratch/log"
		like "$scratch/$optimizer" "$optimizer at stage $stage"
	done
done
unset OPENBLAS_NUM_THREADS

for world in 1 4; do
	trains "$world" 3 "${train[@]}" --batch $((4 / world)) --log "$scratch/global-$world"
	sed 's/.*"loss": \([^,]*\),.*/\1/' "$scratch/global-$world" >"$scratch/losses-$world"
	worst=$(paste "$scratch/losses-1" "$scratch/losses-$world" |
		awk '{d = $1 - $2; d = d < 0 ? -d : d; if (d > worst) worst = d}
			END {print worst + 0}')
	echo "$world ranks, the same 4 sequences a step: within $worst of 1 rank"
	awk -v worst="$worst" 'BEGIN {exit !(worst < 1e-4)}' || fail "that is more than 1e-4"
done
