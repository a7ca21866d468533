#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The same across nodes, under Slurm's PMIx.
# shellcheck source=tests/slurm/given.sh
. "${top_srcdir:?run me by make check}/tests/slurm/given.sh"
need pmix
# shellcheck source=tests/pmix/nccl.sh
. "$top_srcdir/tests/pmix/nccl.sh"
export ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
bootstrap=("$top_builddir/tests/pmix/bootstrap" "$top_builddir/lib/.libs/zero_pmix.so")
cluster_start

# quiet WHAT: and nothing was written on standard error, but by srun of what it waits for
quiet() {
	expect "$1: standard error" "" "$(grep -v '^srun: job' "$scratch/err")"
}

ran "one rank a node" srun --mpi=pmix -N3 -n3 "${bootstrap[@]}" values
has_lines "one rank a node" 3 '^values: rank=[0-2] world=3 local_rank=0 local_world=1$'
quiet "one rank a node"
ran "six ranks on three nodes" srun --mpi=pmix -N3 --ntasks-per-node=2 -m cyclic \
	"${bootstrap[@]}" values
has_lines "six ranks on three nodes" 3 '^values: rank=[0-2] world=6 local_rank=0 local_world=2$'
has_lines "six ranks on three nodes" 3 '^values: rank=[3-5] world=6 local_rank=1 local_world=2$'
quiet "six ranks on three nodes"
ran "with MPI" srun --mpi=pmix -N3 -n3 "${bootstrap[@]}" mpi
has_lines "with MPI" 3 '^values: rank=[0-2] world=3 '

ran "ids of NCCL" srun --mpi=pmix -N3 -n3 "${bootstrap[@]}" nccl "$nccl"
passed_over || has_lines "ids of NCCL" 3 '^nccl: rank=[0-2] of 3 has the id$'

# ---- at once, since they wait more than they work

# A job of several components has one namespace. The last one stays a while, as in
# tests/slurm/jobs.sh.
cat >"$scratch/apart" <<'TASK'
#!/bin/bash
"$@" || exit
((SLURM_PROCID < 3)) || sleep 1
TASK
chmod +x "$scratch/apart"
begin "a heterogeneous step" timeout -s KILL 60 srun --mpi=pmix -N2 -n3 "$scratch/apart" \
	"${bootstrap[@]}" values : -n1 "$scratch/apart" "${bootstrap[@]}" values

# begin_apart NAME ARGUMENT...: with a folder of its own, in which the ranks wait for each other
begin_apart() {
	ZERO_TEST_FILES=$(mktemp -d "$scratch/files.XXXXXX") begin "$1" srun --mpi=pmix "${@:2}"
}
absent=(-N3 --ntasks-per-node=2 "${bootstrap[@]}" absent "1,4-5" 2)
begin_apart "a late rank" -N3 -n6 "${bootstrap[@]}" late 2
begin_apart "absent ranks" "${absent[@]}"
SLURM_PMIX_FENCE=tree begin_apart "SLURM_PMIX_FENCE=tree" "${absent[@]}"
begin_apart "a node that is gone" -N3 -n3 "${bootstrap[@]}" absent 2 2 gone

ended "a heterogeneous step"
has_lines "a heterogeneous step" 4 '^values: rank=[0-3] world=4 '
ended_well "a late rank"
has_lines "a late rank" 5 '^rank [0-4]: rank 5 of 6 \(node n3\) did not come within 2 s: '
quiet "a late rank"
ended_well "absent ranks"
has_lines "absent ranks" 3 \
	'^rank [023] after .*: ranks 1, 4, 5 of 6 \(the first on node n1\) did not come within 2 s'
quiet "absent ranks"
# In Slurm 22.05 each node's part of such a fence ends by itself, as soon as its own ranks are here.
ended_well "SLURM_PMIX_FENCE=tree"
has_lines "SLURM_PMIX_FENCE=tree" 1 '^rank 0 after .*: ranks? 1.* did not come within 2 s'
has_lines "SLURM_PMIX_FENCE=tree" 2 "^rank [23] .* PMIx ended a fence to which rank.* of 6 had not come"
# The only rank of a node has gone, and with it the node's server. While a server of Slurm's tries
# to reach it, that one may not answer either.
ended_well "a node that is gone"
has_lines "a node that is gone" 2 \
	'^rank [01] after .*: there was no reply about ranks? ([01], )?2 of 3 \(.*n[1-3]\) within 2 s: '

run_all srun --mpi=pmix -N3 -n3 "${bootstrap[@]}" abort 7
expect "abort" 7 "$status"
for mpi in none pmi2; do
	ran "--mpi=$mpi" srun --mpi="$mpi" -N3 -n3 "${bootstrap[@]}" refuse
	has_lines "--mpi=$mpi" 3 '^the launcher started 3 ranks, but this one sees no other .*pmix$'
	ran "one task, --mpi=$mpi" srun --mpi="$mpi" -n1 "${bootstrap[@]}" values
done
