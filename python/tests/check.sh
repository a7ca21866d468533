#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check-torch: the cases of cases.py alone and at several numbers of ranks.
. "${top_srcdir:?run me by make check-torch}/tests/common.sh"

# shellcheck source=python/tests/torch.sh
. "$top_srcdir/python/tests/torch.sh"
builddir=$PWD
failed=0
# run WORLD PROGRAM ARGUMENTS...
run() {
	local launch=("$builddir/launcher/zerorun" -n "$1") status program=$2
	[[ $1 != alone ]] || launch=()
	timeout 600 "${launch[@]}" "$TORCH_PYTHON" "$top_srcdir/python/tests/$program.py" "${@:3}" >"$scratch/out" 2>&1
	status=$?
	((status == 0)) || { failed=1; cat "$scratch/out"; }
	echo "$* at stage ${ZERO_STAGE-3}: $(tail -1 "$scratch/out"), status $status"
}

read -ra cases <<<"${TORCH_CASES-}"
for world in ${TORCH_WORLDS-alone 2 3}; do
	run "$world" cases "${cases[@]}"
done
if [[ ! ${TORCH_CASES-} ]]; then
	for stage in 0 1 2; do
		ZERO_STAGE=$stage run 2 cases plain accumulation bfloat16 adamw_fused exceptions
	done
	if "$TORCH_PYTHON" -c 'import transformers' 2>/dev/null; then
		for model in gpt2 llama llama_tied; do
			run 2 models "$model"
		done
	fi
	# A checkpoint of two ranks, restored by others and at another stage.
	mkdir "$scratch/saved"
	run 2 checkpoint save "$scratch/saved"
	run 3 checkpoint restore "$scratch/saved"
	run alone checkpoint restore "$scratch/saved"
	ZERO_STAGE=1 run 2 checkpoint restore "$scratch/saved"
	# What the end of a step tells: signals, saves, the report.
	mkdir "$scratch/steps"
	run 2 steps "$scratch/steps"
	run alone steps "$scratch/steps" read
	run 2 tensors
	# torch.distributed.checkpoint: written by torch's FSDP2 and read here, and the other way around.
	mkdir "$scratch/dcp"
	run 2 dcp stock save "$scratch/dcp"
	run 3 dcp zero load "$scratch/dcp"
	run 2 dcp stock load "$scratch/dcp"
	# Accelerate, peft and the Trainer, which saves in one run and resumes in another.
	if "$TORCH_PYTHON" -c 'import accelerate, peft, transformers' 2>/dev/null; then
		mkdir "$scratch/frameworks"
		for what in accelerate peft trainer resume; do
			run 2 frameworks "$what" "$scratch/frameworks"
		done
	fi
	# torch.distributed of one rank each.
	"$builddir/launcher/zerorun" -n 2 "$TORCH_PYTHON" -c 'if True:
		import slurm_zero, torch.distributed as dist
		dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
		slurm_zero.init()' 2>&1 |
		grep -q "initialised as rank 0 of 1, but the launcher says rank . of 2" ||
		{ failed=1; echo "FAIL: torch.distributed of other ranks"; }
	# A launcher that the library does not know would be N jobs of one rank.
	RANK=0 WORLD_SIZE=2 "$TORCH_PYTHON" -c 'import slurm_zero; slurm_zero.init()' 2>&1 |
		grep -q "use .zerorun -n N. or .srun." || { failed=1; echo "FAIL: WORLD_SIZE without a launcher"; }
fi
exit $failed
