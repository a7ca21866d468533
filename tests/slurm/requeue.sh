#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/requeue.sbatch as it stands there: a job that gets the signal of a time limit saves, goes
# back to the queue and on from where it was, also after a node's failure, and its losses are those
# of a run that nothing happened to, to the last bit. ZERO_TEST_TIME_LIMIT=1 waits for a real limit.
limit=${ZERO_TEST_TIME_LIMIT-} # a cluster's test forgets such variables
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
need cblas files
: "${ZERORUN:?}"
gpt=$top_builddir/examples/gpt steps=120
[[ ! $limit ]] || steps=400
train=(--text "$top_srcdir/LICENSE" --layers 2 --heads 2 --width 48 --context 64 --steps "$steps"
	--save-every 20)
log=$scratch/log saved=$scratch/saved
cluster_start
plugin_on

bits() {
	sed 's/.*"loss_bits": "\([0-9a-f]*\)".*/\1/' "$1"
}

has_lines() {
	[[ -s $log ]] && (($(wc -l <"$log") >= $1))
}

# state NAME: the job is in it
state() {
	[[ $(squeue -h -j "$job" -o %T) == "$1" ]]
}

# A job that is requeued waits two minutes, since a node takes none that it has ended in this
# second.
begins() {
	state RUNNING || scontrol update "JobId=$job" StartTime=now
	state RUNNING
}

# goes_on COUNT: it has done so that many times, and made some steps since
goes_on() {
	local from
	[[ $(grep -c '^going on from ' "$scratch/job.out") == "$1" ]] || return
	from=$(sed -n 's/^going on from .*step-0*//p' "$scratch/job.out" | tail -n 1)
	has_lines $((from + 5))
}

# requeued COUNT: so often it was, and what ran has ended
requeued() {
	[[ $(scontrol show job "$job") == *" Restarts=$1 "* ]] && no_steps && takes_again "$job"
}

# expect_lines COUNT PATTERN: checks how many lines of the job's output match
expect_lines() {
	[[ $(grep -cE "$2" "$scratch/job.out") == "$1" ]] ||
		fail "not $1 lines of '$2': $(<"$scratch/job.out")"
}

ran "without a break" "$ZERORUN" -n 3 "$gpt" "${train[@]}" --log "$scratch/whole"

times=(--time=10)
[[ ! $limit ]] || times=(--time=1 --signal=USR1@45)
job=$(sbatch --parsable -N 3 -n 3 "${times[@]}" -o "$scratch/job.out" \
	"$top_srcdir/examples/requeue.sbatch" "$gpt" "${train[@]}" --checkpoint "$saved" \
	--log "$log") ||
	fail "sbatch failed"

# What Slurm does before the limit.
wait_for has_lines 10
[[ $limit ]] || scancel --signal=USR1 "$job"
wait_for requeued 1
expect_lines 1 '^stopped by a signal after step [0-9]+/'
expect_lines 1 '^run 0 has stopped and is requeued$'
wait_for begins

# A node is lost: Slurm requeues the job by itself. What it still could save it may have saved.
wait_for goes_on 1
scontrol update NodeName=n2 State=DOWN Reason=test
wait_for requeued 2
expect_lines 1 ' is requeued$'
scontrol update NodeName=n2 State=RESUME 2>/dev/null # it may have come back by itself
wait_for begins

# What a preemption sends.
wait_for goes_on 2
scancel --signal=TERM "$job"
wait_for requeued 3
expect_lines 1 '^run 2 has stopped and is requeued$'

# From here on nothing happens but the limit, if there is one.
ends() {
	are_over "$job" || { begins && false; }
}
wait_for ends
diff <(bits "$scratch/whole") <(bits "$log") >&2 || {
	cat "$scratch/job.out" >&2
	fail "the job's losses are other ones"
}
grep -E '^(stopped|run|going)' "$scratch/job.out"
