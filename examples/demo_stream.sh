#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make demo-stream: trains a model that is nearly all one head, and one that is nearly all experts,
# whole and slice by slice, on two ranks that share no memory, and prints what either takes.
#
#	TORCH_PYTHON=FILE   a Python that has torch
#	SHAPES="..."        other shapes: head ROWS WIDTH, or experts COUNT WIDTH, between commas
#	MORE="..."          more options of examples/stream.py
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${top_srcdir:=$here}" "${top_builddir:=$here}" "${TORCH_PYTHON:=python3}"
: "${ZERORUN:=$top_builddir/launcher/zerorun}" "${SHAPES:=head 65536 512,experts 32 512}"
"$TORCH_PYTHON" -c 'import torch' || {
	echo "demo-stream: name a Python that has torch: TORCH_PYTHON=venv/bin/python" >&2
	exit 1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ZERO_SHARE=1 OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
IFS=, read -ra shapes <<<"$SHAPES"
read -ra more <<<"${MORE-}"
for shape in "${shapes[@]}"; do
	read -ra words <<<"$shape"
	echo "== $shape"
	for way in whole streamed; do
		"$ZERORUN" -n 2 "$TORCH_PYTHON" "$top_srcdir/examples/stream.py" "$way" \
			"${words[@]}" --record "$folder/${words[0]}" "${more[@]}" </dev/null
	done
done
