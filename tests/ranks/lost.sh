#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job that loses a rank ends on all ranks within ten seconds, prints one line that names the rank,
# and leaves no processes or files behind, however the rank was lost and whatever the job did. A job
# waits for a rank that is merely slow. ZERO_TEST_KILLS (12) is the number of kills at random times.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi
scratch
# The path differs in each run, so that pgrep finds the processes of this run only.
program=$scratch/lost
cp "$top_builddir/tests/ranks/lost" "$program" || fail "the program is not built"
kills=${ZERO_TEST_KILLS:-12}
RANDOM=${ZERO_TEST_SEED:=$RANDOM}
echo "ZERO_TEST_SEED=$ZERO_TEST_SEED"
export LD_LIBRARY_PATH=$top_builddir/lib/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export ZERO_BACKEND=host ZERO_OPEN_SECONDS=5 ZERO_TEST_FILES=$scratch/files
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
times=() named=0 unnamed=0 opening=0 stuck=0

broken() {
	cat "$scratch/out" >&2
	fail "$*; ZERO_TEST_SEED=$ZERO_TEST_SEED"
}

# Shared memory and temporary files of jobs go where leftovers can be found.
mkdir "$scratch/tmp" "$scratch/shm"
export TMPDIR=$scratch/tmp OMPI_MCA_btl_vader_backing_directory=$scratch/shm
leftovers() {
	find "$scratch/tmp" "$scratch/shm" -mindepth 1 ! -name 'ompi.*.[0-9]*'
}

nobody_is_left() {
	! pgrep -f "^$program" >"$scratch/left"
}

# wait_launcher PID: waits for the launcher. The mpirun of Open MPI 4.1 may hang after all ranks
# have ended, if one of them died while it connected to mpirun. It is then killed.
wait_launcher() {
	local since=$SECONDS
	killed=
	while kill -0 "$1" 2>/dev/null; do
		sleep 0.02
		((SECONDS > since + 9)) || continue
		if nobody_is_left && grep -qs opening "$scratch/files/at"; then
			killed=yes stuck=$((stuck + 1))
		elif ((SECONDS < since + 60)); then
			continue
		fi
		kill -KILL "$1" 2>/dev/null
		rm -rf "$scratch/tmp" "$scratch/shm" && mkdir "$scratch/tmp" "$scratch/shm"
		break
	done
	wait "$1" 2>/dev/null
}

# lose RANKS RANK ACTION MILLISECONDS [ONLY]: sets $status, $took (ms since the action) and $moment
lose() {
	local at now before
	rm -rf "$scratch/files" && mkdir "$scratch/files"
	"$ZERORUN" --zero-preload=no -n "$1" "$program" "${@:2}" >"$scratch/out" 2>&1 </dev/null &
	wait_launcher $!
	status=$?
	now=$EPOCHREALTIME
	read -r at moment _ <"$scratch/files/at" || broken "$*: the action was not performed"
	took=$((${now/./} / 1000 - ${at/./} / 1000))
	for ((before = SECONDS; SECONDS < before + 3; )); do
		nobody_is_left && break
		sleep 0.05
	done
	nobody_is_left || broken "$*: processes are left: $(<"$scratch/left")"
}

# one_line RANK WORDS: whether the output has a line with WORDS about that rank. Fails if there is
# more than one line about a rank.
one_line() {
	local lines
	lines=$(grep -c 'zero: rank' "$scratch/out")
	((lines <= 1)) || broken "there are $lines lines"
	# Open MPI prints its report of a crash in pieces, which may precede the line.
	grep -qE "(^|] )zero: rank $1 on node [^ ]* \(pid [0-9]*\).* $2.*; ending the job\$" "$scratch/out"
}

# is_lost WORDS RANKS RANK ACTION MILLISECONDS [ONLY]
is_lost() {
	local words=$1
	shift
	lose "$@"
	[[ -z $killed ]] || return 0
	((status != 0)) || broken "$*: ended with status 0"
	((took < 10000)) || broken "$*: took $took ms"
	times+=("$took")
	if [[ $moment == opening ]]; then
		opening=$((opening + 1))
	elif one_line "$2" "$words"; then
		named=$((named + 1))
	elif grep -q '^zero: ' "$scratch/out"; then
		broken "$*: another line"
	else
		unnamed=$((unnamed + 1))
		echo "$*: no line in:" && cat "$scratch/out"
	fi
}

