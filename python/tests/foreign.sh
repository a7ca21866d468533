#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints that DeepSpeed itself writes are read, converted and gone on with, and what is wrong
# with one is told.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"
imports deepspeed || skip deepspeed "TORCH_PYTHON has none"
export ZERO_DEEPSPEED=keep DS_ACCELERATOR=cpu

# written RANKS NAME...: by so many
written() {
	mkdir -p "$scratch/$1"
	run_ranks "$1" deepspeed_write "$scratch/$1" "${@:2}"
}

# universal RANKS/NAME: beside it
universal() {
	"$TORCH_PYTHON" -m deepspeed.checkpoint.ds_to_universal --inject_missing_state \
		--input_folder "$scratch/$1/global_step5" --output_folder "$scratch/$1/universal" \
		--num_extract_workers 1 --num_merge_workers 1 >"$scratch/out" 2>&1 ||
		fail "ds_to_universal of $1: $(<"$scratch/out")"
	echo "$scratch/$1/universal"
}

names=(stage0_f32 stage0_fp16 stage1_bf16 stage2_f32 stage3_f32 stage3_fp16_subgroups)
threes=(stage2_fp16 stage3_bf16_small)
[[ ! ${ZERO_TEST_LONG-} ]] || {
	names+=(stage0_bf16 stage1_f32 stage1_fp16 stage2_fp16 stage2_bf16 stage3_bf16)
	threes+=(stage1_bf16 stage2_f32 stage3_f32)
	written 1 stage1_f32 stage2_fp16 stage3_bf16
}
written 2 "${names[@]}"
written 3 "${threes[@]}"
every=("$scratch"/[123]/stage*)
every+=("$(universal 2/stage1_bf16)" "$(universal 3/stage3_bf16_small)")
run_ranks alone foreign read "${every[@]}"
run_ranks alone foreign convert "$scratch/2/stage1_bf16" "$scratch/3/stage3_bf16_small"
run_ranks alone foreign refused "$scratch/2/stage2_f32" "$scratch/2/stage3_f32"
run_ranks 3 foreign restore "$scratch/2/stage0_fp16" "$scratch/2/stage1_bf16" "${every[-1]}"
long 3 foreign restore "${every[@]}"
ZERO_STAGE=1 long 2 foreign restore "$scratch/2/stage2_f32" "$scratch/3/stage3_bf16_small"
mkdir "$scratch/own"
run_ranks 2 foreign own "$scratch/own"
run_ranks 2 foreign go_on "$scratch"/2/stage[23]_f32
for stage in 0 1 2; do
	ZERO_STAGE=$stage long 2 foreign go_on "$scratch"/2/stage[0123]_f32
done
