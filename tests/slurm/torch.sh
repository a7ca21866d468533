#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A PyTorch program on three nodes has the losses of one process, and a rank that
# is killed is named and ends the step. On one node many that start at once each have a port.
# ZERO_TEST_STARTS (20) is how many.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
# shellcheck source=python/tests/torch.sh
. "$top_srcdir/python/tests/torch.sh"

need pmix
train=("$TORCH_PYTHON" "$top_srcdir/python/tests/train.py")
ran "one process" "${train[@]}"
mv "$scratch/out" "$scratch/alone"
[[ $(grep -c ^loss "$scratch/alone") == 10 ]] || fail "one process: $(<"$scratch/alone")"

# same_losses WHAT FILE: up to a rounding of what is printed
same_losses() {
	paste "$scratch/alone" "$2" | awk '
		$1 != "loss" || $3 != "loss" || ($2 - $4) ^ 2 > 2.1e-5 ^ 2 {exit 1}
		END {exit NR != 10}' || fail "$1 has other losses: $(<"$2")"
}

starts=${ZERO_TEST_STARTS:-20}
for ((i = 0; i < starts; i++)); do
	timeout 300 "$ZERORUN" -n 2 "${train[@]}" >"$scratch/start.$i" 2>&1 &
	started[i]=$!
done
for ((i = 0; i < starts; i++)); do
	wait "${started[i]}" || fail "start $i of $starts: status $?: $(<"$scratch/start.$i")"
	same_losses "start $i of $starts" "$scratch/start.$i"
done

cluster_start
plugin_on
ran "six ranks on three nodes" srun --zero -N3 -n6 "${train[@]}"
grep ^loss "$scratch/out" >"$scratch/six"
same_losses "six ranks on three nodes" "$scratch/six"

run_all srun --zero -N3 -n6 "${train[@]}" 4 5 "$scratch"
end=$EPOCHREALTIME
((status && status != 124)) || check "the loss of a rank" 1
awk -v at="$(<"$scratch/at")" -v end="$end" 'BEGIN {
	printf "ended %.1f s after a rank was killed\n", end - at; exit end - at > 10}' ||
	check "the loss of a rank" 1
grep -qE '^zero: rank 4 on node .* was killed by SIGKILL.*; ending the job$' "$scratch/out" ||
	check "no line names the rank, which" 1
