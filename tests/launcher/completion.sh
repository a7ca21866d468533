#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What bash offers after parts of a command line of zerorun.
# shellcheck source=tests/launcher/run.sh
. "${top_srcdir:?run me by make check}/tests/launcher/run.sh"
# shellcheck source=etc/completions/zerorun
. "$top_srcdir/etc/completions/zerorun"

# offers WORDS WANTED: after the words, of which the last may be a part of one, split as bash does
offers() {
	local wanted=$2
	read -ra COMP_WORDS <<<"$ZERORUN ${1//=/ = }"
	[[ $1 != *" " && $1 ]] || COMP_WORDS+=("")
	COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
	_zerorun
	out=$(printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' ')
	[[ ${out% } == "$wanted" ]] || fail "after '$1' bash offers '${out% }', not '$wanted'"
}

touch "$scratch/model.safetensors"
mkdir "$scratch/bin" && touch "$scratch/bin/train-me" && chmod +x "$scratch/bin/train-me"
PATH=$scratch/bin:$PATH
offers --zero-st "--zero-stage --zero-states --zero-stream --zero-stream-chunk \
--zero-stream-threshold"
offers --zero-stag --zero-stage=
offers --zero-stage "--zero-stage="
offers --zero-stage= "0 1 2 3"
offers "--zero-offload=o" optimizer
offers "--zero-slow=" no
# the text of --zero-bucket speaks of --zero-allgather=auto
offers "-n 4 --zero-allgather=" "auto grouped single"
offers --plan --plan
offers "--plan --model=$scratch/mo" "$scratch/model.safetensors"
offers "--plan --model $scratch/mo" "$scratch/model.safetensors"
offers "--check-config $scratch/mo" "$scratch/model.safetensors"
offers --par "--partition="
offers --gp --gpu=
offers "-n 4 train-m" train-me
offers "-- train-m" train-me
offers "--zero-stage=2 --label -n 2 ./train.py $scratch/mo" "$scratch/model.safetensors"
offers "./train.py --zero-st" ""
