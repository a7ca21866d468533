#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks get what the others publish, those that do not come are named, and without a server there is
# one rank or a sentence. Nothing is written by PMIx in any of it.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need pmix mpi
: "${ZERORUN:?}"
scratch
export ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
rendezvous=("$top_builddir/tests/pmix/rendezvous" "$top_builddir/lib/.libs/zero_pmix.so")
ranks=("$ZERORUN" --zero-preload=no -n)
# What this shell may have inherited from a job that it runs in.
for name in "${!PMI@}" "${!OMPI_COMM@}" "${!SLURM_@}"; do
	unset "$name"
done

# run STATUS COMMAND...: it ends so, and what it says is in $scratch/out and $scratch/err
run() {
	local want=$1 status
	shift
	timeout -k 5 120 "$@" >"${scratch:?}/out" 2>"$scratch/err" </dev/null
	status=$?
	((status == want)) && return
	cat "$scratch/out" "$scratch/err" >&2
	fail "'$*' ended with status $status, not $want; ZERO_TEST_SEED=$ZERO_TEST_SEED"
}

# has_lines COUNT PATTERN: checks how many lines of the output match
has_lines() {
	local count
	count=$(grep -cE -e "$2" "$scratch/out")
	((count == $1)) || fail "$count lines, not $1, like '$2' in: $(<"$scratch/out")"
}

# quiet: and nothing else is said
quiet() {
	[[ ! -s $scratch/err ]] || fail "on standard error: $(<"$scratch/err")"
}

# refused WORDS NAME=VALUE...: with that environment it cannot be opened, and says so in one line
refused() {
	local words=$1
	shift
	run 0 env "$@" "${rendezvous[@]}" refuse
	has_lines 1 "$words"
	has_lines 1 .
	quiet
}

# ---- without a server

run 0 "${rendezvous[@]}" values
has_lines 1 '^values: rank=0 world=1 local_rank=0 local_world=1$'
quiet
run 0 env SLURM_STEP_NUM_TASKS=1 OMPI_COMM_WORLD_SIZE=1 "${rendezvous[@]}" values
quiet
run 9 "${rendezvous[@]}" abort 9
for name in SLURM_STEP_NUM_TASKS PMI_SIZE OMPI_COMM_WORLD_SIZE; do
	refused '^the launcher started 4 ranks, but this one sees no other .*pmix$' "$name=4"
done
# What a server that is gone leaves in the environment.
gone='^the PMIx server of PMIX_NAMESPACE=gone.1 does not answer: .*zerorun'
refused "$gone" PMIX_NAMESPACE=gone.1 PMIX_RANK=0
refused "$gone" PMIX_NAMESPACE=gone.1 PMIX_RANK=0 PMIX_SERVER_URI41='gone.0;tcp4://127.0.0.1:1' \
	PMIX_SERVER_URI21='gone.0;tcp4://127.0.0.1:1'

# ---- values

for world in 1 2 5; do
	run 0 "${ranks[@]}" "$world" "${rendezvous[@]}" values
	has_lines "$world" "^values: rank=([0-9]+) world=$world local_rank=\\1 local_world=$world\$"
	quiet
done
run 0 "${ranks[@]}" 3 "${rendezvous[@]}" mpi
has_lines 3 '^values: rank=[0-2] world=3 '
quiet

# ---- who does not come

# aside NAME ARGUMENT...: starts ranks that mostly wait; came NAME waits for them, as `run 0` does
aside() {
	mkdir "$scratch/$1.files"
	ZERO_TEST_FILES=$scratch/$1.files ZERO_BACKEND=none ZERO_OPEN_SECONDS=2 timeout -k 5 120 \
		"${ranks[@]}" "${@:2}" \
		>"$scratch/$1.out" 2>"$scratch/$1.err" </dev/null &
	pids[$1]=$!
}

came() {
	wait "${pids[$1]}" || fail "$1 ended with status $?: $(cat "$scratch/$1".[oe]*)"
	mv "$scratch/$1.out" "$scratch/out"
	mv "$scratch/$1.err" "$scratch/err"
}

declare -A pids
aside late 3 "${rendezvous[@]}" late 2
aside absent 20 "${rendezvous[@]}" absent 5-7,9,12-15,18
aside gone 4 "${rendezvous[@]}" absent 0,1 gone
came late
has_lines 2 '^rank [01]: rank 2 of 3 \(node .*\) did not come within 2 s: '
quiet
came absent
has_lines 11 '^rank .* after .* s: rank'
has_lines 11 'ranks? .*of 20 .*did not come within 2 s'
quiet
came gone
has_lines 2 '^rank [23] after .* s: rank 0 of 4 \(node .*\) did not come within 2 s'
quiet

# ---- how it ends

run 7 "${ranks[@]}" 3 "${rendezvous[@]}" abort 7
