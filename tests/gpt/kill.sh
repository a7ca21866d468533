#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that is killed at a random moment (of the launch, the opening, training or a save) ends the
# job in less than 10 s with a sentence that names it, and leaves no process and no shared memory.
# ZERO_TEST_KILLS=200 does it 200 times.
# shellcheck source=tests/gpt/gpt.sh
. "${top_srcdir:?run me by make check}/tests/gpt/gpt.sh"

need mpi
: "${ZERO_TEST_KILLS:=8}" "${ZERO_TEST_SEED:=$RANDOM}"
RANDOM=$ZERO_TEST_SEED
echo "seed $ZERO_TEST_SEED"
readonly world=3 soon=10000 # ms

# What Open MPI makes for itself shall be gone too.
mkdir "$scratch/tmp" "$scratch/shared"
export TMPDIR=$scratch/tmp OMPI_MCA_btl_vader_backing_directory=$scratch/shared

now() {
	echo $(($(date +%s%N) / 1000000))
}

# The processes of this job alone: its log's name is in their arguments.
ranks() {
	pgrep -f "$GPT .*--log $scratch/log"
}

# rank_of PID: as its launcher numbers it; nothing before it runs the program.
rank_of() {
	tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p'
}

all_run() {
	local pid
	found=()
	for pid in $(ranks); do
		rank=$(rank_of "$pid")
		[[ $rank ]] && found[rank]=$pid
	done
	((${#found[@]} == world))
}

# one N: kills a random rank after a random time; leaves $took (ms).
one() {
	local launcher delay victim begin status
	rm -rf "$scratch/out" "$scratch/saved"
	setsid "$ZERORUN" -n "$world" --zero-stage=$((RANDOM % 4)) \
		--zero-shard=$((RANDOM % 2 ? world : 1)) "$GPT" --text "$text" --layers 2 \
		--heads 2 --width 64 --context 64 --steps 1000000 --checkpoint "$scratch/saved" \
		--save-every 5 --log "$scratch/log" >"$scratch/out" 2>&1 </dev/null &
	launcher=$!
	for _ in {1..500}; do
		all_run && break
		kill -0 "$launcher" 2>/dev/null || break
		sleep 0.01
	done
	((${#found[@]} == world)) || fail "run $1 did not start: $(<"$scratch/out")"
	delay=$((RANDOM % 2500))
	victim=$((RANDOM % world))
	sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
	begin=$(now)
	kill -9 "${found[victim]}" ||
		fail "run $1: rank $victim had ended by itself: $(<"$scratch/out")"
	( sleep 30; kill -9 -- "-$launcher" ) 2>/dev/null &
	local guard=$!
	wait "$launcher" 2>/dev/null
	status=$?
	took=$(($(now) - begin))
	kill "$guard" 2>/dev/null
	wait "$guard" 2>/dev/null
	((status != 0)) ||
		fail "run $1: rank $victim was killed after $delay ms, and the status is 0"
	((took < soon)) || fail "run $1: rank $victim was killed after $delay ms: it took $took ms"
	grep -q 'mpirun hangs: zerorun kills it' "$scratch/out" && hung=$((hung + 1))
	if grep -q "zero: rank $victim\>" "$scratch/out"; then
		ours=$((ours + 1))
	elif grep -q '^GPT-2: ' "$scratch/out"; then
		fail "run $1: rank $victim, killed after $delay ms, is not named:" \
			"$(<"$scratch/out")"
	else
		# Before all ranks have opened the job only mpirun can name it, and mostly does.
		opening=$((opening + 1))
		grep -q "rank $victim\>" "$scratch/out" || unnamed=$((unnamed + 1))
	fi
	echo "$delay $victim $took" >>"$scratch/times"
}

# Whatever the launcher leaves has a moment to go.
nothing_left() {
	for _ in {1..50}; do
		[[ ! $(ranks) ]] && return
		sleep 0.1
	done
	return 1
}

ours=0 opening=0 unnamed=0 hung=0
for ((i = 1; i <= ZERO_TEST_KILLS; i++)); do
	one "$i"
	nothing_left ||
		fail "run $i left processes: $(ps -o pid,stat,args -p "$(ranks | paste -sd,)")"
done
sort -n -k 3 "$scratch/times" | awk '{t[NR] = $3} END {
	print NR " kills, all ended: median " t[int((NR + 1) / 2)] " ms, longest " t[NR] " ms"}'
echo "$ours lost ranks were named by the library, $opening were lost before the job was open," \
	"of which mpirun did not name $unnamed; mpirun hung $hung times"
# A hung mpirun, which zerorun ends, can take nothing away any more.
left=$(find "$scratch/tmp" "$scratch/shared" -type f)
[[ ! $left ]] || ((hung)) || fail "files or shared memory are left: $left"
