#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch on what stands in for a GPU, see device/device.cpp: the cases of the other tests, and
# those of devices alone.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"

need cuda nccl pmix mpi
need_command "${CXX:=g++}" cxx
folder=$("$TORCH_PYTHON" -c 'import torch; print(torch.__path__[0])') ||
	fail "$TORCH_PYTHON has no torch"
includes=()
for flag in $ZERO_COMPILE_FLAGS; do
	[[ $flag != -I* ]] || includes+=("$flag")
done
mkdir "$scratch/saved" "$scratch/dcp"
run_ranks 2 dcp stock save "$scratch/dcp" # on CPUs
"$CXX" -O1 -std=c++20 -fPIC -shared -w "${includes[@]}" -I"$folder/include" \
	-I"$folder/include/torch/csrc/api/include" -o "$scratch/standin.so" \
	"$top_srcdir/python/tests/device/device.cpp" \
	-L"$folder/lib" -lc10 -ltorch_cpu -ltorch -ldl ||
	fail "device.cpp is not compiled with torch of $folder"
gpu_doubles "$scratch/gpu"
export LD_LIBRARY_PATH=$scratch/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# The one that torch has loaded by itself comes first else.
export ZERO_NCCL=$scratch/gpu/libnccl.so.2
export ZERO_TEST_DEVICE=standin ZERO_TEST_STANDIN=$scratch/standin.so
export PYTHONPATH=$PYTHONPATH:$top_srcdir/python/tests/device DOUBLE_CUDA_PROTECT=1
export DOUBLE_CUDA_DELAY_OF=8

# PyTorch without GPUs, where the library finds one.
ZERO_BACKEND=cuda timeout 100 "$TORCH_PYTHON" -c 'import torch
torch._C._cuda_getDeviceCount = lambda: 0
import slurm_zero
slurm_zero.init()' >"$scratch/out" 2>&1 && fail "a job on GPUs, where PyTorch has none"
grep -q "the job is on GPUs, but PyTorch .* finds none: install one" "$scratch/out" ||
	fail "a job on GPUs, where PyTorch has none: $(<"$scratch/out")"

# Parameters on a GPU, where the library was built for CPUs: its module for GPUs is not there.
mkdir "$scratch/host"
cp "$top_builddir"/lib/.libs/libzero.so* "$top_builddir"/lib/.libs/zero_*.so "$scratch/host"
rm "$scratch/host/zero_cuda.so"
of_host() {
	LD_PRELOAD=$(echo "$scratch"/host/libzero.so.?) timeout 100 "$TORCH_PYTHON" -c \
		$'import standin, torch, slurm_zero\n'"$1" >"$scratch/out" 2>&1
}
of_host 'slurm_zero.fully_shard(torch.nn.Linear(2, 2, device="standin"))' &&
	fail "parameters on a GPU, in a build for CPUs"
grep -q "Error: .*backend is cuda (from zero_open): .*zero_cuda" "$scratch/out" ||
	fail "parameters on a GPU, in a build for CPUs: $(<"$scratch/out")"
of_host 'slurm_zero.fully_shard(torch.nn.Linear(2, 2))(torch.ones(2))' &&
	grep -q "PyTorch has GPUs, but .*: the job is on CPUs" "$scratch/out" ||
	fail "a job that is on CPUs with a build for CPUs: $(<"$scratch/out")"

# What tests/gpu/run trains on a GPU, here and on CPUs.
beside=$top_srcdir/tests/gpu/fsdp2.py
for device in standin cpu; do
	ZERO_TEST_SMALL=1 ZERO_TEST_DEVICE=$device timeout 300 "$TORCH_PYTHON" "$beside" \
		zero "$scratch/$device.json" >"$scratch/out" 2>&1 ||
		fail "fsdp2.py on $device: status $?: $(<"$scratch/out")"
done
"$TORCH_PYTHON" "$beside" compare "$scratch"/{standin,cpu}.json ||
	fail "other losses: $(<"$scratch/standin.json")"
# On a schedule of the streams that is another each time.
DOUBLE_SEED=${ZERO_TEST_SCHEDULE:-$((RANDOM + 1))}
echo "repeat it by ZERO_TEST_SCHEDULE=$DOUBLE_SEED"
DOUBLE_SEED=$DOUBLE_SEED run_ranks 2 device
run_ranks 2 cases
run_ranks 2 checkpoint save "$scratch/saved"
run_ranks 3 checkpoint restore "$scratch/saved"
run_ranks 3 dcp zero load "$scratch/dcp"
# Of 208 MB, which there is not room for twice: the two ranks share this.
DOUBLE_CUDA_MEMORY=$((1100 << 20)) ZERO_STAGE=2 run_ranks 2 adopted
run_ranks 2 planned
run_ranks 2 streamed
run_ranks 2 mesh
if imports transformers accelerate peft; then
	mkdir "$scratch/frameworks"
	run_ranks 2 models llama_tied
	long 2 models qwen3_moe
	for what in trainer resume accelerate peft; do
		long 2 frameworks "$what" "$scratch/frameworks"
	done
fi
ZERO_STAGE=1 run_ranks 2 cases plain written
long 3 device
DOUBLE_SEED=$DOUBLE_SEED long 3 cases
