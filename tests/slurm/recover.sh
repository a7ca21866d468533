#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zerorun --max-restarts in an allocation that loses nodes: the job goes on with a spare node, then
# with fewer ranks, and ends when too few are left. A node is lost with all its processes at once,
# or goes silent. A rank that is killed on a node that lives is started again there. The seconds are
# those from the fault until zerorun starts the job again, and until it has made a step.
# ZERO_TEST_LOSSES (1) is how often a node is replaced, and 9 with ZERO_TEST_LONG.
# shellcheck source=tests/slurm/nodes.sh
. "${top_srcdir:?run me by make check}/tests/slurm/nodes.sh"
need cblas files
: "${ZERORUN:?}" "${ZERO_TEST_LOSSES:=${ZERO_TEST_LONG:+9}}" "${ZERO_TEST_SEED:=$RANDOM}"
RANDOM=$ZERO_TEST_SEED
echo "seed $ZERO_TEST_SEED"
program=$top_builddir/examples/gpt log=$scratch/log
# Of a checkpoint a step has as many sequences at any number of ranks.
# With the file `lingers` a task does not end with its program.
cat >"$scratch/train" <<EOF
"$program" --text "$top_srcdir/LICENSE" --layers 2 --heads 2 --width 48 --context 64 \\
	--batch \$((12 / SLURM_NTASKS)) --steps 1000000 --checkpoint "$scratch/saved" \\
	--save-every 5 --log "$log"
status=\$?
((status == 0)) || [[ ! -e "$scratch/lingers" ]] || exec tail -f "$scratch/lingers"
exit \$status
EOF
cluster_start
plugin_on

# What zerorun has asked scancel.
mkdir "$scratch/bin"
cat >"$scratch/bin/scancel" <<EOF
#!/bin/sh
echo "\$*" >>"$scratch/cancelled"
exec "$(command -v scancel)" "\$@"
EOF
chmod +x "$scratch/bin/scancel"

# begin_job COMMAND...: in the background, and waits until it has saved
begin_job() {
	rm -rf "$scratch/saved" "$log"
	"$@" >"$scratch/job.out" 2>"$scratch/job.err" </dev/null &
	job=$! restarts=0
	soon has_lines 7
}

# start FLAG...: zerorun beside the nodes, in an allocation of all of them
start() {
	PATH=$scratch/bin:$PATH begin_job salloc -Q --no-kill -N 4 --ntasks-per-node=1 --gpus=8 \
		"$ZERORUN" "$@" bash "$scratch/train"
}

lines() {
	[[ ! -s $log ]] || wc -l <"$log"
}

has_lines() {
	(($(lines) >= $1))
}

# goes_on RANKS NODES WHAT: after the fault the job does, from a checkpoint, and says so
goes_on() {
	local restarted
	restarts=$((restarts + 1))
	soon said "$restarts" '^zerorun: .*: restart [0-9]+ of '
	restarted=$(now)
	# only now nobody of the attempt before writes
	soon has_lines $(($(lines) + 1))
	soon has_resumed
	[[ ! $1 ]] ||
		said 1 "^zerorun: the job continues with $1 ranks on $2: restart $restarts of " ||
		wrong "the job does not say that it continues with $1 ranks on $2"
	echo "$3: started again after $((restarted - began)) ms," \
		"a step after $(($(now) - began)) ms"
}

has_resumed() {
	[[ $(grep -c '^going on from ' "$scratch/job.out") == "$restarts" ]]
}

# stop: the job is asked to
stop() {
	pkill -TERM -P "$job" || wrong "there is no zerorun"
	wait "$job"
	wait_for no_steps
}

none_lingers() {
	! pgrep -f "^tail -f $scratch/lingers" >/dev/null
}

# lost_is_released LEFT: these nodes alone are the job's
lost_is_released() {
	[[ $(squeue -h -o %N) == "$1" ]]
}

# ---- one node after the other, until too few are left

