# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For scripts that lose a rank, after tests/common.sh and scratch: jobs of the program of
# tests/ranks that is the argument, and what they print.

# The path differs in each run, so that pgrep finds the processes of this run only.
program=$scratch/$1
cp "$top_builddir/tests/ranks/$1" "$program" || fail "the program is not built"
export LD_LIBRARY_PATH=$top_builddir/lib/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export ZERO_TEST_FILES=$scratch/files ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
# Shared memory and temporary files of jobs go where leftovers can be found.
mkdir "$scratch/tmp" "$scratch/shm"
export TMPDIR=$scratch/tmp OMPI_MCA_btl_vader_backing_directory=$scratch/shm

broken() {
	cat "$scratch/out" >&2
	fail "$*; status $status${ZERO_TEST_SEED:+; ZERO_TEST_SEED=$ZERO_TEST_SEED}"
}

# job RANKS ARGUMENT...: sets $status, and waits until no process is left
job() {
	local turn
	rm -rf "$scratch/files" && mkdir "$scratch/files"
	timeout 120 "$ZERORUN" --zero-preload=no -n "$1" "$program" "${@:2}" \
		>"$scratch/out" 2>&1 </dev/null
	status=$?
	((status != 124)) || broken "$*: it did not end"
	# The mpirun of Open MPI 4.1 may hang after all ranks have ended. It is then killed.
	! grep -q 'mpirun hangs' "$scratch/out" || rm -rf "$scratch"/{tmp,shm}/*
	for ((turn = 0; turn < 1200; turn++)); do
		pgrep -f "^$program" >"$scratch/left" || return 0
		sleep 0.05
	done
	broken "$*: processes are left: $(<"$scratch/left")"
}

# lines WORDS: of the first lines about a rank, those with WORDS; Open MPI may print in between
lines() {
	grep -E "(^|] )zero: rank.*; ending the job\$" "$scratch/out" | grep -cE "zero: $1"
}

# names WORDS RANKS RANK ARGUMENT...: the one line of such a job says so of that rank
names() {
	job "${@:2}"
	(($(lines "rank $3 on node [^ ]* \(pid [0-9]*\) $1") == 1 && $(lines .) == 1)) ||
		broken "${*:2}: other lines"
}
