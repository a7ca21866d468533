#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DeepSpeed programs that nobody edits: the same with DeepSpeed's own engine and with slurm_zero's.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"
imports deepspeed || skip deepspeed "$TORCH_PYTHON has no package deepspeed"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME

# engine WHOSE WORLD PROGRAM ARGUMENT...: its lines are in $scratch/WHOSE; whose engine it is
# must be told if it is ours
engine() {
	local whose=$1 world=$2
	mkdir -p "$scratch/folder"
	timeout 300 "$ZERORUN" -n "$world" "--zero-deepspeed=$whose" "$TORCH_PYTHON" \
		"$top_srcdir/python/tests/$3.py" "${@:4}" >"$scratch/$whose" 2>"$scratch/err" ||
		fail "$*: status $?: $(cat "$scratch/$whose" "$scratch/err")"
	[[ $whose == keep ]] ||
		grep -q "^slurm-zero: DeepSpeed's engine is slurm_zero's (--zero-deep.*=$whose)" \
			"$scratch/err" || fail "$*: $(<"$scratch/err")"
}

# same WHAT [TOLERANCE]: what both have printed, with the largest difference
same() {
	"$TORCH_PYTHON" - "$1" "${2-2e-6}" "$scratch"/{keep,replace} <<-'EOF' || fail "$1"
		import re
		import sys

		what, tolerance = sys.argv[1], float(sys.argv[2])
		stock, ours = (
		    {tuple(w[:2]): [float(x) for x in w[2:]] for line in open(file)
		     if re.match("[a-z][a-z0-9_.]*: ", line) for w in [line.split()]}
		    for file in sys.argv[3:])
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

# both TOLERANCE PROGRAM STAGE CASE...: the same with each of them
both() {
	for whose in keep replace; do
		rm -rf "$scratch/folder"
		engine "$whose" 2 "$2" "$3" "$scratch/folder" "${@:4}"
	done
	same "$2 at stage $3" "$1"
}

# moves STAGE: what DeepSpeed's own has saved is read by ours
moves() {
	rm -rf "$scratch/folder"
	engine keep 2 engines "$1" "$scratch/folder" saved
	mv "$scratch/folder/saved" "$scratch/folder/stock"
	for whose in keep replace; do
		engine "$whose" 2 engines "$1" "$scratch/folder" moved
	done
	same "moved at stage $1"
}

# What is left to DeepSpeed, with one line, and the hook of the import.
for what in refused whole hook after absent; do
	timeout 300 "$ZERORUN" -n 1 --zero-deepspeed=replace --zero-stage=3 "$TORCH_PYTHON" \
		"$top_srcdir/python/tests/kept.py" "$what" >"$scratch/out" 2>"$scratch/err" &&
		grep -qx "done" "$scratch/out" || fail "$what: $(cat "$scratch/out" "$scratch/err")"
	[[ $what != whole ]] ||
		grep -q "^slurm-zero: DeepSpeed's engine is DeepSpeed's own: flops_profiler is" \
			"$scratch/err" || fail "$what: $(<"$scratch/err")"
done

cases=(of_config of_client callables boundaries data saved written)
for stage in 0 1 2; do
	both 2e-6 engines "$stage" "${cases[@]}"
done
both 2e-6 engines 3 "${cases[@]}" context converted
both 2e-6 engines 2 fragments timed
both 2e-6 engines 3 fragments timed
# DeepSpeed adds up gradients of 16 bits, we f32.
both 2e-3 engines 2 bf16 fp16 direct
both 2e-3 engines 3 bf16 fp16 direct
moves 2
moves 3

imports accelerate transformers || exit 0
cases=(trainer)
! imports peft || cases+=(adapters)
both 2e-6 pretrained 3 loaded made own "${cases[@]}"
both 2e-6 pretrained 3 accelerated
[[ ${ZERO_TEST_LONG-} ]] || exit 0
both 2e-3 engines 1 bf16 fp16 direct
moves 1
for stage in 1 2; do
	both 2e-6 pretrained "$stage" own "${cases[@]}"
	both 2e-6 pretrained "$stage" accelerated
done