touch "$scratch/lingers"
start --max-restarts=9 --spare-nodes=1 --min-ranks=2
lose node_kill n2
goes_on 3 n1,n3,n4 "a node is killed, a spare replaces it"
# which Slurm would do later, when it releases the node
grep -qx -- "--ctld --signal=KILL [0-9]*\.0" "$scratch/cancelled" ||
	wrong "zerorun does not end the step that has lost a node"
soon none_lingers
rm "$scratch/lingers"
said 1 '^zerorun: node n2 is lost after .*: its slurmd has ended$' || wrong "n2 is not named"
soon lost_is_released "n[1,3-4]"
# rank 0's
lose node_silence n1
goes_on 2 n3,n4 "a node goes silent, fewer ranks go on"
said 1 '^zerorun: node n1 is lost after .*: it does not answer$' || wrong "n1 is not named"
lose node_kill n4
ended 137
tail -n 1 "$scratch/job.err" | grep -qx "zerorun: the job cannot go on: 1 node is left for 1 rank, \
fewer than --min-ranks=2" || wrong "the job does not say why it does not go on"
[[ ! $(ls "$top_builddir"/slurm_job_*_resize.* slurm_job_*_resize.* 2>/dev/null) ]] ||
	wrong "scontrol left scripts"
back n1 n2 n4

# ---- a rank on a node that lives, and a job that has to have all ranks

start --max-restarts=9
lose kill_rank 1
goes_on "" "" "a rank is killed"
said 1 'restart 1 of 9 in 1 s$' || wrong "the job is not started again as it was"
said 0 ' is lost after ' || wrong "a node is named"
# a switch, say; one of them is named by the library
ip link set to_n4 down
node_silence n3
ended 137
node_kill n4
said 2 "^zerorun: node n[34] is lost after .*: it does not answer$" ||
	wrong "the lost nodes are not named"
said 1 "^zerorun: the job cannot go on: 2 nodes are left for 2 of its 4 ranks \(" ||
	wrong "the job does not say why it does not go on"
back n3 n4

# ---- in a batch script, whose job Slurm does not requeue for a node that it has lost before

cat >"$scratch/batch" <<EOF
#!/bin/bash
exec "$ZERORUN" --max-restarts=9 --spare-nodes=1 bash "$scratch/train"
EOF
begin_job sbatch --wait -Q -N 4 --ntasks-per-node=1 --requeue -o "$scratch/job.out" \
	-e "$scratch/job.err" "$scratch/batch"
lose node_kill n3
goes_on 3 n1,n2,n4 "a node of a batch job is killed"
soon lost_is_released "n[1-2,4]"
scontrol update NodeName=n3 State=DOWN Reason=test
soon has_lines $(($(lines) + 3))
[[ $(squeue -h -o %T) == RUNNING ]] || wrong "the batch job is not running"
has_resumed || wrong "the batch job was started again"
scancel "$(squeue -h -o %i)"
wait "$job"
back n3

# ---- more of them, with nodes that are replaced

for ((i = 1; i < ZERO_TEST_LOSSES; i++)); do
	deed=node_kill node=n$((RANDOM % 3 + 1))
	((RANDOM % 2)) || deed=node_silence
	start --max-restarts=9 --spare-nodes=1
	lose "$deed" "$node"
	left=n1,n2,n3,n4
	left=${left/$node,/}
	goes_on 3 "$left" "$deed $node"
	stop
	back "$node"
done

# ---- what cannot be

# refused FLAGS SENTENCE
refused() {
	run salloc -Q -N 2 --ntasks-per-node=2 "$ZERORUN" --max-restarts=1 "$1" true
	((status == 2)) || wrong "$1: status $status: $(<"$scratch/err")"
	grep -qxF "zerorun: $2" "$scratch/err" || wrong "$1: $(<"$scratch/err")"
}
: >"$scratch/job.err"
refused --spare-nodes=2 "--spare-nodes=2: the allocation has 2 nodes"
refused --min-ranks=5 "--min-ranks=5: the job has 4 ranks"
