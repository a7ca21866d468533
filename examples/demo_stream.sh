#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make demo-stream: trains a model that is nearly all one head, and one that is nearly all experts,
# whole and slice by slice, on two ranks that share no memory, and prints what either takes. Draws
# the memory of rank 0 over time for the first of them, into $PICTURE.
#
#	TORCH_PYTHON=FILE   a Python that has torch
#	SHAPES="..."        other shapes: head ROWS WIDTH, or experts COUNT WIDTH, between commas
#	MORE="..."          more options of examples/stream.py
#	LIMIT=1.4           of the bytes of the largest parameter, what a confined rank may have
#	PICTURE=FILE        stream.svg in the build folder
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${top_srcdir:=$here}" "${top_builddir:=$here}" "${TORCH_PYTHON:=python3}"
: "${ZERORUN:=$top_builddir/launcher/zerorun}" "${LIMIT:=1.4}"
: "${PICTURE:=$top_builddir/stream.svg}" "${SHAPES:=head 65536 512,experts 32 512}"
"$TORCH_PYTHON" -c 'import torch' || {
	echo "demo-stream: name a Python that has torch: TORCH_PYTHON=venv/bin/python" >&2
	exit 1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ZERO_SHARE=1 OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
IFS=, read -ra shapes <<<"$SHAPES"
read -ra more <<<"${MORE-}"
for i in "${!shapes[@]}"; do
	read -ra words <<<"${shapes[i]}"
	echo "== ${shapes[i]}"
	for way in whole streamed; do
		"$ZERORUN" -n 2 "$TORCH_PYTHON" "$top_srcdir/examples/stream.py" "$way" \
			"${words[@]}" --record "$folder/$i" --sample "$folder/$i.$way" \
			"${more[@]}" </dev/null
	done
done
"$TORCH_PYTHON" "$top_srcdir/examples/stream_plot.py" "$folder/0.whole" "$folder/0.streamed" \
	>"$folder/svg"
mv "$folder/svg" "$PICTURE"
echo "== drawn over time in $PICTURE: ${shapes[0]}"
# In memory control groups, which root can make.
can_confine() {
	rmdir /sys/fs/cgroup/memory/stream-* /sys/fs/cgroup/stream-* || true
	mkdir /sys/fs/cgroup/memory/stream-0 ||
		{ mkdir /sys/fs/cgroup/stream-0 && [[ -e /sys/fs/cgroup/stream-0/memory.max ]]; }
} 2>/dev/null
if ((EUID == 0)) && can_confine; then
	for way in whole streamed; do
		echo "== a head of 134 MB on 4 ranks that may have $LIMIT times as much," \
			"with AdamW: $way"
		"$ZERORUN" -n 4 "$TORCH_PYTHON" "$top_srcdir/examples/stream.py" "$way" \
			head 65536 512 --tokens 64 --slice 2097152 --limit "$LIMIT" \
			</dev/null >"$folder/out" 2>&1 ||
			echo "    $way: $(grep -m 1 -o "signal 9 (Killed)" "$folder/out" ||
				tail -1 "$folder/out")"
		grep "^ *$way:" "$folder/out" || true
	done
	rmdir /sys/fs/cgroup/memory/stream-* /sys/fs/cgroup/stream-* 2>/dev/null || true
fi
