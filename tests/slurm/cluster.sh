# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A real Slurm of three nodes on this machine, for tests: `cluster_start` in a folder and on ports of
# its own, `cluster_stop` whatever happened. Needs root, munge, slurmctld and slurmd.
# shellcheck source=tests/common.sh
. "${top_srcdir:?run me by make check}/tests/common.sh"

need slurm mpi
for command in slurmctld slurmd munge srun; do
	need_command "$command" slurm
done
((EUID == 0)) || skip slurm "only root can start slurmd"
mountpoint -q /sys/fs/cgroup || skip slurm "slurmd wants control groups, and none are mounted"

nodes=(n1 n2 n3)
scratch
export SLURM_CONF=$scratch/slurm.conf
# What this shell may have inherited from a job that it runs in.
unset "${!SLURM_JOB@}" "${!SLURM_STEP@}" SLURM_PROCID SLURM_NTASKS SLURM_MPI_TYPE
# These nodes are one machine: Open MPI finds the others by the loopback device.
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_mpi_yield_when_idle=1

# free_ports COUNT: the first of COUNT neighbouring ports on which nobody listens.
free_ports() {
	local first port taken
	taken=" $(awk '$4 == "0A" {split($2, at, ":"); print at[2]}' /proc/net/tcp /proc/net/tcp6 |
		while read -r port; do echo $((16#$port)); done | tr '\n' ' ') "
	for _ in {1..50}; do
		first=$((20000 + RANDOM % 10000))
		for ((port = first; port < first + $1; port++)); do
			[[ $taken == *" $port "* ]] && continue 2
		done
		echo "$first"
		return
	done
	fail "no $1 free ports"
}

write_config() {
	local host port
	host=$(hostname -s)
	port=$(free_ports 4)
	cat >"$SLURM_CONF" <<CONF
ClusterName=zero
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool/%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd-%n.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd-%n.log
TmpFS=$scratch/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
PlugStackConfig=$scratch/plugstack.conf
NodeName=n[1-3] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 3))] CPUs=8 RealMemory=4000
PartitionName=test Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
CONF
	: >"$scratch/plugstack.conf"
}

cluster_stop() {
	local pid
	for pid in "$scratch"/*.pid; do
		[[ -s $pid ]] && kill "$(<"$pid")" 2>/dev/null
	done
	for _ in {1..150}; do
		pgrep -f "slurm(ctl|step)?d.*$scratch" >/dev/null || break
		sleep 0.1
	done
	pkill -KILL -f "slurm(ctl|step)?d.*$scratch"
	rm -rf "$scratch"
}

# What the daemons wrote, for a test that fails.
cluster_logs() {
	tail -n 20 "$scratch"/*.log >&2
}

munge_answers() {
	timeout 5 munge -n </dev/null >/dev/null 2>&1
}

# One that was killed leaves a socket behind, which only --force takes over.
start_munge() {
	munge_answers || timeout 20 service munge start </dev/null >/dev/null 2>&1
	munge_answers || timeout 20 runuser -u munge -- munged --force </dev/null >/dev/null 2>&1
	munge_answers || skip slurm "munge does not start"
}

cluster_start() {
	local node
	mkdir "$scratch/state"
	for node in "${nodes[@]}"; do
		mkdir -p "$scratch/spool/$node" "$scratch/tmp/$node"
	done
	write_config
	trap cluster_stop EXIT
	start_munge
	slurmctld -f "$SLURM_CONF" || fail "slurmctld does not start"
	for node in "${nodes[@]}"; do
		slurmd -f "$SLURM_CONF" -N "$node" || fail "slurmd of $node does not start"
	done
	for _ in {1..100}; do
		[[ $(sinfo -h -o %D -t idle 2>/dev/null) == "${#nodes[@]}" ]] && return
		sleep 0.2
	done
	cluster_logs
	fail "the cluster's nodes did not come up: $(sinfo 2>&1)"
}
