#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DeepSpeed programs that nobody edits: the same with DeepSpeed's own engine and with slurm_zero's.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"
imports deepspeed || skip deepspeed "$TORCH_PYTHON has no package deepspeed"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME

# engine WHOSE WORLD PROGRAM ARGUMENT...: its lines are in $scratch/WHOSE; whose engine it is must be
# told if it is ours
engine() {
	local whose=$1 world=$2
	mkdir -p "$scratch/folder"
	timeout 300 "$ZERORUN" -n "$world" "--zero-deepspeed=$whose" "$TORCH_PYTHON" \
		"$top_srcdir/python/tests/$3.py" "${@:4}" >"$scratch/$whose" 2>"$scratch/err" ||
		fail "$*: status $?: $(cat "$scratch/$whose" "$scratch/err")"
	[[ $whose == keep ]] ||
		grep -q "^slurm-zero: DeepSpeed's engine is slurm_zero's (--zero-deepspeed=$whose)$" \
			"$scratch/err" || fail "$*: $(<"$scratch/err")"
}

# same WHAT [TOLERANCE]: what both have printed, with the largest difference
same() {
	"$TORCH_PYTHON" - "$1" "${2-2e-6}" "$scratch/keep" "$scratch/replace" <<-'EOF' || fail "$1"
		import sys

		what, tolerance = sys.argv[1], float(sys.argv[2])
		stock, ours = ({tuple(w[:2]): [float(x) for x in w[2:]] for line in open(file)
		                if (w := line.split()) and w[0].endswith(":")} for file in sys.argv[3:])
		assert stock and stock.keys() == ours.keys(), (what, stock.keys() ^ ours.keys())
		worst = 0
		for key, numbers in stock.items():
		    for number, mine in zip(numbers, ours[key], strict=True):
		        off = abs(number - mine) / max(abs(number), 1e-6)
		        assert off <= tolerance, (what, key, number, mine)
		        worst = max(worst, off)
		print(f"{what}: {len(stock)} lines, the largest difference is {worst:.1e}")
	EOF
}

# both PROGRAM STAGE CASE...: the same with each of them
both() {
	for whose in keep replace; do
		rm -rf "$scratch/folder"
		engine "$whose" 2 "$1" "$2" "$scratch/folder" "${@:3}"
	done
	same "$1 at stage $2"
}

cases=(of_config of_client callables boundaries data saved written)
for stage in 0 1 2; do
	both engines "$stage" "${cases[@]}"
done
both engines 3 "${cases[@]}" context converted

imports accelerate transformers || exit 0
cases=(trainer)
! imports peft || cases+=(adapters)
both pretrained 3 loaded made own "${cases[@]}"
[[ ${ZERO_TEST_LONG-} ]] || exit 0
for stage in 1 2; do
	both pretrained "$stage" own "${cases[@]}"
done
