#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make demo-torch: fine-tunes a small Llama with PyTorch for a minute or two on text that every
# machine has, sharded over two ranks; continues from a checkpoint with one rank; and lets
# Transformers read the result and write some lines.
#
#	TORCH_PYTHON=FILE   a Python that has torch and transformers
#	TEXT="FILE..."      train on these files instead
#	STEPS=N             steps of each of the two runs
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${top_srcdir:=$here}" "${top_builddir:=$here}" "${TORCH_PYTHON:=python3}" "${STEPS:=200}"
: "${ZERORUN:=$top_builddir/launcher/zerorun}"
"$TORCH_PYTHON" -c 'import torch, transformers' || {
	echo "demo-torch: name a Python that has torch and transformers:" \
		"TORCH_PYTHON=venv/bin/python" >&2
	exit 1
}
if [[ ${TEXT-} ]]; then
	read -ra files <<<"$TEXT"
else
	files=("$top_srcdir"/*.md "$top_srcdir"/doc/*.md)
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 PYTHONWARNINGS=ignore
finetune=("$TORCH_PYTHON" "$top_srcdir/examples/finetune.py")

# ranks COUNT STEPS: trains up to so many steps in all
ranks() {
	"$ZERORUN" -n "$1" "${finetune[@]}" "$folder/small" "$folder/tuned" "${files[@]}" \
		--steps "$2" --protect \
		--checkpoint "$folder/saved" --save-every "$STEPS" </dev/null
}

echo "== a model of random values"
"$ZERORUN" "${finetune[@]}" --make "$folder/small"
echo "== two ranks, $STEPS steps"
ranks 2 "$STEPS"
echo "== $STEPS steps more, from the checkpoint, with one rank"
ranks 1 $((2 * STEPS))
echo "== what Transformers makes of the result"
"$TORCH_PYTHON" - "$folder/tuned" <<'PYTHON'
import sys
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
torch.manual_seed(0)
start = torch.tensor([list(b"The library ")])
text = model.generate(start, max_new_tokens=200, do_sample=True, temperature=0.7, pad_token_id=0)
print(bytes(text[0].tolist()).decode(errors="replace"))
PYTHON
