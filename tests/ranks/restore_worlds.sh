#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint that was saved at one number of ranks is restored at another one.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi files
program=${top_builddir:?}/tests/ranks/restore.ranks
scratch
export ZERO_BACKEND=host ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
export ZERO_TEST_SEED=${ZERO_TEST_SEED:-$((RANDOM << 15 | RANDOM))}

# run RANKS SHARE ARGUMENT...: one rank runs without a launcher
run() {
	local ranks=$1 share=$2 status launcher=()
	shift 2
	((ranks == 1)) || launcher=("$ZERORUN" --zero-preload=no -n "$ranks")
	ZERO_SHARE=$share timeout -k 5 120 "${launcher[@]}" "$program" "$@" \
		>"${scratch:?}/out" 2>&1 </dev/null
	status=$?
	((status == 0)) && return
	tail -n 30 "$scratch/out"
	fail "$ranks ranks, $share share: $* ended with $status; ZERO_TEST_SEED=$ZERO_TEST_SEED"
}

# both SUFFIX SAVE LOAD...: saves and loads; each argument is RANKS/SHARE
both() {
	local suffix=$1 from=$2 to
	shift 2
	run "${from%/*}" "${from#*/}" "save$suffix" "$scratch/dir"
	for to; do
		run "${to%/*}" "${to#*/}" "load$suffix" "$scratch/dir" "${from%/*}"
	done
	rm -rf "$scratch/dir"
}

both '' 1/0 3/2
both '' 3/2 1/0 2/0
both -large 4/0 3/0
grep 'bytes read' "$scratch/out"
# Blocks of 8-bit moments are never cut, so that the next steps have the same bits.
program=$top_builddir/tests/ranks/states_8bit.ranks
run 3 2 save "$scratch/dir"
for ranks in 1 2 4; do
	run $ranks 0 load "$scratch/dir"
done
# And so it is where each two ranks had a copy of the model, and each one has.
rm -rf "${scratch:?}/dir"
ZERO_SHARD=2 run 4 0 save "$scratch/dir"
run 1 0 load "$scratch/dir"
for ranks in 2 3; do
	ZERO_SHARD=1 run $ranks 0 load "$scratch/dir"
done
