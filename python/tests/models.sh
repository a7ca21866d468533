#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Models of Transformers have the losses of the unsharded ones; Accelerate, peft and the Trainer.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"

imports transformers accelerate peft ||
	skip torch "$TORCH_PYTHON has not transformers, accelerate and peft"
ZERO_SHARE=1 run_ranks 2 models llama_tied qwen3_moe
long 2 models gpt2 llama qwen3 mixtral bert vit
long alone models gpt2 mixtral
long 3 models llama bert
# The Trainer saves in one run and resumes in another.
mkdir "$scratch/frameworks"
run_ranks 2 frameworks trainer "$scratch/frameworks"
for what in resume accelerate peft; do
	long 2 frameworks "$what" "$scratch/frameworks"
done
# The same, and all that is large enough streams.
export ZERO_SHARE=1 ZERO_STREAM=auto ZERO_STREAM_THRESHOLD=2000 ZERO_STREAM_CHUNK=4K
rm -r "$scratch/frameworks" && mkdir "$scratch/frameworks"
for what in trainer resume accelerate peft; do
	long 2 frameworks "$what" "$scratch/frameworks"
done
