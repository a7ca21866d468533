#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A program that was launched as several ranks but stands alone says so, instead of training as many
# models as there are ranks.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi
scratch
program=${top_builddir:?}/tests/ranks/close.ranks
export ZERO_BACKEND=host
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}

# refused WORDS NAME=VALUE...: the program fails with that sentence, in that environment
refused() {
	local words=$1 status
	shift
	timeout -k 5 60 env "$@" "$program" >"${scratch:?}/out" 2>&1 </dev/null
	status=$?
	((status == 1)) || fail "$*: status $status: $(<"$scratch/out")"
	grep -qF "$words" "$scratch/out" || fail "$*: no '$words' in: $(<"$scratch/out")"
}

refused 'the launcher started 4 ranks, but libzero sees 1' ZERO_RESOLVED='stage=3 tasks=4'
refused 'the launcher started 4 ranks, but MPI sees this one alone' SLURM_STEP_NUM_TASKS=4
refused "ZERO_RESOLVED: tasks: 'x' is not a whole number" ZERO_RESOLVED='tasks=x'
refused 'another release than the program' ZERO_RESOLVED='stage=3 staged=0 tasks=1'

# A launcher that is right about one rank is no error.
timeout -k 5 60 env ZERO_RESOLVED='tasks=1' "$program" >"$scratch/out" 2>&1 ||
	fail "tasks=1: $(<"$scratch/out")"
