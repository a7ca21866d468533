#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is refused, and jobs that end with a sentence.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"

run_ranks 2 refused

# ends WHAT PATTERN: the last of three ranks does something wrong, and the job ends with this
# sentence
ends() {
	local status
	timeout 300 "$ZERORUN" -n 3 "$TORCH_PYTHON" "$top_srcdir/python/tests/ends.py" "$1" \
		>"$scratch/out" 2>&1
	status=$?
	((status != 0 && status != 124)) && grep -q "$2" "$scratch/out" ||
		fail "ends $1 with status $status, without '$2': $(<"$scratch/out")"
}
ends exit 'Connection closed by peer'
ends forward 'rank 2 .* called exit(1) without zero_close'
ends shape 'rank 0 has norm.weight .* (13,) in group 3, rank 2 has norm.weight .* (14,)'
ends more 'rank 0 has no parameter more, rank 2 has extra.weight of .* (2, 2) in group 3'
ends frozen 'rank 0 has blocks.1.a.bias of .*, rank 2 has frozen blocks.1.a.bias of '

# torch.distributed of one rank each.
"$ZERORUN" -n 2 "$TORCH_PYTHON" -c 'if True:
	import slurm_zero, torch.distributed as dist
	dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
	slurm_zero.init()' >"$scratch/out" 2>&1
grep -q "initialised as rank 0 of 1, but the launcher says rank . of 2" "$scratch/out" ||
	fail "torch.distributed of other ranks: $(<"$scratch/out")"
# A launcher that the library does not know would be N jobs of one rank.
RANK=0 WORLD_SIZE=2 "$TORCH_PYTHON" -c 'import slurm_zero; slurm_zero.init()' >"$scratch/out" 2>&1
grep -q "use .zerorun -n N. or .srun." "$scratch/out" ||
	fail "WORLD_SIZE without a launcher: $(<"$scratch/out")"
# An older torch.
"$TORCH_PYTHON" -c 'import slurm_zero, torch
torch.__version__ = "2.9.1+cpu"
from slurm_zero import fully_shard' >"$scratch/out" 2>&1
grep -q "ImportError: slurm_zero needs torch 2.10 or later: /.*/torch has 2.9.1+cpu" \
	"$scratch/out" || fail "an older torch: $(<"$scratch/out")"
