#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What zero.protect keeps: a program that loses a rank goes on with the same bits at the same number
# of ranks, and goes on at another.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"

# A zerorun keeps the name that another one's ranks have protected by.
named() {
	ZERO_RUN=$(md5sum <<<"$1" | cut -d' ' -f1)
	export ZERO_RUN
}

export ZERO_PROTECT_DIR=$scratch/memory
named whole
mkdir "$ZERO_PROTECT_DIR"
run_ranks 2 protect "$scratch/whole" 8
(($(grep -c '^step' "$scratch/whole") == 8)) || fail "$(<"$scratch/whole")"
! ls "$ZERO_PROTECT_DIR"/* 2>&- || fail "what was protected is left after a good end"

program=protect
# lose RUN RANK STEP: a rank is killed
lose() {
	named "$1"
	! timeout 300 "$ZERORUN" -n 2 "$TORCH_PYTHON" "$top_srcdir/python/tests/$program.py" \
		"$scratch/$1" 8 "$2" "$3" >"$scratch/out" 2>&1 || fail "rank $2 was not killed"
	# The steps before it were complete; the last may still have been on its way.
	(($(grep -c '^step' "$scratch/$1") == $3)) || fail "$(<"$scratch/out")"
}

# same RUN RANK STEP: it goes on with the same bits, also of what is taken again
same() {
	local from
	lose "$1" "$2" "$3"
	run_ranks 2 "$program" "$scratch/$1" 8
	from=$(sed -n 's/^from \([0-9]*\) 2$/\1/p' "$scratch/$1")
	((from == $3 || from == $3 - 1)) || fail "from step '$from': $(<"$scratch/$1")"
	diff <(grep '^step' "$scratch/$1" | sort -u) "$scratch/whole" || fail "other values"
}
same same 1 5

lose fewer 0 3
run_ranks 1 protect "$scratch/fewer" 8
grep -qE '^from (2|3) 1$' "$scratch/fewer" || fail "it does not go on at one rank"
(($(tail -1 "$scratch/fewer" | cut -d' ' -f2) == 7)) || fail "$(<"$scratch/fewer")"

# One rank has nothing to say, and all end.
named silent
run_ranks 2 protect "$scratch/silent" 8 0 -2

imports deepspeed || exit 0
export ZERO_DEEPSPEED=replace
program=protect_engine
rm "$scratch/whole"
named engine
run_ranks 2 "$program" "$scratch/whole" 8
(($(grep -c '^step' "$scratch/whole") == 8)) || fail "$(<"$scratch/whole")"
same engine.lost 1 6
# From a checkpoint in the folder, for the memory is gone.
export FOLDER=$scratch/saved
lose engine.saved 1 7
rm -r "$ZERO_PROTECT_DIR"/*
run_ranks 1 "$program" "$scratch/engine.saved" 8
grep -qx "from 5 1" "$scratch/engine.saved" || fail "$(<"$scratch/engine.saved")"
