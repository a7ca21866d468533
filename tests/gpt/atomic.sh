#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All ranks are killed at a random moment, mostly of a save: the last complete checkpoint loads, every
# time, and is never older than it was before. ZERO_TEST_KILLS=200 does it so often.
# shellcheck source=tests/gpt/gpt.sh
. "${top_srcdir:?run me by make check}/tests/gpt/gpt.sh"

need mpi files
seed=${ZERO_TEST_SEED:-$RANDOM}
RANDOM=$seed
kills=${ZERO_TEST_KILLS:-10} saved=$scratch/saved
shape=(--text "$text" --layers 2 --heads 2 --width 64 --context 32)

# What mpirun was told is not at the beginning of a rank's command line.
processes() {
	pgrep -f "^$GPT .*--checkpoint $saved"
}

wrong() {
	fail "$*; seed $seed; it said: $(<"$scratch/out")"
}

# last: the step of `latest`; 0 if there is none
last() {
	local link
	link=$(readlink "$saved/latest") || link=step-0
	echo $((10#${link#step-}))
}

# begin WORLD: training that saves with each step, which goes on from the last save
begin() {
	setsid "$ZERORUN" -n "$1" "$GPT" "${shape[@]}" --batch $((6 / $1)) --steps 1000000 \
		--checkpoint "$saved" --save-every 1 --keep "$keep" >"$scratch/out" 2>&1 </dev/null &
	job=$!
}

# Open MPI's shared memory, which nobody is left to take away
export OMPI_MCA_btl_vader_backing_directory=$scratch
partial=0 newer=0
for ((n = 1; n <= kills; n++)); do
	before=$(last)
	world=$((1 + RANDOM % 3)) keep=$((1 + RANDOM % 3))
	begin "$world"
	# until it saves
	for ((i = 0; i < 1000; i++)); do
		(($(last) > before)) && break
		kill -0 "$job" 2>/dev/null || wrong "kill $n: it has ended by itself"
		sleep 0.01
	done
	sleep "0.$(printf %03d $((RANDOM % 400)))"
	mapfile -t pids < <(processes)
	((${#pids[@]} == world)) || wrong "kill $n: ${#pids[@]} of $world ranks are to be seen"
	kill -KILL "$job" "${pids[@]}"
	wait "$job" 2>/dev/null
	for ((i = 0; i < 500; i++)); do
		[[ $(processes) ]] || break
		sleep 0.01
	done
	compgen -G "$saved/*.partial-*" >/dev/null && partial=$((partial + 1))
	(($(last) >= before)) || wrong "kill $n: from step $before back to $(last)"
	(($(last) > before)) && newer=$((newer + 1))
	# Every byte is checked when it is read, here at one rank.
	gpt 1 3 "${shape[@]}" --steps 1 --eval --checkpoint "$saved"
	((status == 0)) || wrong "kill $n, of $world ranks: step $(last) cannot be read: $out $err"
	[[ $out == *"going on from "*/* ]] || wrong "kill $n: no checkpoint was read: $out"
done
echo "$kills kills: $newer times with newer checkpoints, $partial times within a save"
