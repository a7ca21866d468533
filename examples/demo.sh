#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make demo: as root on a machine with Slurm's packages, demo_slurm.sh. Else it trains a small GPT-2
# for about a minute on text that every machine has, sharded over two ranks, then prints the memory
# of each rank, and some lines that the model writes.
#
#	TEXT="FILE..."  train on these files instead
#	SLURM=no        without Slurm
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${top_srcdir:=$here}" "${top_builddir:=$here}"
: "${ZERORUN:=$top_builddir/launcher/zerorun}" "${GPT:=$top_builddir/examples/gpt}"

for program in "$ZERORUN" "$GPT"; do
	[[ -x $program ]] || {
		echo "demo: $program is not there; build it with make (it needs a CBLAS)" >&2
		exit 1
	}
done

# The licences of free software, else the copyright files of packages, else our own sources.
find_text() {
	find -L /usr/share/common-licenses -type f 2>/dev/null ||
		find -L /usr/share/doc -type f -name copyright 2>/dev/null ||
		find "$top_srcdir" -name '*.[ch]'
}

if [[ ${TEXT-} ]]; then
	read -ra files <<<"$TEXT"
else
	mapfile -t files < <(find_text | xargs -r -d '\n' readlink -f | sort -u | head -n 500)
fi
if [[ ${SLURM-} != no ]]; then
	status=0
	export top_srcdir top_builddir ZERORUN
	TEXT="${files[*]}" bash "$top_srcdir/examples/demo_slurm.sh" || status=$?
	((status == 77)) || exit "$status"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

model=(--text "${files[@]}" --layers 6 --heads 4 --width 96 --context 64 --batch 4)

# ranks STAGE ARGUMENT...: two ranks of gpt
ranks() {
	"$ZERORUN" -n 2 "--zero-stage=$1" "$GPT" "${model[@]}" "${@:2}" </dev/null
}

# Prints every hundredth step, with a bar for the loss, as it comes.
show_steps() {
	local line number loss bar
	while IFS= read -r line; do
		case $line in
		GPT* | [0-9]*ranks*) echo "$line" ;;
		step*)
			number=${line#step } loss=${line#*loss }
			number=${number%%/*} loss=${loss%% *}
			((number % 100 && number != 1)) && continue
			printf -v bar '%*s' $((10#${loss/./} / 1000)) ''
			printf 'step %4d  loss %s  %s\n' "$number" "$loss" "${bar// /=}"
			;;
		esac
	done
}

# Prints the table of memory that gpt prints after the training.
table() {
	tr '\r' '\n' <"$1" | sed -n '/^peak MiB/,/^rank 1/p'
}

# total FILE: the highest total of any rank, in MiB
total() {
	table "$1" | awk '$1 == "rank" && $8 > most {most = $8} END {print most}'
}

echo "== ${#files[@]} files of text, two ranks, ZeRO stage 3, one or two minutes"
ranks 3 --steps 1500 --lr 3e-3 --warmup 100 --sample 500 | tee "$folder/sharded" | show_steps

echo
echo "== memory of each rank at stage 3: its half of the model, and the layers in use"
table "$folder/sharded"
echo
echo "== memory of each rank at stage 0: all of the model (two steps)"
ranks 0 --steps 2 >"$folder/whole"
table "$folder/whole"
awk -v sharded="$(total "$folder/sharded")" -v whole="$(total "$folder/whole")" 'BEGIN {
	printf "stage 3 takes %.1f MiB per rank, stage 0 takes %.1f MiB: %.0f %%\n",
		sharded, whole, 100 * sharded / whole
	print "(2 MiB of both are communication buffers, which do not grow with the model)"
}'

echo
echo "== text that the model writes"
tr '\r' '\n' <"$folder/sharded" | sed '1,/^rank 1/d'
