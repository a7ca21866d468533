#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is saved by one number of ranks is there for others, and at other stages.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"

mkdir "$scratch/saved" "$scratch/steps" "$scratch/dcp"
run_ranks 2 checkpoint save "$scratch/saved"
run_ranks 3 checkpoint restore "$scratch/saved"
long alone checkpoint restore "$scratch/saved"
ZERO_STAGE=1 long 2 checkpoint restore "$scratch/saved"
ZERO_SHARD=1 long 2 checkpoint restore "$scratch/saved"
# What the end of a step tells: signals, saves, the report.
run_ranks 2 steps "$scratch/steps"
run_ranks alone steps "$scratch/steps" read
# A rank that sleeps is named, and so is the end of that.
run_ranks 2 slow "$scratch/slow"
# torch.distributed.checkpoint: written by torch's FSDP2 and read here, and the other way around.
run_ranks 2 dcp stock save "$scratch/dcp"
run_ranks 3 dcp zero load "$scratch/dcp"
ZERO_SHARD=1 run_ranks 2 dcp zero load "$scratch/dcp"
ZERO_STAGE=1 long 2 dcp zero load "$scratch/dcp"
long 2 dcp stock load "$scratch/dcp"