# ---- no rank is lost -----------------------------------------------------------------------------

mkdir "$scratch/files"
"$ZERORUN" --zero-preload=no -n 3 "$program" 0 none 0 >"$scratch/out" 2>&1 || broken "no action"
! grep . "$scratch/out" || broken "no action: something is printed"

# A slow peer sends heartbeats.
ZERO_WATCH_SECONDS=1 "$ZERORUN" --zero-preload=no -n 3 "$program" 1 slow 4000 \
	>"$scratch/out" 2>&1 ||
	broken "a slow peer"
! grep . "$scratch/out" || broken "a slow peer: something is printed"

# All ranks are stopped for longer than that, as by scontrol suspend.
ZERO_WATCH_SECONDS=1 "$ZERORUN" --zero-preload=no -n 3 "$program" 1 slow 6000 \
	>"$scratch/out" 2>&1 &
job=$!
sleep 2
pkill -STOP -f "^$program" && sleep 2.5 && pkill -CONT -f "^$program"
wait $job || broken "all are stopped for a while"
! grep . "$scratch/out" || broken "all are stopped for a while: something is printed"

# ---- a rank is lost ------------------------------------------------------------------------------

is_lost "was killed by SIGKILL" 2 1 kill 700 gather
is_lost "died of signal 11" 3 2 segv 700 gather
is_lost "died of signal 6" 3 1 memory 700 load
is_lost "called exit\(0\) without zero_close" 3 0 exit0 700 step
is_lost "called exit\(3\) without zero_close" 3 1 exit3 700 reduce
is_lost "called _exit" 3 1 _exit3 700
# A rank that SIGTERM ends looks like one that the launcher has ended.
lose 3 1 term 700
((status != 0 && took < 10000)) || broken "SIGTERM: status $status, $took ms"
one_line 1 "died of signal 15" || ! grep -q '^zero: ' "$scratch/out" ||
	broken "SIGTERM: another line"
ZERO_WATCH_SECONDS=2 is_lost "is stopped .* 2 s" 4 2 stop 1200 save
is_lost "is stopped .* 5 s" 3 0 stop 900

# A rank is stopped, or ends, while the others wait for it in zero_open.
is_lost "" 3 1 stop 1
grep -q '^zero: rank 0 .* in zero_open' "$scratch/out" || [[ $moment == open ]] ||
	broken "stopped in zero_open: no line"

# Random ranks are lost at random moments, also in zero_open.
for ((i = 0; i < kills; i++)); do
	ranks=$((RANDOM % 3 + 2))
	is_lost "(was killed by SIGKILL|is stopped)" $ranks $((RANDOM % ranks)) \
		"$( ((i % 6 == 5)) && echo stop || echo kill)" $((RANDOM % 2500))
done

# A rank that waits for too long prints which rank keeps it waiting.
ZERO_STALL_SECONDS=3 timeout -k 5 60 "$ZERORUN" --zero-preload=no -n 3 "$program" 1 slow 20000 \
	>"$scratch/out" 2>&1 && broken "a stall: ended with status 0"
grep -q '^zero: rank 1 on node .* keeps the others waiting for more than 3 s' "$scratch/out" ||
	broken "a stall: no line"
grep -qE "^zero:   ranks 0,2: in .* \(operation [0-9]+\) for [0-9]" "$scratch/out" ||
	broken "a stall: no line about the ranks that wait"

# ---- leftovers -----------------------------------------------------------------------------------

! leftovers | grep . || fail "these files are left behind; ZERO_TEST_SEED=$ZERO_TEST_SEED"
readarray -t sorted < <(printf '%s\n' "${times[@]}" | sort -n)
echo "${#sorted[@]} ends: median ${sorted[${#sorted[@]} / 2]} ms, most ${sorted[-1]} ms;" \
	"$named with a line, $unnamed without, $opening while opening; $stuck launchers hung"
((unnamed * 50 <= named)) || fail "too many without a line"
