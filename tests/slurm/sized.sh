# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests of what tasks of a real cluster get for their memory: `step` runs tasks that print it,
# and `same` compares what the test's function `tasks` makes of that.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"

# A task's rank, node, CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and facts.
cat >"$scratch/task" <<'END'
#!/bin/sh
echo "task $SLURM_PROCID $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES-unset}" \
	"${CUDA_DEVICE_ORDER-unset} $ZERO_RESOLVED"
END
chmod +x "$scratch/task"

# step WANTED ARGUMENT...: tasks of zero with these arguments of srun, which ends with status 0 or
# not; which other one is a matter of how soon Slurm ends the rest
step() {
	local wanted=$1
	shift
	what="srun $*${CUDA_VISIBLE_DEVICES+, with CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES}"
	run srun -Q --zero "$@" "$scratch/task"
	(((status == 0) == (wanted == 0))) && return
	cat "$scratch/err" >&2
	cluster_logs
	fail "$what ended with status $status"
}

# same <EXPECTED: the tasks' lines of the last run
same() {
	diff <(sed 's/ *$//') <(tasks | sed 's/ *$//') >&2 && return
	cat "$scratch/out" "$scratch/err" >&2
	fail "$what: wanted (<) and found (>) differ"
}

# printed [NODE SENTENCE]...: checks that the plugin printed these in the last run, and nothing else
printed() {
	local wanted=$#
	[[ $(grep -c spank_zero "$scratch/err") == $((wanted / 2)) ]] ||
		fail "$what: $((wanted / 2)) lines were expected: $(<"$scratch/err")"
	while (($#)); do
		grep -q "spank_zero: node $1: $2" "$scratch/err" ||
			fail "$what: no '$2' of $1: $(<"$scratch/err")"
		shift 2
	done
}

is_gone() {
	! kill -0 "$1"
}

# stop PIDFILE: that daemon
stop() {
	local pid
	pid=$(<"$1")
	kill "$pid"
	wait_for is_gone "$pid"
}

# restart_slurmd NODE: with what its files say now
restart_slurmd() {
	local log=$scratch/slurmd-$1.log before
	before=$(grep -c 'slurmd started' "$log")
	stop "$scratch/slurmd-$1.pid"
	slurmd -f "$scratch/$1/slurm.conf" -N "$1" || fail "slurmd of $1 does not start again"
	wait_for has_more_starts "$log" "$before"
	wait_for all_idle
}

has_more_starts() {
	(($(grep -c 'slurmd started' "$1") > $2))
}
