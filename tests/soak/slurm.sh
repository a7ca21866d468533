#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# 200 jobs of every kind start and end on three nodes: each has the state that it should have, no
# node is drained, nothing is left of a job, and the daemons hold no more memory and descriptors in
# the end. ZERO_TEST_JOBS and ZERO_TEST_SEED are others.
cluster_net=yes
. "${top_srcdir:?run me by make check-soak}/tests/common.sh"
# shellcheck source=tests/soak/soak.sh
. "$top_srcdir/tests/soak/soak.sh"
[[ ! ${CLUSTER_ALONE-} || ${CLUSTER_AGAIN-} ]] || own_folders
# shellcheck source=tests/slurm/cluster.sh
. "$top_srcdir/tests/slurm/cluster.sh"
[[ ${CLUSTER_ALONE-} ]] || skip slurm "no namespaces can be made"
need pmix
: "${ZERORUN:?}" "${ZERO_TEST_JOBS:=200}" "${ZERO_TEST_SEED:=$RANDOM}"
RANDOM=$ZERO_TEST_SEED
echo "ZERO_TEST_SEED=$ZERO_TEST_SEED"
if [[ ${TORCH_PYTHON-} ]]; then
	# shellcheck source=python/tests/torch.sh
	. "$top_srcdir/python/tests/torch.sh"
	unset ZERO_FSDP ZERO_DEEPSPEED
fi
# shellcheck source=tests/soak/jobs.sh
. "$top_srcdir/tests/soak/jobs.sh"

# slurmd asks once, as it starts, whether a plugin has an epilog. Jobs that have ended are forgotten
# before there are many.
cluster_adjust() {
	local folder
	plugin_on
	for folder in "$scratch" "${nodes[@]/#/$scratch/}"; do
		sed -i 's/^\(ProctrackType=proctrack\).*/\1\/cgroup/' "$folder/slurm.conf"
		echo MinJobAge=30 >>"$folder/slurm.conf"
		echo CgroupPlugin=cgroup/v1 >"$folder/cgroup.conf"
	done
	# an address besides the loopback's, without which no name has one
	ip link set lo up && ip link add zero0 type bridge && ip link set zero0 up &&
		ip addr add 10.77.0.254/24 dev zero0
}

# left: what there is beside processes: shared memory, temporary files, what nodes know of jobs,
# listening and named sockets, and control groups
left() {
	left_in_memory
	left_in_tmp
	find "$scratch/spool" "$scratch/tmp" ! -name 'cred_state*' ! -name hwloc_topo_whole.xml
	awk '$4 == "0A" {print $2}' /proc/net/tcp /proc/net/tcp6
	awk '$8 {print $8}' /proc/net/unix
	find /sys/fs/cgroup -path '*/slurm_n*/*' -type d
}

# This shell is the first process of its namespace, so that nobody else takes what is left.
is_quiet() {
	local all=(/proc/[0-9]*)
	((${#all[@]} == processes)) && [[ $(left) == "$before" ]]
}

# Slurm leaves the nodes' own.
no_groups() {
	find /sys/fs/cgroup/*/slurm_n[123] -depth -type d -exec rmdir {} +
	! compgen -G '/sys/fs/cgroup/*/slurm_n[123]'
}

within 60 no_groups || fail "another Slurm has groups of these nodes"
cluster_start
trap 'cluster_exit; within 60 no_groups' EXIT
before=$(left) all=(/proc/[0-9]*)
processes=${#all[@]} kinds=(plain report protected unprotected exits killed cancelled restarts)
for ((i = 1; i <= ZERO_TEST_JOBS; i++)); do
	kind=${kinds[RANDOM % ${#kinds[@]}]}
	((i % 100 != 50)) || kind=timeout
	((i % 40 != 20)) || [[ ! ${TORCH_PYTHON-} ]] || kind=torch
	submit
	[[ $way != srun ]] || wait
	soon is_over
	soon all_idle
	[[ $(scontrol -o show job) =~ \ JobName=soak$i\ .*\ JobState=([A-Z]+)\  ]]
	[[ ${BASH_REMATCH[1]-} == "$state" ]] || wrong "it is ${BASH_REMATCH[1]-}, not $state"
	within 60 is_quiet || {
		ps -ef
		diff <(echo "$before") <(left)
		wrong "the above is left"
	} >&2
	for daemon in slurmctld slurmd-n{1,2,3}; do
		sample "$scratch/$daemon.samples" "$(<"$scratch/$daemon.pid")" ||
			wrong "$daemon has ended"
	done
	echo "$kind by $way" >>"$scratch/jobs"
done
run_all sinfo -h -R
[[ ! -s $scratch/out ]] || fail "nodes are drained: $(<"$scratch/out")"
echo "$ZERO_TEST_JOBS jobs in $SECONDS s:"
sort "$scratch/jobs" | uniq -c
for daemon in slurmd-n{1,2,3}; do
	flat "$daemon" "$scratch/$daemon.samples" 2048
done
# It has none of the plugin in it, and knows of the jobs of the last minutes.
flat slurmctld "$scratch/slurmctld.samples" 4096
