#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Under Slurm the ranks find each other through PMIx, on several nodes, and train as they do under
# mpirun: the same losses to the last bit at one number of ranks.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
need cblas
: "${ZERORUN:?}"
gpt=$top_builddir/examples/gpt
train=(--text "$top_srcdir/LICENSE" --layers 2 --heads 2 --width 32 --context 32 --steps 5)
cluster_start

# check WHAT STATUS: of the command that just ran, whose output is in $scratch/out.
check() {
	(($2 == 0)) && return
	cat "$scratch/out" >&2
	cluster_logs
	fail "$1 ended with status $2"
}

losses() {
	sed 's/.*"loss_bits": "\([0-9a-f]*\)".*/\1/' "$1"
}

same_losses() {
	[[ $(losses "$1" | sort -u | wc -l) == 5 ]] || fail "$1 has not five losses"
	diff <(losses "$scratch/mpirun.json") <(losses "$1") >&2 || fail "$1 has other losses"
}

timeout 120 "$ZERORUN" -n 3 "$gpt" "${train[@]}" --log "$scratch/mpirun.json" >"$scratch/out" 2>&1
check "zerorun -n 3" $?

timeout 120 "$ZERORUN" --slurm -N 3 -n 3 "$gpt" "${train[@]}" --log "$scratch/zerorun.json" \
	>"$scratch/out" 2>&1
check "zerorun --slurm" $?
same_losses "$scratch/zerorun.json"

timeout 120 srun --mpi=pmix -N 2 -n 3 "$gpt" "${train[@]}" --log "$scratch/srun.json" \
	>"$scratch/out" 2>&1
check "srun --mpi=pmix" $?
same_losses "$scratch/srun.json"

# In a batch job, zerorun takes the job's nodes and tasks.
cat >"$scratch/job.sh" <<JOB
#!/bin/bash
"$ZERORUN" --zero-stage=0 "$gpt" ${train[*]@Q} --log "$scratch/batch.json"
JOB
timeout 120 sbatch --wait -N 3 -n 3 -o "$scratch/out" "$scratch/job.sh" >/dev/null
check "sbatch with zerorun inside" $?
same_losses "$scratch/batch.json"

# Started without PMIx, each rank would take itself for the only one.
timeout 60 srun --mpi=none -n 2 "$gpt" "${train[@]}" >"$scratch/out" 2>&1 &&
	fail "srun without PMIx ended well"
grep -q 'the launcher started 2 ranks, but MPI sees this one alone.*srun --mpi=pmix' "$scratch/out" ||
	fail "no advice for srun without PMIx: $(<"$scratch/out")"

# One task is a job of one rank, in a step or in the batch script itself.
timeout 60 srun --mpi=none -n 1 "$gpt" "${train[@]}" >"$scratch/out" 2>&1
check "srun of one task without PMIx" $?
timeout 60 sbatch --wait -n 2 -o "$scratch/out" --wrap "'$gpt' ${train[*]@Q}" >/dev/null
check "a batch script that starts no ranks" $?
