#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Jobs that protect each step in the memory of their nodes lose nodes, and go on with the values of
# a job that loses none, at most one complete step before. The seconds are those from the fault
# until zerorun starts the job again, and until it has made a new step. ZERO_TEST_LOSSES (1) is how
# often the job of several losses runs, and 5 with ZERO_TEST_LONG. ZERO_TEST_PICTURE=FILE has a
# picture of the PyTorch job drawn.
# shellcheck source=tests/slurm/nodes.sh
. "${top_srcdir:?run me by make check}/tests/slurm/nodes.sh"
: "${ZERORUN:?}" "${ZERO_TEST_LOSSES:=${ZERO_TEST_LONG:+5}}"
steps=150
cluster_start
plugin_on

# ---- C

program=$top_builddir/tests/ranks/protect
export GATES=$scratch/gates

# open_gates STEP...: all others are closed
open_gates() {
	rm -rf "$GATES" && mkdir "$GATES"
	(($# == 0)) || touch "${@/#/$GATES/}"
}

# start FLAG...: zerorun beside the nodes, in an allocation of all of them
start() {
	: >"$scratch/job.out" # which is read before the job opens it
	salloc -Q --no-kill -N 4 --ntasks-per-node=1 --gpus=8 "$ZERORUN" "$@" \
		>"$scratch/job.out" 2>"$scratch/job.err" </dev/null &
	job=$! restarts=0
}

# A line `step NUMBER VALUES` for each step that was complete, and `from NUMBER VALUES` first where
# an attempt restores one. A `-` stands for values that are not known.
progress() {
	grep -E '^(step|from) ' "$scratch/job.out"
}

# The number of the last step of this attempt; it has begun with what an attempt before protected.
at_step() {
	progress | awk '$1 == "from" {from++; step = 0}
		$1 == "step" {step = $2}
		END {print from + 0 == '"$restarts"' ? step + 0 : 0}'
}

reaches() {
	(($(at_step) >= $1))
}

# goes_on RANKS NODES WHAT: after the fault, with new steps, one of which is protected completely
goes_on() {
	local restarted stepped
	restarts=$((restarts + 1))
	soon said "$restarts" '^zerorun: .*: restart [0-9]+ of '
	restarted=$(now)
	soon reaches 1
	stepped=$(now)
	soon reaches $(($(at_step) + 2))
	[[ ! $1 ]] ||
		said 1 "^zerorun: the job continues with $1 ranks on $2: restart $restarts of " ||
		wrong "the job does not say that it continues with $1 ranks on $2"
	echo "$3: started again after $((restarted - began)) ms," \
		"a step after $((stepped - began)) ms"
}

# reference: the values of this job are those that others have to have
reference() {
	local step value
	values=()
	while read -r _ step value; do
		values[step]=$value
	done < <(progress)
	((${#values[@]} == steps)) || wrong "${#values[@]} steps"
	nothing_left "${nodes[@]}"
}

# same_values ATTEMPTS: those of the first attempts are the reference's, what is restored is that
# step's, and at most one complete step was lost
same_values() {
	local what step value last=0 attempt=1
	while read -r what step value; do
		if [[ $what == from ]]; then
			attempt=$((attempt + 1))
			((step >= last - 1)) || wrong "it goes on from step $step, not from $last"
		fi
		[[ $what == step ]] && ((attempt > $1)) && continue
		[[ $value == - || ${values[$step]} == "$value" ]] ||
			wrong "attempt $attempt has other values in line '$what $step $value'"
		last=$step
	done < <(progress)
	((attempt == restarts + 1)) || wrong "$attempt attempts"
}

# nothing_left NODE...: of what was protected in their memory
nothing_left() {
	local node memory
	for node; do
		memory=$(node_memory "$node") && [[ -d $memory ]] || fail "$node has no memory"
		! ls -d "$memory"/zero-* 2>/dev/null || wrong "the above is left on $node"
	done
}

open_gates 40 80 120
ran "a job that loses nothing" srun --zero -N3 -n3 "$program" $steps 1
mv "$scratch/out" "$scratch/job.out"
: >"$scratch/job.err"
reference

# A node is replaced, a rank is started again, and a node that goes silent, rank 0's, is not
# replaced: each fault comes once the job goes on after the one before.
for ((i = 0; i < ${ZERO_TEST_LOSSES:-1}; i++)); do
	open_gates
	start --max-restarts=9 --spare-nodes=1 --min-ranks=2 "$program" $steps 1
	soon reaches 5
	lose node_kill n2
	touch "$GATES/40"
	goes_on 3 n1,n3,n4 "a node is killed, a spare replaces it"
	lose kill_rank 1
	touch "$GATES/80"
	goes_on "" "" "a rank is killed"
	lose node_silence n1
	touch "$GATES/120"
	goes_on 2 n3,n4 "a node goes silent, fewer ranks go on"
	ended 0
	same_values 3
	said 0 '^zero: (step|nothing|no step) ' || wrong "something is not protected"
	nothing_left n3 n4
	back n1 n2
done

# Two partners are lost at once: the job goes on from its checkpoint, and says why. Slurm's PMIx has
# to ask for the data of ranks, which is what goes to another node if it has another list of nodes.
open_gates 80 120
export SAVED=$scratch/saved SLURM_PMIX_DIRECT_CONN=false
start --max-restarts=9 --spare-nodes=1 --min-ranks=2 "$program" $steps 1
soon reaches 39
ip link set to_n3 down
lose node_silence n2
node_kill n3
touch "$GATES/40"
goes_on 2 n1,n4 "both partners go silent"
ended 0
unset SAVED SLURM_PMIX_DIRECT_CONN
grep -qx "from 20 ${values[20]}" "$scratch/job.out" || wrong "it does not go on from the checkpoint"
said 1 "^zero: no step in the memory of the nodes is complete: the job goes on from the checkpoint \
of step 20$" || wrong "it does not say why it goes on from the checkpoint"
nothing_left n1 n4
back n2 n3

# limit_memory SIZE: of n2
limit_memory() {
	nsenter --target "$(pgrep -P "$(<"$scratch/n2/node")")" --mount \
		mount -o "remount,size=$1" /dev/shm || fail "n2's memory cannot be limited"
}

# What cannot be protected costs a line, and no more than that.
unprotected() {
	restarts=0
	# without zerorun: the name is what it gives to its ranks
	ran "$1" env ZERO_RUN="$(printf %032d 7)" srun --zero -N3 -n3 "$program" $steps 1
	mv "$scratch/out" "$scratch/job.out"
	same_values 1
	(($(grep -cE '^zero: ' "$scratch/job.out") == 1)) || wrong "$1: it is not said once"
	grep -qE "^zero: $2" "$scratch/job.out" || wrong "$1: no line has '$2'"
	(($(at_step) == steps)) || wrong "$1: not all steps"
}
open_gates 40 80 120
memory=$(node_memory n2)
limit_memory 1M
unprotected "a full folder" "step 1 is not protected: .*No space left on device; the job goes on,"
nothing_left "${nodes[@]}"
limit_memory 50%
mkdir -m 700 "$memory/zero-0" && chown 12345 "$memory/zero-0"
unprotected "another user's folder" "nothing is protected: .*the folder /dev/shm/zero-0 belongs to \
user 12345 and has the mode 700; it must be this user's own \(0\), "
rmdir "$memory/zero-0" || fail "something is in another user's folder"
nothing_left "${nodes[@]}"

# ---- PyTorch

need_torch
# shellcheck source=python/tests/torch.sh
. "$top_srcdir/python/tests/torch.sh"
steps=30
train=("$TORCH_PYTHON" "$top_srcdir/python/tests/protect.py" "$scratch/losses" $steps)
# It counts its steps from 0, and does not print what it restores.
progress() {
	[[ ! -e $scratch/losses ]] ||
		awk '{print $1, $2 + ($1 == "step"), $1 == "step" ? $3 : "-"}' "$scratch/losses"
}
open_gates 0 10 20
ran "PyTorch loses nothing" srun --zero -N3 -n3 "${train[@]}"
reference
rm "$scratch/losses" "$GATES"/[12]0

# happens WHAT: a line of the picture
happens() {
	[[ ! ${ZERO_TEST_PICTURE-} ]] || echo "$EPOCHREALTIME $*" >>"$scratch/history"
}
if [[ ${ZERO_TEST_PICTURE-} ]]; then
	export ZERO_REPORT=$scratch/report
	touch "$scratch/losses"
	tail -f "$scratch/losses" | while read -r line; do
		happens "$line"
	done &
fi
start --max-restarts=9 --spare-nodes=1 --min-ranks=2 "${train[@]}"
soon reaches 5
happens lost n2 is killed
lose node_kill n2
touch "$GATES/10"
goes_on 3 n1,n3,n4 "PyTorch: a node is killed, a spare replaces it"
happens lost n1 goes silent
lose node_silence n1
touch "$GATES/20"
goes_on 2 n3,n4 "PyTorch: a node goes silent, fewer ranks go on"
ended 0
same_values 2
said 0 '^zero: (step|nothing|no step) ' || wrong "something is not protected"
nothing_left n3 n4
if [[ ${ZERO_TEST_PICTURE-} ]]; then
	kill %tail 2>/dev/null
	reports=("$ZERO_REPORT"/zero-*.json)
	python3 "$top_srcdir/tests/slurm/picture.py" <(sort -n "$scratch/history") \
		"${reports[-1]}" >"$ZERO_TEST_PICTURE" || fail "no picture is drawn"
fi
