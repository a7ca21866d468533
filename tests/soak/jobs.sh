# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The jobs of slurm.sh: number $i, of the kind $kind, which is started in the way $way.
program=$top_builddir/tests/ranks/protect report=$top_builddir/tests/slurm/report_task

wrong() {
	cat "$scratch/job.out" >&2
	cluster_logs
	fail "job $i, $kind by $way: $*; ZERO_TEST_SEED=$ZERO_TEST_SEED"
}

soon() {
	within 180 "$@" || wrong "waited in vain for: $*"
}

is_over() {
	local left
	left=$(squeue -h -n "soak$i" -o %i) && [[ ! $left ]]
}

stepped() {
	(($(grep -c '^step ' "$scratch/job.out") >= $1))
}

# start [FLAG...] -- TASK...: three ranks by srun, or in a batch script by srun or zerorun
start() {
	local job=(-J "soak$i" -N 3 -n 3 --time="$limit") tool=srun
	: >"$scratch/job.out"
	[[ $way != zerorun ]] || tool=$ZERORUN
	if [[ $way == srun ]]; then
		timeout 300 srun "${job[@]}" "$@" >"$scratch/job.out" 2>&1 </dev/null &
	else
		printf '#!/bin/bash\n%s\n' "exec $(printf '%q ' "$tool" "$@")" |
			sbatch -Q "${job[@]}" -o "$scratch/job.out" || wrong "sbatch failed"
	fi
}

# submit: a job of this kind; sets `state`, in which it has to end
submit() {
	local ways=(srun batch zerorun) ranks limit=10
	case $kind in
	plain | torch | timeout) ways=(srun batch) ;;
	restarts) ways=(zerorun) ;;
	esac
	way=${ways[RANDOM % ${#ways[@]}]} state=COMPLETED
	ZERO_RUN=$(printf %032x "$i")
	export ZERO_RUN
	# shellcheck disable=SC2016 # ranks expand it
	case $kind in
	plain) start --no-zero -- bash -c '[[ ! ${ZERO_RESOLVED-} ]]' ;;
	report) start --zero -- "$report" stage ;;
	protected) start --zero --zero-protect=1 -- "$program" 20 1 ;;
	unprotected) start --zero --zero-protect=no -- "$program" 20 1 ;;
	torch) start --zero -- "$TORCH_PYTHON" "$top_srcdir/python/tests/unedited.py" ddp ;;
	exits)
		state=FAILED
		start --zero -- bash -c '"$1" stage; exit $((SLURM_PROCID == 2))' - "$report"
		;;
	killed)
		state=FAILED
		start --zero -- "$program" 99 1 $((RANDOM % 3)) $((RANDOM % 9 + 1)) "$RANDOM"
		;;
	cancelled)
		state=CANCELLED
		start --zero -- "$program" 1000000 1
		soon stepped $((RANDOM % 30 + 1))
		scancel -n "soak$i"
		;;
	timeout)
		state=TIMEOUT limit=1
		start --zero -- "$program" 1000000 1
		;;
	restarts) # it waits before step 40, until a rank is killed
		rm -f "$scratch/40"
		GATES=$scratch start --max-restarts=1 -- "$program" 60 1
		soon stepped 39
		mapfile -t ranks < <(pgrep -x protect)
		kill -KILL "${ranks[RANDOM % 3]}" || wrong "ranks are ${ranks[*]}"
		touch "$scratch/40"
		;;
	esac
}
