#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The same across nodes, under Slurm's PMIx.
# shellcheck source=tests/slurm/given.sh
. "${top_srcdir:?run me by make check}/tests/slurm/given.sh"
need pmix
export ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
rendezvous=("$top_builddir/tests/pmix/rendezvous" "$top_builddir/lib/.libs/zero_pmix.so")
cluster_start

# quiet WHAT: and nothing was written on standard error, but by srun of what it waits for
quiet() {
	expect "$1: standard error" "" "$(grep -v '^srun: job' "$scratch/err")"
}

ran "one rank a node" srun --mpi=pmix -N3 -n3 "${rendezvous[@]}" values
has_lines "one rank a node" 3 '^values: rank=[0-2] world=3 local_rank=0 local_world=1$'
quiet "one rank a node"
ran "six ranks on three nodes" srun --mpi=pmix -N3 --ntasks-per-node=2 -m cyclic \
	"${rendezvous[@]}" values
has_lines "six ranks on three nodes" 3 '^values: rank=[0-2] world=6 local_rank=0 local_world=2$'
has_lines "six ranks on three nodes" 3 '^values: rank=[3-5] world=6 local_rank=1 local_world=2$'
quiet "six ranks on three nodes"
ran "with MPI" srun --mpi=pmix -N3 -n3 "${rendezvous[@]}" mpi
has_lines "with MPI" 3 '^values: rank=[0-2] world=3 '

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
	"${rendezvous[@]}" values : -n1 "$scratch/apart" "${rendezvous[@]}" values

# begin_apart NAME ARGUMENT...: with a folder of its own, in which the ranks wait for each other
begin_apart() {
	ZERO_TEST_FILES=$(mktemp -d "$scratch/files.XXXXXX") ZERO_BACKEND=none ZERO_OPEN_SECONDS=2 \
		begin "$1" srun --mpi=pmix "${@:2}"
}
begin_apart "a late rank" -N3 -n6 "${rendezvous[@]}" late 2
begin_apart "absent ranks" -N3 --ntasks-per-node=2 "${rendezvous[@]}" absent 1,4-5
begin_apart "a node that is gone" -N3 -n3 "${rendezvous[@]}" absent 2 gone

ended "a heterogeneous step"
has_lines "a heterogeneous step" 4 '^values: rank=[0-3] world=4 '
ended_well "a late rank"
has_lines "a late rank" 5 '^rank [0-4]: rank 5 of 6 \(node n3\) did not come within 2 s: '
quiet "a late rank"
ended_well "absent ranks"
has_lines "absent ranks" 3 \
	'^rank [023] .*: ranks 1, 4 to 5 of 6 \(the first on node n1\) did not come within 2 s'
quiet "absent ranks"
# The only rank of a node has gone, and with it the node's server.
ended_well "a node that is gone"
has_lines "a node that is gone" 2 \
	'^rank [01] after .*: rank 2 of 3 \(node n3\) did not come within 2 s to rank 0 \(node '

run_all srun --mpi=pmix -N3 -n3 "${rendezvous[@]}" abort 7
expect "abort" 7 "$status"
for mpi in none pmi2; do
	ran "--mpi=$mpi" srun --mpi="$mpi" -N3 -n3 "${rendezvous[@]}" refuse
	has_lines "--mpi=$mpi" 3 '^the launcher started 3 ranks, but this one sees no other .*pmix$'
	ran "one task, --mpi=$mpi" srun --mpi="$mpi" -n1 "${rendezvous[@]}" values
done
