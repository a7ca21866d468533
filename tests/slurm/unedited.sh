#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch programs that have never heard of slurm-zero, by one srun on three
# nodes. They start though the port that the plugin guesses is taken, have equal losses, and a rank
# that is lost is named. Prints how long a start takes beside torchrun's.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
# shellcheck source=python/tests/torch.sh
. "$top_srcdir/python/tests/torch.sh"

need pmix
unset ZERO_FSDP ZERO_DEEPSPEED
program=("$TORCH_PYTHON" "$top_srcdir/python/tests/unedited.py")
cluster_start
plugin_on

# ours WHAT: the engine of a DeepSpeed program
ours() {
	[[ $1 != deepspeed ]] || grep -q "DeepSpeed's engine is slurm_zero's" "$scratch/out" ||
		fail "the engine is DeepSpeed's own: $(<"$scratch/out")"
}

# train WHAT: six ranks on three nodes; their losses are those of ddp, which comes first
train() {
	ran "$1" srun --zero -N3 --ntasks-per-node=2 "${program[@]}" "$1"
	ours "$1"
	grep ^loss "$scratch/out" >"$scratch/$1"
	[[ $(grep -c . "$scratch/$1") == 20 ]] || fail "$1: $(<"$scratch/out")"
	paste "$scratch/ddp" "$scratch/$1" |
		awk '($2 - $4) ^ 2 > (1e-5 * $2 + 1e-6) ^ 2 {exit 1}' ||
		fail "$1 has other losses than ddp: $(<"$scratch/$1")"
}
for what in ddp fsdp2 accelerate deepspeed lightning; do
	imports "${what/[df][ds]*p*/torch}" || imports "$what" || continue
	train "$what"
	[[ $what != deepspeed ]] || grep -q "DeepSpeed's engine is slurm_zero's" "$scratch/out" ||
		fail "the engine is DeepSpeed's own: $(<"$scratch/out")"
done
ran trainer srun --zero -N3 --ntasks-per-node=2 "${program[@]}" trainer
grep -q "^FullyShardedModule" "$scratch/out" ||
	fail "the Trainer's model is torch's: $(<"$scratch/out")"

# The port is taken on all nodes, and nothing answers where the node's name leads.
# shellcheck disable=SC2016
taken=(-c 'if True:
	import os, socket, torch, torch.distributed as dist
	held = socket.socket()
	try:
		held.bind(("", int(os.environ["MASTER_PORT"])))
	except OSError:
		pass  # by another rank of this machine
	torch.distributed.init_process_group("gloo")
	ones = torch.ones(1)
	dist.all_reduce(ones)
	assert ones == dist.get_world_size() and int(os.environ["MASTER_PORT"]) > 0
	dist.barrier()')

# lost WHAT DEED RANK LINE: of three ranks
worst=0
lost() {
	local took
	run_all srun --zero -N3 -n3 "${program[@]}" "$1" "$2" "$3" "$scratch"
	took=$(awk -v at="$(<"$scratch/at")" -v end="$EPOCHREALTIME" \
		'BEGIN {printf "%.1f", end - at}')
	((status && status != 124)) || check "$*" 1
	grep -qE "$4" "$scratch/out" || check "no line names the rank of $*, which" 1
	ours "$1"
	worst=$(awk -v was="$worst" -v took="$took" 'BEGIN {print (took > was ? took : was)}')
	echo "$1 $2 $3: ended after $took s"
}

# Each deed TORCH_TURNS times, by another rank of another program in each.
programs=(ddp fsdp2 deepspeed)
"$TORCH_PYTHON" -c "import deepspeed" 2>/dev/null || programs=(ddp fsdp2)
for ((turn = 0; turn < ${TORCH_TURNS:-3}; turn++)); do
	what=${programs[turn % ${#programs[@]}]} rank=$((turn / 3 % 3))
	ran "a taken port" srun --zero -N3 -n3 "$TORCH_PYTHON" "${taken[@]}"
	name="^zero: rank $rank on node [^ ]+ \(pid [0-9]+\)"
	lost "$what" kill $rank "$name was killed by SIGKILL"
	lost "$what" stop $rank "$name is stopped"
	lost "$what" exit0 $rank "rank $rank .*(had ended with exit status 0|began 'zero_close')"
	lost "$what" raise $rank "$name (has ended with exit status 1|called exit\(1\))"
	ZERO_END_SECONDS=6 lost "$what" teardown $rank "$name has not ended within 6 s of its exit"
done
echo "a lost rank: $worst s at most"

# Seconds from srun to the end of init_process_group on rank 0.
started=(-c 'import time, torch.distributed as dist
dist.init_process_group("gloo")
dist.get_rank() or print(time.time())')
for turn in 1 2 3; do
	for way in zero torchrun; do
		begin=$EPOCHREALTIME
		if [[ $way == zero ]]; then
			ran "$way" srun --zero -N3 --ntasks-per-node=2 "$TORCH_PYTHON" \
				"${started[@]}"
		else
			printf '%s\n' "${started[1]}" >"$scratch/started.py"
			ran "$way" srun -N3 -n3 "$TORCH_PYTHON" -m torch.distributed.run \
				--nnodes 3 --nproc-per-node 2 \
				--rdzv-backend c10d \
				--rdzv-endpoint "127.0.0.1:$((20000 + $$ % 20000 + turn))" \
				"$scratch/started.py"
		fi
		awk -v begin="$begin" -v way="$way" \
			'/^[0-9]+[.][0-9]+$/ {printf "%s: %.1f s\n", way, $1 - begin}' \
			"$scratch/out"
	done
done
