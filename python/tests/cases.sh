#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training with fully_shard has the gradients of the unsharded model, at several numbers of ranks.
# TORCH_CASES names some of the cases, TORCH_WORLDS the numbers of ranks.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"

read -ra cases <<<"${TORCH_CASES-}"
worlds=2
[[ ! ${ZERO_TEST_LONG-} ]] || worlds="alone 2 3"
for world in ${TORCH_WORLDS-$worlds}; do
	run_ranks "$world" cases "${cases[@]}"
done
[[ ! ${TORCH_CASES-} ]] || exit 0
# Ranks that share no memory gather what they need, as those of two nodes do.
ZERO_SHARE=1 run_ranks 2 cases
ZERO_SHARD=1 long 2 cases
for stage in 0 1 2; do
	ZERO_STAGE=$stage long 2 cases plain written accumulation bfloat16 adamw_fused exceptions
done
ZERO_STAGE=2 run_ranks alone adopted
ZERO_STAGE=1 run_ranks 2 adopted
run_ranks 2 tensors
run_ranks 2 gradients
# Streamed: on ranks that gather, in one place, and of a copy that some ranks store.
run_ranks 2 streamed
export ZERO_SHARE=1
run_ranks 3 streamed
ZERO_SHARD=2 long 4 streamed
ZERO_CHECK=1 long 2 streamed
ZERO_STREAM=auto ZERO_STREAM_THRESHOLD=3000 ZERO_STREAM_CHUNK=4K run_ranks 2 streamed chosen plain
SHAPES="head 300 32,experts 4 16" MORE="--tokens 8 --steps 2 --slice 4000" LIMIT=1.6 \
	PICTURE=$scratch/stream.svg \
	timeout 900 bash "$top_srcdir/examples/demo_stream.sh" >"$scratch/out" 2>&1 &&
	(($(grep -c "ratio: .* sent [01]\\." "$scratch/out") == 2)) &&
	(($(grep -c "<polyline" "$scratch/stream.svg") == 2)) ||
	fail "examples/demo_stream.sh: $(<"$scratch/out")"
if grep -q "^== a head of 134 MB" "$scratch/out"; then
	grep -q "^ streamed: loaded, trained, saved, restored and exported" "$scratch/out" ||
		fail "a rank needs more than 1.6 of a streamed parameter: $(<"$scratch/out")"
fi
mkdir "$scratch/streamed"
run_ranks 2 streamed save "$scratch/streamed"
run_ranks 3 streamed restore "$scratch/streamed"
run_ranks 2 streamed load "$scratch/streamed"
unset ZERO_SHARE
ZERO_SHARE=1 run_ranks 2 planned
ZERO_STREAM=auto ZERO_STREAM_THRESHOLD=100K ZERO_STREAM_CHUNK=16K ZERO_SHARE=1 run_ranks 2 planned
ZERO_STAGE=1 run_ranks 2 planned
