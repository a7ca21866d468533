#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job without zero is as if the plugin were not there: its tasks' environment, what is mapped into
# them, their open files, signals and limits, in steps and in batch scripts.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
cluster_start

# Differences between two jobs without any plugin. Comparing two rounds without it shows that these
# are all.
differs=(
	SLURM_JOB_ID SLURM_JOBID                      # counted up
	SLURM_TASK_PID                                # a process
	SLURM_SRUN_COMM_PORT SLURM_STEP_LAUNCHER_PORT # where srun listens
	PMIX_NAMESPACE                                # has the job's number
)
# Variables of some releases of Slurm and PMIx, left out only where these set them.
differs_in_some=(
	SLURM_JOB_START_TIME SLURM_JOB_END_TIME       # seconds
	SLURM_JOB_SLUID                               # counted up
	OMPI_MCA_orte_precondition_transports         # random
	PMIX_SERVER_TMPDIR PMIX_DSTORE_21_BASE_PATH # has the job's number
	PMIX_DSTORE_ESH_BASE_PATH                   # has the job's number
	'PMIX_SERVER_URI[0-9]*'                     # a process, and where it listens
	SLURM_PMIXP_ABORT_AGENT_PORT                # where srun listens
)

# leave_out NAME...: from now on
leave_out() {
	local IFS='|'
	pattern="^($*)="
}
leave_out "${differs[@]}" "${differs_in_some[@]}"

# Describes a task. The addresses of its mappings are random, and the number of PMIx's socket is one
# of several: they are left out.
cat >"$scratch/task.sh" <<'TASK'
#!/bin/bash
step=${SLURM_STEP_ID-script}
step=${step/#-*/script} # newer releases number a batch script's step -5
{
	env | sort
	awk 'NF > 5 {print "map", $2, $3, $6}' /proc/self/maps | sort
	for file in /proc/$$/fd/*; do
		# else it was the folder itself, or the script
		[[ -e $file && ! $file -ef $0 ]] || continue
		number=${file##*/} name=$(readlink "$file")
		((number < 3)) || number=another
		echo "open $number ${name%%:*}"
	done
	grep -E '^(Groups|Sig(Blk|Ign|Cgt)|Cap[A-Z].*|Threads|Cpus_allowed):' /proc/self/status
	ulimit -a
	echo "arguments $*"
	echo "input $(cat)"
} >"$OUT.$step.${SLURM_PROCID-0}"
exit 3
TASK
chmod +x "$scratch/task.sh"

cat >"$scratch/job.sh" <<JOB
#!/bin/bash
$scratch/task.sh </dev/null
srun -n 2 $scratch/task.sh <<<word
srun --mpi=pmix $scratch/task.sh <<<word
touch "\$OUT.ended"
exit 3
JOB
chmod +x "$scratch/job.sh"

# record NAME COMMAND...: writes its output to the folder of the round; checks the status of the
# task
record() {
	local name=$1
	shift
	OUT=$round/$name run "$@" <<<word
	((status == 3)) || {
		cat "$scratch/err" >&2
		cluster_logs
		fail "$name ended with status $status"
	}
	mv "$scratch/out" "$round/$name.out"
	mv "$scratch/err" "$round/$name.err"
}

# round NAME: runs jobs of all kinds; their output is in $scratch/NAME
round() {
	local name kept=$1
	round=$scratch/round
	mkdir "$round"
	OUT=$round/sbatch sbatch -w n1 -n 2 -o "$round/sbatch.out" "$scratch/job.sh" \
		>"$scratch/out" 2>&1
	check sbatch $?
	record srun srun -w n2 -N 1 -n 2 "$scratch/task.sh"
	record pmix srun --mpi=pmix -w n2 -N 1 -n 2 "$scratch/task.sh"
	record salloc salloc -w n2 -N 1 -n 2 "$scratch/job.sh"
	# a program's own arguments and variables
	record arguments srun -w n2 "$scratch/task.sh" --zero --zero-stage=2 --no-zero
	record arguments_on srun -w n2 "$scratch/task.sh" --zero --zero-stage=2
	record variables env ZERO_STAGE=zero2 ZERO_CHECK=1 srun -w n2 "$scratch/task.sh"
	record enabled_no env ZERO_ENABLED=no ZERO_STAGE=1 srun -w n2 "$scratch/task.sh"
	wait_for test -e "$round/sbatch.ended"
	cat "$round"/*.[0-9]* "$round"/*.script.* >"$scratch/all"
	# also job numbers, and messages of Slurm when it is busy
	sed -Ei "/$pattern/d; /^salloc: |^srun: ([Jj]ob [0-9]+ |Step created for )/d" "$round"/*.*
	# srun reports tasks that end at about the same time in one line or in several, in any
	# order.
	sed -Ei 's/^(srun: error: [^:]+:) tasks 0-1: (.*)/\1 task 0: \2\n\1 task 1: \2/' \
		"$round"/*.*
	for name in "$round"/*.*; do
		sort -o "$name" "$name"
	done
	mv "$round" "$scratch/$kept"
}

# same NAME: as the first round
same() {
	local file
	diff -r "$scratch/without" "$scratch/$1" >&2 || fail "$1: it differs"
}

round without
for name in "${differs[@]}"; do
	grep -qE "^$name=" "$scratch/all" || fail "no task has $name: it need not be left out"
done
for name in "${differs_in_some[@]}"; do
	grep -qE "^$name=" "$scratch/all" && differs+=("$name")
done
leave_out "${differs[@]}"
round "without, again"
same "without, again"
for file in sbatch.script.0 sbatch.0.0 sbatch.0.1 sbatch.1.0 srun.0.0 srun.0.1 pmix.0.1 \
		salloc.script.0; do
	[[ $(grep -c '^map .*/libc' "$scratch/without/$file") -gt 0 ]] || fail "$file tells nothing"
done

plugin_on
write_yaml <<YAML
enabled: opt-in
defaults: {preload_path: $libzero, stage: 1}
limits: {stream_chunk: {max: 1M}}
locked: [report]
env: {NCCL_SOCKET_IFNAME: lo}
YAML
round with
same with
write_yaml <<<'enabled: off'
round off
same off
write_yaml <<<'enabled: ['
round broken
same broken
