#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check-torch: the cases of cases.py alone and at several numbers of ranks. TORCH_QUICK=yes is
# what make check runs of it: each program with two ranks.
. "${top_srcdir:?run me by make check-torch}/tests/common.sh"

# shellcheck source=python/tests/torch.sh
. "$top_srcdir/python/tests/torch.sh"
builddir=$PWD
failed=0
# run WORLD PROGRAM ARGUMENTS...
run() {
	local launch=("$builddir/launcher/zerorun" -n "$1") status program=$2
	[[ $1 != alone ]] || launch=()
	timeout 600 "${launch[@]}" "$TORCH_PYTHON" "$top_srcdir/python/tests/$program.py" "${@:3}" \
		>"$scratch/out" 2>&1
	status=$?
	((status == 0)) || { failed=1; cat "$scratch/out"; }
	echo "$* at stage ${ZERO_STAGE-3}: $(tail -1 "$scratch/out"), status $status"
}
# The same, if there is time.
long() {
	[[ ${TORCH_QUICK-} ]] || run "$@"
}

# ends WHAT PATTERN: the last of three ranks does something wrong, and the job ends with this
# sentence
ends() {
	timeout 300 "$builddir/launcher/zerorun" -n 3 "$TORCH_PYTHON" \
		"$top_srcdir/python/tests/ends.py" "$1" >"$scratch/out" 2>&1
	local status=$?
	((status != 0 && status != 124)) && grep -q "$2" "$scratch/out" || {
		failed=1
		cat "$scratch/out"
		echo "FAIL: ends $1 with status $status, without '$2'"
	}
}

read -ra cases <<<"${TORCH_CASES-}"
[[ ! ${TORCH_QUICK-} ]] || TORCH_WORLDS=2
for world in ${TORCH_WORLDS-alone 2 3}; do
	run "$world" cases "${cases[@]}"
done
if [[ ! ${TORCH_CASES-} ]]; then
	for stage in 0 1 2; do
		ZERO_STAGE=$stage long 2 cases plain written accumulation bfloat16 adamw_fused \
			exceptions
	done
	if "$TORCH_PYTHON" -c 'import transformers' 2>/dev/null; then
		run 2 models llama_tied qwen3_moe
		long 2 models gpt2 llama qwen3 mixtral bert vit
		long alone models gpt2 mixtral
		long 3 models llama bert
	fi
	# A checkpoint of two ranks, restored by others and at another stage.
	mkdir "$scratch/saved"
	run 2 checkpoint save "$scratch/saved"
	run 3 checkpoint restore "$scratch/saved"
	long alone checkpoint restore "$scratch/saved"
	ZERO_STAGE=1 long 2 checkpoint restore "$scratch/saved"
	# What the end of a step tells: signals, saves, the report.
	mkdir "$scratch/steps"
	run 2 steps "$scratch/steps"
	run alone steps "$scratch/steps" read
	ZERO_SHARD=1 long 2 checkpoint restore "$scratch/saved"
	run 2 tensors
	# A copy of the model for each team of ranks.
	run 2 mesh
	long 4 mesh
	run 2 pipeline
	long 4 pipeline
	ZERO_SHARD=1 long 2 cases
	# torch.distributed.checkpoint: written by torch's FSDP2 and read here, and the other way
	# around.
	mkdir "$scratch/dcp"
	run 2 dcp stock save "$scratch/dcp"
	run 3 dcp zero load "$scratch/dcp"
	ZERO_SHARD=1 run 2 dcp zero load "$scratch/dcp"
	ZERO_STAGE=1 long 2 dcp zero load "$scratch/dcp"
	long 2 dcp stock load "$scratch/dcp"
	# Accelerate, peft and the Trainer, which saves in one run and resumes in another.
	if "$TORCH_PYTHON" -c 'import accelerate, peft, transformers' 2>/dev/null; then
		mkdir "$scratch/frameworks"
		run 2 frameworks trainer "$scratch/frameworks"
		for what in resume accelerate peft; do
			long 2 frameworks "$what" "$scratch/frameworks"
		done
	fi
	# A rank that nothing catches, and ranks with different models.
	run 2 refused
	ends exit 'Connection closed by peer'
	ends forward 'rank 2 .* called exit(1) without zero_close'
	ends shape 'rank 0 has norm.weight .* (13,) in group 3, rank 2 has norm.weight .* (14,)'
	ends more 'rank 0 has no parameter more, rank 2 has extra.weight of .* (2, 2) in group 3'
	ends frozen 'rank 0 has blocks.1.a.bias of .*, rank 2 has frozen blocks.1.a.bias of '
	# torch.distributed of one rank each.
	"$builddir/launcher/zerorun" -n 2 "$TORCH_PYTHON" -c 'if True:
		import slurm_zero, torch.distributed as dist
		dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
		slurm_zero.init()' 2>&1 |
		grep -q "initialised as rank 0 of 1, but the launcher says rank . of 2" ||
		{ failed=1; echo "FAIL: torch.distributed of other ranks"; }
	# A launcher that the library does not know would be N jobs of one rank.
	RANK=0 WORLD_SIZE=2 "$TORCH_PYTHON" -c 'import slurm_zero; slurm_zero.init()' 2>&1 |
		grep -q "use .zerorun -n N. or .srun." ||
		{ failed=1; echo "FAIL: WORLD_SIZE without a launcher"; }
fi
exit $failed
