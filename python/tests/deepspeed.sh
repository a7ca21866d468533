#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DeepSpeed programs that nobody edits: the same with DeepSpeed's own engine and with slurm_zero's.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"
imports deepspeed || skip deepspeed "$TORCH_PYTHON has no package deepspeed"
export DS_ACCELERATOR=cpu
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME

# engine WHOSE WORLD PROGRAM ARGUMENT...: its lines are in $scratch/WHOSE; whose engine it is
# must be told if it is ours
engine() {
	local whose=$1 world=$2
	timeout 300 "$ZERORUN" -n "$world" "--zero-deepspeed=$whose" "$TORCH_PYTHON" \
		"$top_srcdir/python/tests/$3.py" "${@:4}" >"$scratch/$whose" 2>"$scratch/err" ||
		fail "$*: status $?: $(cat "$scratch/$whose" "$scratch/err")"
	[[ $whose == keep ]] ||
		grep -q "^slurm-zero: DeepSpeed's engine is slurm_zero's (--zero-deep.*=$whose)" \
			"$scratch/err" || fail "$*: $(<"$scratch/err")"
}

# same WHAT: what both have printed, with the largest difference
same() {
	"$TORCH_PYTHON" - "$1" "$scratch"/{keep,replace} <<-'EOF' || fail "$1"
		import re
		import sys

		what, worst = sys.argv[1], 0
		stock, ours = (
		    {tuple(w[:2]): [float(x) for x in w[2:]] for line in open(file)
		     if re.match("[a-z][a-z0-9_.]*: ", line) for w in [line.split()]}
		    for file in sys.argv[2:])
		assert stock and stock.keys() == ours.keys(), (what, stock.keys() ^ ours.keys())
		for key, numbers in stock.items():
		    # DeepSpeed adds up gradients of 16 bits, we f32.
		    tolerance = 2e-3 if re.match("[bf][fp]?16", key[0]) else 2e-6
		    for number, mine in zip(numbers, ours[key], strict=True):
		        off = abs(number - mine) / max(abs(number), 1e-6)
		        assert off <= tolerance, (what, key, number, mine)
		        worst = max(worst, off)
		print(f"{what}: {len(stock)} lines, the largest difference is {worst:.1e}")
	EOF
}

# both PROGRAM STAGE CASE...: the same with each of them; ours has a checkpoint of DeepSpeed's in
# its folder
both() {
	for whose in keep replace; do
		rm -rf "$scratch/folder"
		mkdir "$scratch/folder"
		[[ ! -d $scratch/stock ]] || mv "$scratch/stock" "$scratch/folder"
		engine "$whose" 2 "$1" "$2" "$scratch/folder" "${@:3}"
		[[ $whose != keep || ! -d $scratch/folder/saved ]] ||
			mv "$scratch/folder/saved" "$scratch/stock"
	done
	same "$1 at stage $2"
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

for stage in 0 3; do
	engine replace 2 surface "$stage"
	echo "surface at stage $stage: $(tail -1 "$scratch/replace")"
done

cases=(of_config of_client callables boundaries data saved moved written)
sharded=(bf16 fp16 direct skipped coalesced failing fragments timed)
both engines 0 "${cases[@]}" bf16
both engines 1 "${cases[@]}"
both engines 2 "${cases[@]}" "${sharded[@]}"
both engines 3 "${cases[@]}" "${sharded[@]}" external context converted

imports accelerate transformers || exit 0
cases=(trainer)
! imports peft || cases+=(adapters)
both pretrained 3 loaded made own "${cases[@]}"
both pretrained 3 accelerated
[[ ${ZERO_TEST_LONG-} ]] || exit 0
# With fp16 DeepSpeed skips more steps at stage 1, where it adds up micro-batches in 16 bits.
both engines 1 bf16 direct skipped
for stage in 1 2; do
	engine replace 2 surface "$stage"
	both pretrained "$stage" own "${cases[@]}"
	both pretrained "$stage" accelerated
done
