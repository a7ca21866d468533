# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A real Slurm of three nodes on this machine, for tests: `cluster_start` in a folder and on ports
# of its own, `cluster_stop` whatever happened. Needs root, munge, slurmctld and slurmd. `make demo`
# has words of its own for what fails.
# shellcheck source=tests/common.sh
[[ $(type -t skip) == function ]] || . "${top_srcdir:?run me by make check}/tests/common.sh"

need slurm yaml mpi
for command in slurmctld slurmd munge srun; do
	need_command "$command" slurm
done
((EUID == 0)) || skip slurm "only root can start slurmd"
mountpoint -q /sys/fs/cgroup || skip slurm "slurmd wants control groups, and none are mounted"

munge_answers() {
	timeout 60 munge -n </dev/null >/dev/null 2>&1
}

# One that was killed leaves a socket behind, which only --force takes over.
start_munge() {
	munge_answers || timeout 60 service munge start </dev/null >/dev/null 2>&1
	munge_answers || timeout 60 runuser -u munge -- munged --force </dev/null >/dev/null 2>&1
	munge_answers || skip slurm "munge does not start"
}

# In a process namespace of its own nothing outlives the test, and what it kills is its own.
if [[ -z ${CLUSTER_ALONE-} ]]; then
	start_munge
	alone=(unshare --pid --ipc --fork --kill-child --mount-proc ${cluster_net:+--net})
	if "${alone[@]}" true 2>/dev/null; then
		CLUSTER_ALONE=yes exec "${alone[@]}" bash "$0" "$@"
	fi
fi

began_in=$PWD
began_with=("$@")
nodes=(n1 n2 n3)
libzero=$top_builddir/lib/.libs/libzero.so
scratch
export SLURM_CONF=$scratch/slurm.conf
unset PMIX_MCA_psec # munge answers here
# What this shell may have inherited from a job that it runs in.
for name in "${!SLURM_@}" "${!ZERO_@}"; do
	[[ $name == SLURM_CONF || $name == ZERO_HAVE || $name == ZERO_REQUIRE ||
		$name == ZERO_TEST_* ]] || unset "$name"
done
# These nodes are one machine: Open MPI finds the others by the loopback device.
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_mpi_yield_when_idle=1
# What it shares itself goes by names that nodes of one machine have in common.
export OMPI_MCA_btl=self,tcp

# free_ports COUNT: the first of COUNT neighbouring ports on which nobody listens.
free_ports() {
	local first port taken
	taken=" $(awk '$4 == "0A" {split($2, at, ":"); print at[2]}' /proc/net/tcp /proc/net/tcp6 |
		while read -r port; do echo $((16#$port)); done | tr '\n' ' ') "
	for _ in {1..50}; do
		first=$((10000 + RANDOM % 6000)) # the plugin's MASTER_PORT begins at 16384
		for ((port = first; port < first + $1; port++)); do
			[[ $taken == *" $port "* ]] && continue 2
		done
		echo "$first"
		return
	done
	fail "no $1 free ports"
}

# Slurm's configuration: the submit host's in $scratch, each node's in $scratch/NODE. They differ in
# plugstack.conf alone, so that a node can have another zero.yaml, or a broken one. Jobs have other
# numbers than those of a cluster beside this one, since Open MPI's shared memory and MASTER_PORT
# are named after them. A job that asks for nothing leaves room for others, so that none waits for
# what is left of the one before; one that waits is not left to a clock. Timeouts end a hang alone.
write_config() {
	local host port node folder first_job=$((RANDOM * 1000 + 1))
	host=$(hostname -s)
	port=$(free_ports 4)
	mkdir -p "$scratch/dev"
	if ! mknod "$scratch/dev/nvidia0" c 195 0 || ! mknod "$scratch/dev/nvidia1" c 195 1; then
		skip slurm "no device nodes can be made in $scratch"
	fi
	for node in "" "${nodes[@]}"; do
		folder=$scratch${node:+/$node}
		mkdir -p "$folder"
		cat >"$folder/slurm.conf" <<CONF
ClusterName=zero
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
DebugFlags=NO_CONF_HASH
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
FirstJobId=$first_job
SchedulerParameters=bf_interval=1,sched_min_interval=20000,batch_sched_delay=0
KillWait=2
ScronParameters=enable
MessageTimeout=60
TCPTimeout=60
BatchStartTimeout=120
DefMemPerNode=1000
GresTypes=gpu
PlugStackConfig=$folder/plugstack.conf
NodeName=n[1-3] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 3))] \
CPUs=16 RealMemory=16000 Gres=gpu:2
PartitionName=test Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
PartitionName=small Nodes=n[1-3] MaxTime=INFINITE State=UP
CONF
		cat >"$folder/gres.conf" <<CONF
