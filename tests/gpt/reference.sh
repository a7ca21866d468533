#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints of the safetensors package go in and out, and the loss is that of an independent
# model: what reference.py computes with numpy in f64.
# shellcheck source=tests/gpt/gpt.sh
. "${top_srcdir:?run me by make check}/tests/gpt/gpt.sh"

need files
need_python numpy safetensors
reference=$top_srcdir/tests/gpt/reference.py

# Written plainly, in three files with an index, and without the prefix "transformer."
declare -A ranks=([plain]=1 [sharded]=3 [bare]=2)
for variant in plain sharded bare; do
	model=$scratch/$variant
	want=$("$python" "$reference" write "$variant" "$model") ||
		fail "reference.py write $variant"
	# The ways to read a file differ, not what the ranks do then.
	for world in $(worlds "${ranks[$variant]}"); do
		trains "$world" 3 --model "$model" --tokens "$model/tokens" --batch 2 --seq 19 \
			--steps 3 --eval --export "$scratch/out-$variant-$world.safetensors"
		got=$(sed -n 's/^mean loss //p' <<<"$out")
		# The mean is over 6 sequences a rank: one expectation for each number of ranks.
		"$python" "$reference" compare "$world" "$want" "$got" ||
			fail "$variant, $world ranks"
		"$python" "$reference" same "$model" "$scratch/out-$variant-$world.safetensors" ||
			fail "$variant, $world ranks: the export is not what was read"
	done
done

# A file by its name, its config.json beside it; --seq as long as the context.
trains 1 3 --model "$scratch/plain/model.safetensors" --tokens "$scratch/plain/tokens" --eval
