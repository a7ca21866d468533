#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check-torch: PyTorch programs that have never heard of slurm-zero, by one srun on three nodes. They
# start though the port that the plugin guesses is taken, have equal losses, and a rank that is lost is
# named. Prints how long a start takes beside torchrun's.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check-torch}/tests/slurm/cluster.sh"
# shellcheck source=python/tests/torch.sh
. "$top_srcdir/python/tests/torch.sh"

need pmix
unset ZERO_FSDP
program=("$TORCH_PYTHON" "$top_srcdir/python/tests/unedited.py")
cluster_start
plugin_on

# train WHAT: six ranks on three nodes; their losses are those of ddp, which comes first
train() {
	ran "$1" srun --zero -N3 --ntasks-per-node=2 "${program[@]}" "$1"
	grep ^loss "$scratch/out" >"$scratch/$1"
	[[ $(grep -c . "$scratch/$1") == 20 ]] || fail "$1: $(<"$scratch/out")"
	paste "$scratch/ddp" "$scratch/$1" | awk '($2 - $4) ^ 2 > (1e-5 * $2 + 1e-6) ^ 2 {exit 1}' ||
		fail "$1 has other losses than ddp: $(<"$scratch/$1")"
}
for what in ddp fsdp2 accelerate deepspeed lightning; do
	"$TORCH_PYTHON" -c "import ${what/[df][ds]*p*/torch}" 2>/dev/null || "$TORCH_PYTHON" -c "import $what" 2>/dev/null ||
		continue
	train "$what"
done
ran trainer srun --zero -N3 --ntasks-per-node=2 "${program[@]}" trainer
grep -q "^ZeroModel" "$scratch/out" || fail "the Trainer's model is torch's: $(<"$scratch/out")"

# The port is taken on all nodes, and nothing answers where the node's name leads.
ran "a taken port" srun --zero -N3 --ntasks-per-node=2 "$TORCH_PYTHON" -c 'if True:
	import os, socket, torch, torch.distributed as dist
	held = socket.socket()
	try:
		held.bind(("", int(os.environ["MASTER_PORT"])))
	except OSError:
		pass  # by another rank of this machine
	torch.distributed.init_process_group("gloo")
	ones = torch.ones(1)
	dist.all_reduce(ones)
	assert ones == 6 and int(os.environ["MASTER_PORT"]) > 0
	dist.barrier()'

# lost WHAT DEED RANK LINE
lost() {
	run_all srun --zero -N3 --ntasks-per-node=2 "${program[@]}" "$1" "$2" "$3" "$scratch"
	local end=$EPOCHREALTIME
	((status && status != 124)) || check "$1 $2" 1
	awk -v at="$(<"$scratch/at")" -v end="$end" -v what="$1 $2" 'BEGIN {
		printf "%s: ended after %.1f s\n", what, end - at}'
	grep -qE "$4" "$scratch/out" || check "no line names the rank of $1 $2, which" 1
}
rank4='^zero: rank 4 on node [^ ]+ \(pid [0-9]+\)'
lost ddp kill 4 "$rank4 was killed by SIGKILL"
lost ddp stop 4 "$rank4 is stopped"
lost ddp exit0 4 "rank 4 .* had ended with exit status 0"
lost ddp raise 4 "$rank4 has ended with exit status 1"
lost fsdp2 kill 4 "$rank4 was killed by SIGKILL"
lost fsdp2 teardown 4 "$rank4 has not ended within 6 s of its exit"

# Seconds from srun to the end of init_process_group on rank 0.
started=(-c 'import time, torch.distributed as dist; dist.init_process_group("gloo"); dist.get_rank() or print(time.time())')
for turn in 1 2 3; do
	for way in zero torchrun; do
		begin=$EPOCHREALTIME
		if [[ $way == zero ]]; then
			ran "$way" srun --zero -N3 --ntasks-per-node=2 "$TORCH_PYTHON" "${started[@]}"
		else
			printf '%s\n' "${started[1]}" >"$scratch/started.py"
			ran "$way" srun -N3 -n3 "$TORCH_PYTHON" -m torch.distributed.run --nnodes 3 --nproc-per-node 2 \
				--rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$((20000 + $$ % 20000 + turn))" "$scratch/started.py"
		fi
		awk -v begin="$begin" -v way="$way" '/^[0-9]+[.][0-9]+$/ {printf "%s: %.1f s\n", way, $1 - begin}' "$scratch/out"
	done
done
