#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Under Slurm too a rank that is killed at a random moment ends its step, with a line that names it,
# and leaves no process on any node. ZERO_TEST_KILLS=30 does it 30 times.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
need cblas
: "${ZERO_TEST_KILLS:=3}" "${ZERO_TEST_SEED:=$RANDOM}"
RANDOM=$ZERO_TEST_SEED
echo "seed $ZERO_TEST_SEED"
readonly world=3
gpt=$top_builddir/examples/gpt
cluster_start
plugin_on

now() {
	echo $(($(date +%s%N) / 1000000))
}

ranks() {
	pgrep -f "$gpt .*--log $scratch/log"
}

# The processes of this job's tasks alone: slurmstepd shows the same arguments before it is the
# task.
all_run() {
	local pid rank
	found=()
	for pid in $(ranks); do
		[[ $(readlink "/proc/$pid/exe") == */gpt ]] || continue
		rank=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" |
			sed -n 's/^SLURM_PROCID=//p')
		[[ $rank ]] && found[rank]=$pid
	done
	((${#found[@]} == world))
}

nothing_left() {
	[[ ! $(ranks) ]]
}

# one N: kills a random rank after a random time.
one() {
	local step delay victim begin status took
	rm -rf "$scratch/out" "$scratch/saved"
	timeout -k 5 120 srun -N 3 -n "$world" --zero-stage=$((RANDOM % 4)) "$gpt" \
		--text "$top_srcdir/LICENSE" --layers 2 --heads 2 --width 64 --context 64 \
		--steps 1000000 --checkpoint "$scratch/saved" --save-every 5 \
		--log "$scratch/log" >"$scratch/out" 2>&1 </dev/null &
	step=$!
	wait_for all_run
	delay=$((RANDOM % 1000)) victim=$((RANDOM % world))
	sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
	begin=$(now)
	kill -9 "${found[victim]}" ||
		fail "run $1: rank $victim had ended by itself: $(<"$scratch/out")"
	wait "$step"
	status=$?
	took=$(($(now) - begin))
	((status != 0)) ||
		fail "run $1: rank $victim was killed after $delay ms, and the status is 0"
	((status != 124)) ||
		fail "run $1: rank $victim was killed after $delay ms, and the others go on:" \
			"$(<"$scratch/out")"
	if grep -q "zero: rank $victim\>" "$scratch/out"; then
		ours=$((ours + 1))
	else
		# Before all ranks have opened the job, and where Open MPI, which sees the
		# connection end too, ends the step before the line is out, it is srun who names it.
		others=$((others + 1))
		grep -qE "^srun: error: .* tasks? ([0-9,-]+,)?$victim\>.*: Killed" "$scratch/out" ||
			fail "run $1: rank $victim, killed after $delay ms, is not named:" \
				"$(<"$scratch/out")"
	fi
	within 60 nothing_left || fail "run $1 left processes"
	echo "$took" >>"$scratch/times"
}

ours=0 others=0
for ((i = 1; i <= ZERO_TEST_KILLS; i++)); do
	one "$i"
done
wait_for all_idle
sort -n "$scratch/times" | awk '{t[NR] = $1} END {
	print NR " kills, all ended: median " t[int((NR + 1) / 2)] " ms, longest " t[NR] " ms"}'
echo "$ours lost ranks were named by the library, $others by srun alone"
