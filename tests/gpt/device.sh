#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training with the device's layers gives the host's losses but for rounding: gpt_device is gpt_cuda
# on this machine, its kernels emulated. The memory of its activations faults when gpt.c touches it.
# shellcheck source=tests/gpt/gpt.sh
. "${top_srcdir:?run me by make check}/tests/gpt/gpt.sh"

need cxx
host=$GPT device=$top_builddir/tests/gpt/gpt_device
# Small, for each thread of a kernel is run by itself, and of odd sizes.
train=(--text "$text" --layers 2 --heads 3 --width 21 --context 15 --steps 8 --warmup 2 --lr 2e-3
	--batch 1 --sample 3)

# losses LOG: a number a line, then what was sampled
losses() {
	sed 's/.*"loss": \([^,]*\),.*/\1/' "$1"
	sed -n '/^rank/,$p' <<<"$out" | sed /^rank/d
}

# compare WHAT: $scratch/got with $scratch/want
compare() {
	local worst
	diff <(tail -n +9 "$scratch/want") <(tail -n +9 "$scratch/got") >&2 ||
		fail "$1: other samples"
	worst=$(paste <(head -n 8 "$scratch/want") <(head -n 8 "$scratch/got") | awk '
		{d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (!(d <= worst)) worst = d}
		END {print NR == 8 ? worst + 0 : "missing"}')
	echo "$1: within $worst of the host's losses"
	awk -v worst="$worst" 'BEGIN {exit !(worst ~ /^[0-9]/ && worst < 1e-4)}' ||
		fail "that is more than 1e-4"
}

for world in $(worlds 1 2); do
	# One rank stores all at any stage.
	for stage in $([[ $world == 1 ]] && echo 0 || echo 3); do
		GPT=$host trains "$world" "$stage" "${train[@]}" --log "$scratch/host"
		losses "$scratch/host" >"$scratch/want"
		GPT=$device trains "$world" "$stage" "${train[@]}" --log "$scratch/device"
		losses "$scratch/device" >"$scratch/got"
		steps=$(head -n 8 "$scratch/want" | sort -u | wc -l)
		((steps >= 8)) || fail "$steps different losses in 8 steps"
		compare "$world ranks, stage $stage"
	done
done

# The embedding and head by slices, of which there are three.
if have mpi; then
	GPT=$host trains 2 3 "${train[@]}" --vocab 1200 --log "$scratch/host"
	losses "$scratch/host" >"$scratch/want"
	(export ZERO_SHARE=1 ZERO_STREAM=auto ZERO_STREAM_THRESHOLD=1K ZERO_STREAM_CHUNK=1K &&
		GPT=$device trains 2 3 "${train[@]}" --vocab 1200 --log "$scratch/device" &&
		losses "$scratch/device" >"$scratch/got") || exit
	compare "2 ranks, by slices"
fi

# No memory for activations: a sentence.
export ZERO_RESOLVED='budget=1M'
GPT=$device gpt 1 3 "${train[@]}"
((status == 1)) || fail "1 MB of memory: status $status: $out $err"
grep -q '^gpt: no memory for [0-9]* bytes' "$scratch/err" || fail "1 MB of memory: $err"