AutoDetect=off
NodeName=n[1-3] Name=gpu File=$scratch/dev/nvidia[0-1]
CONF
		: >"$folder/plugstack.conf"
	done
}

# plugin_on: from the next command and step on, as $plugin_mode says: optional (the default) or
# required. The submit host and each node have a zero.yaml of their own, by which tasks load the
# library of this build. What NVML's stand-in says of a node's GPUs is $scratch/NODE.gpus; without
# that file there are none.
plugin_on() {
	local node folder
	for node in "" "${nodes[@]}"; do
		folder=$scratch${node:+/$node}
		echo "${plugin_mode-optional} $scratch/spank_zero.so config=$folder/zero.yaml" \
			"nvml=$scratch/nvml.so" >"$folder/plugstack.conf"
	done
	write_yaml <<<"defaults: {preload_path: $libzero}"
}

plugin_off() {
	local node
	for node in "" "${nodes[@]}"; do
		: >"$scratch${node:+/$node}/plugstack.conf"
	done
}

# write_yaml [NODE...] <YAML: the file of these nodes, or of all and the submit host. Its first
# line, `version: 1`, is written here.
write_yaml() {
	local text node
	text=$(cat)
	(($#)) || set -- "" "${nodes[@]}"
	for node; do
		printf 'version: 1\n%s\n' "$text" >"$scratch${node:+/$node}/zero.yaml"
	done
}

no_daemons() {
	! pgrep -f "slurm(ctl|step)?d.*$scratch" >/dev/null
}

stop_slurmds() {
	local pid
	for pid in "$scratch"/slurmd-*.pid; do
		[[ -s $pid ]] && kill "$(<"$pid")" 2>/dev/null
	done
}

cluster_stop() {
	local pid
	[[ -s $scratch/slurmctld.pid ]] && kill "$(<"$scratch/slurmctld.pid")" 2>/dev/null
	stop_slurmds
	within 60 no_daemons
	pkill -KILL -f "slurm(ctl|step)?d.*$scratch"
	# What is left of steps is known by its folder, and what they run by its environment.
	for pid in $({
		find /proc/[0-9]*/cwd -maxdepth 0 -lname "$scratch*"
		grep -lz "^SLURM_CONF=$scratch/" /proc/[0-9]*/environ
	} 2>/dev/null | cut -d/ -f3); do
		[[ $pid == "$$" ]] || kill -KILL "$pid" 2>/dev/null
	done
	rm -rf "$scratch"
}

# What the cluster does and what the daemons wrote, for a test that fails.
cluster_logs() {
	{
		timeout 60 sinfo -N -o '%N %P %T %E'
		timeout 60 squeue
		tail -n 20 "$scratch"/*.log
	} >&2
}

# dead_slurmd: the node whose slurmd has ended without a word. One that is stopped takes its file
# away.
dead_slurmd() {
	local file
	for file in "$scratch"/slurmd-*.pid; do
		[[ ! -s $file ]] || kill -0 "$(<"$file")" 2>/dev/null ||
			basename "${file#*/slurmd-}" .pid
	done
}

# Slurm 22.05's slurmd can break its own heap where several steps start on its node at once. No
# slurmd has the plugin in it, which faults.sh asserts, so a test that fails beside one that died
# begins once more.
cluster_exit() {
	local status=$? dead
	dead=$(dead_slurmd)
	cluster_stop
	if ((status != 0)) && [[ $dead && -z ${CLUSTER_AGAIN-} ]]; then
		echo "slurmd of ${dead//$'\n'/ } died by itself: the test begins once more" >&2
		cd "$began_in" && CLUSTER_AGAIN=yes exec bash "$0" "${began_with[@]}"
	fi
}

start_slurmd() {
	slurmd -f "$scratch/$1/slurm.conf" -N "$1"
}

# cluster_start: a test may change the configuration in a function cluster_adjust of its own.
cluster_start() {
	local node
	mkdir "$scratch/state"
	cp "$top_builddir/spank/.libs/spank_zero.so" "$top_builddir/tests/double/.libs/nvml.so" \
		"$scratch" || fail "the plugin is not built"
	for node in "${nodes[@]}"; do
		mkdir -p "$scratch/spool/$node" "$scratch/tmp/$node"
	done
	write_config
	if [[ $(type -t cluster_adjust) == function ]]; then
		cluster_adjust
	fi
	trap cluster_exit EXIT
	slurmctld -f "$SLURM_CONF" || fail "slurmctld does not start"
	for node in "${nodes[@]}"; do
		start_slurmd "$node" || echo "slurmd of $node does not start" >&2 &
	done
	wait_for all_idle
}

# ---- waiting

# within SECONDS COMMAND...: tries until it succeeds; if it does not in that time, this fails.
within() {
	local end=$((SECONDS + $1))
	shift
	until "$@" 2>/dev/null; do
		((SECONDS <= end)) || return
		sleep 0.02
	done
}

# wait_for COMMAND...: the same for as long as a busy machine may need, and then it is the test that
# fails.
wait_for() {
	within 120 "$@" && return
	cluster_logs
	fail "waited in vain for: $*"
}

# all_idle: so are the nodes.
all_idle() {
	[[ $(sinfo -h -p test -o %D -t idle) == "${#nodes[@]}" ]]
}

# are_over JOB...
are_over() {
	local jobs=$* left
	left=$(squeue -h -j "${jobs// /,}") && [[ -z $left ]]
}

# no_steps: none runs.
no_steps() {
	local left
	left=$(squeue -h -s -o %i) && [[ -z $left ]]
}

# takes_again JOB: a job that was requeued has ended on its nodes, batch script and all, more than a
# second ago. A node that has ended it in this second would not start it again: it tells the runs of
# a job by the seconds in which they begin.
takes_again() {
	[[ $(squeue -h -j "$1" -o %T) == PENDING ]] &&
		! pgrep -f "^slurmstepd: \[$1\." >/dev/null && sleep 1.1
}

# ---- running

# run COMMAND...: leaves its $status, and what it said in $scratch/out and $scratch/err. One that
# hangs has status 124.
run() {
	timeout -k 5 120 "$@" >"$scratch/out" 2>"$scratch/err"
	status=$?
}

# begin NAME COMMAND...: beside what follows. `ended NAME` waits for it, and leaves what run does.
declare -A begun
begin() {
	timeout -k 5 120 "${@:2}" >"$scratch/$1.out" 2>"$scratch/$1.err" </dev/null &
	begun[$1]=$!
}

ended() {
	wait "${begun[$1]}"
	status=$?
	mv "$scratch/$1.out" "$scratch/out"
	mv "$scratch/$1.err" "$scratch/err"
}

# ended_well NAME: so, and what it said on standard error is in $scratch/out too, at the end.
ended_well() {
	ended "$1"
	cat "$scratch/err" >>"$scratch/out"
	check "$1" "$status"
}

# run_all COMMAND...: and what it said on standard error is in $scratch/out too, at the end.
run_all() {
	run "$@"
	cat "$scratch/err" >>"$scratch/out"
}

# ran WHAT COMMAND...: so, and it ends well.
ran() {
	local what=$1
	shift
	run_all "$@"
	check "$what" "$status"
}

# check WHAT STATUS: of the command that just ran, whose output is in $scratch/out.
check() {
	(($2 == 0)) && return
	cat "$scratch/out" >&2
	cluster_logs
	fail "$1 ended with status $2"
}

# ran_batch WHAT ARGUMENT...: a job of sbatch with these ends well; what it said is in $scratch/out.
# sbatch --wait would ask for its end too rarely.
ran_batch() {
	local what=$1 job
	job=$(timeout 60 sbatch --parsable -o "$scratch/out" "${@:2}") ||
		fail "$what: sbatch failed"
	wait_for are_over "$job"
	[[ $(scontrol -o show job "$job") == *" JobState=COMPLETED "* ]]
	check "$what" $?
}
