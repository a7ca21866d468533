#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a cluster whose nodes differ, zerorun's --plan says what the ranks then do: the threshold and
# the tier of the node with the least memory, and as many bytes as they hold.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
need files
: "${ZERORUN:?}"
ranks=${top_builddir:?}/tests/ranks/sizing.ranks
report_task=$top_builddir/tests/slurm/report_task
model=$scratch/model.safetensors
cluster_start
plugin_on
write_yaml <<<"defaults: {preload_path: $libzero, stage: 2, stream_chunk: 64K, vram_reserve: 0}"

# gpus NODE BYTES: what is free on each of the node's
gpus() {
	printf 'gpu GPU-%s-%s %s 80G NVIDIA H100\n' "$1" 0 "$2" "$1" 1 "$2" >"$scratch/$1.gpus"
}

# allocated ARGUMENT...: zerorun in such an allocation
places=(-N 3 -n 3)
allocated() {
	ran "zerorun $*" salloc -Q "${places[@]}" --gres=gpu:1 "$ZERORUN" "$@"
}

# alike BYTES TIER [FLAG...]: plan and ranks, where n2 has so many free
alike() {
	gpus n2 "$1"
	allocated --plan --model="$model" "${@:3}" true
	cp "$scratch/out" "$scratch/plan"
	allocated "${@:3}" "$ranks" "$model"
	diff <(sort "$scratch/out") <(
		sed -nE 's/^# (shards|gathered|gradients|optimizer|staging|total) .* /\1 /p
			s/^# all .* (stream_threshold [0-9]+), .* (flatten .*)$/\1\n\2/p
			' "$scratch/plan" | sort
	) >&2 || fail "plan and ranks differ: $(<"$scratch/plan")"
	grep -q "^flatten $2$" "$scratch/out" || fail "not $2: $(<"$scratch/plan")"
}

gpus n1 79G
gpus n3 20G
gpus n2 40G
allocated "$ranks" "$model"
alike 40G device
grep -qE '^# n1 +1 +79.0G +79.0G +nvml +1.2G +device +1 x NVIDIA H100$' "$scratch/plan" ||
	fail "no line of n1: $(<"$scratch/plan")"
grep -qx '# fits: 20.0G less than the budget of n3' "$scratch/plan" || fail "$(<"$scratch/plan")"
grep -qx '# shared memory: none' "$scratch/plan" || fail "$(<"$scratch/plan")"
total=$(sed -n 's/^# total .* //p' "$scratch/plan")
# of the largest group's 495616 bytes, the third has room, and then not
alike $((total + 300000)) distributed
alike $((total + 100000)) host
grep -qE '^# n1 .* device ' "$scratch/plan" || fail "n1 has room: $(<"$scratch/plan")"

# shared WORDS STAGE: plan and ranks, of which those of a node share memory, on CPUs
shared() {
	# at stage 3 nothing is flattened
	alike 40G "$([[ $2 == 3 ]] && echo auto || echo device)" --zero-stage="$2" \
		--zero-backend=host
	grep -qx "# shared memory: $1" "$scratch/plan" || fail "not $1: $(<"$scratch/plan")"
}

for stage in 1 3; do
	places=(-N 2 -n 4 --ntasks-per-node=2 -w 'n[2-3]')
	shared 'by 2 ranks at a time' "$stage"
	ZERO_SHARE=1 shared none "$stage"
	places=(-N 1 -n 3)
	shared 'by all 3 ranks' "$stage"
done
limit=$(sed -n 's/^# all .* gather_limit \([0-9]*\), .*/\1/p' "$scratch/plan")
allocated --zero-backend=host "$report_task" gather_limit
(($(grep -c " gather_limit=$limit\$" "$scratch/out") == 3)) ||
	fail "the plan's gather_limit is $limit: $(<"$scratch/out")"
places=(-N 2 -n 3)
allocated --zero-backend=host --plan --model="$model" true
grep -qx '# shared memory: by 1 to 2 ranks at a time; bytes are those where fewest share' \
	"$scratch/out" || fail "of nodes with two ranks and one: $(<"$scratch/out")"
