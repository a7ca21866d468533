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

losses() {
	sed 's/.*"loss_bits": "\([0-9a-f]*\)".*/\1/' "$1"
}

same_losses() {
	[[ $(losses "$1" | sort -u | wc -l) == 5 ]] || fail "$1 has not five losses"
	diff <(losses "$scratch/mpirun.json") <(losses "$1") >&2 || fail "$1 has other losses"
}

ran "zerorun -n 3" "$ZERORUN" -n 3 "$gpt" "${train[@]}" --log "$scratch/mpirun.json"

ran "zerorun --slurm" "$ZERORUN" --slurm -N 3 -n 3 "$gpt" "${train[@]}" \
	--log "$scratch/zerorun.json"
same_losses "$scratch/zerorun.json"

ran "srun --mpi=pmix" srun --mpi=pmix -N 2 -n 3 "$gpt" "${train[@]}" --log "$scratch/srun.json"
same_losses "$scratch/srun.json"

# MPI_Init may return on a node before the ranks of another one can receive: the library waits for
# them.
late=$top_builddir/tests/double/.libs/mpi_late.so
ran "a rank that is late in MPI_Init" srun --mpi=pmix -K -N 2 -n 2 \
	--export="ALL,LD_PRELOAD=$late,MPI_LATE_FILE=$scratch/late" \
	"$gpt" "${train[@]}"

# In a batch job, zerorun takes the job's nodes and tasks.
cat >"$scratch/job.sh" <<JOB
#!/bin/bash
"$ZERORUN" --zero-stage=0 "$gpt" ${train[*]@Q} --log "$scratch/batch.json"
JOB
ran_batch "sbatch with zerorun inside" -N 3 -n 3 "$scratch/job.sh"
same_losses "$scratch/batch.json"

# Started without PMIx, each rank would take itself for the only one.
run_all srun --mpi=none -n 2 "$gpt" "${train[@]}"
((status)) || fail "srun without PMIx ended well"
grep -q 'the launcher started 2 ranks, but MPI sees this one alone.*srun --mpi=pmix' \
	"$scratch/out" ||
	fail "no advice for srun without PMIx: $(<"$scratch/out")"

# One task is a job of one rank, in a step or in the batch script itself.
ran "srun of one task without PMIx" srun --mpi=none -n 1 "$gpt" "${train[@]}"
ran_batch "a batch script that starts no ranks" -n 2 --wrap "'$gpt' ${train[*]@Q}"

# ---- the same with the plugin ------------------------------------------------------------------

plugin_on
printf 'version: 1\ndefaults: {stream_threshold: 1M}\n' >"$scratch/own.yaml"
cat >"$scratch/job.sh" <<JOB
#!/bin/bash
#SBATCH --zero-stage=3
srun --zero-config="$scratch/own.yaml" "$gpt" ${train[*]@Q} --log "$scratch/plugin.json"
srun --zero-stage=1 "$gpt" ${train[*]@Q} --log "$scratch/plugin1.json"
"$ZERORUN" --zero-stage=2 "$gpt" ${train[*]@Q} --log "$scratch/plugin2.json"
JOB
ran_batch "sbatch with the plugin" -N 3 -n 3 --zero-stream-chunk=64K "$scratch/job.sh"
for log in plugin plugin1 plugin2; do
	same_losses "$scratch/$log.json"
done

# A batch script may start the ranks itself, with the options that its job was given.
cat >"$scratch/job.sh" <<JOB
#!/bin/bash
mpirun --oversubscribe -n 3 "$gpt" ${train[*]@Q} --log "$scratch/ranks.json"
JOB
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
	ran_batch "sbatch with mpirun inside, and the plugin" -N 3 -n 3 --zero-stage=2 \
	"$scratch/job.sh"
same_losses "$scratch/ranks.json"
