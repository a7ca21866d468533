# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The Slurm of cluster.sh with four nodes n1 to n4 that can be lost: each has a network address, a
# hostname, processes, /dev/shm and shared memory of its own. The test itself and slurmctld run
# beside them, as on a login node. All of it is in namespaces, so that nothing is left behind
# whatever happens. A test sources this file instead of cluster.sh and calls cluster_start; then
#
#   node_kill NODE     ends all processes of a node at once; connections to it are reset
#   node_silence NODE  takes it off the network first, so that nobody learns of its end
#   node_boot NODE     starts it again, with an empty /dev/shm
cluster_net=yes
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
for command in ip nsenter; do
	need_command "$command" slurm
done
[[ ${CLUSTER_ALONE-} ]] || skip slurm "no namespaces can be made"

nodes=(n1 n2 n3 n4)
export OMPI_MCA_btl_tcp_if_include=eth0

# The addresses of the nodes, and of the test.
node_address() {
	echo "10.77.0.${1#n}"
}
outside_address=10.77.0.254

# The mount namespace is the test's own.
nodes_connect() {
	local node
	ip link set lo up && ip link add zero0 type bridge && ip link set zero0 up &&
		ip addr add "$outside_address/24" dev zero0 ||
		skip slurm "no bridge can be made in a network namespace"
	mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns ||
		skip slurm "nothing can be mounted"
	{
		echo "127.0.0.1 localhost"
		echo "$outside_address $(hostname -s)"
		for node in "${nodes[@]}"; do
			echo "$(node_address "$node") $node"
		done
	} >"$scratch/hosts"
	mount --bind "$scratch/hosts" /etc/hosts || fail "/etc/hosts cannot be replaced"
	for node in "${nodes[@]}"; do
		ip netns add "$node" &&
			ip link add "to_$node" type veth peer name eth0 netns "$node" &&
			ip link set "to_$node" master zero0 up &&
			ip -n "$node" link set lo up &&
			ip -n "$node" addr add "$(node_address "$node")/24" dev eth0 &&
			ip -n "$node" link set eth0 up || fail "$node has no network"
	done
}

# srun waits for a lost node as long as it does elsewhere. A process id of a node's says nothing
# outside of it, so that no file with one is where cluster.sh looks for them.
nodes_adjust() {
	local folder node port
	nodes_connect
	for folder in "$scratch" "${nodes[@]/#/$scratch/}"; do
		port=$(sed -n 's/^SlurmctldPort=//p' "$folder/slurm.conf")
		sed -i -e "s/^SlurmctldHost=.*/SlurmctldHost=$(hostname -s)($outside_address)/" \
			-e "s|^SlurmdPidFile=.*|SlurmdPidFile=$scratch/%n/slurmd.pid|" \
			-e 's/^KillWait=.*/KillWait=30/; s/Nodes=n\[1-3\]/Nodes=n[1-4]/' \
			-e '/^NodeName=/d' "$folder/slurm.conf"
		sed -i 's/n\[1-3\]/n[1-4]/' "$folder/gres.conf"
		for node in "${nodes[@]}"; do
			echo "NodeName=$node NodeAddr=$(node_address "$node") Port=$((port + 1))" \
				"CPUs=4 RealMemory=4000 Gres=gpu:2"
		done >>"$folder/slurm.conf"
	done
}

# A test that has changes of its own makes these too.
cluster_adjust() {
	nodes_adjust
}

# The first process of a node, with which all others end, waits for slurmd.
start_slurmd() {
	# shellcheck disable=SC2016 # the node expands it
	nsenter --net="/run/netns/$1" unshare --uts --ipc --mount --pid --fork --kill-child \
		--mount-proc bash -c 'hostname "$1" && mount -t tmpfs tmpfs /dev/shm &&
			slurmd -D -f "$2" -N "$1"; exit' - "$1" "$scratch/$1/slurm.conf" \
		</dev/null >"$scratch/$1/slurmd.out" 2>&1 &
	echo $! >"$scratch/$1/node"
	disown # its end is no news
}

node_is_gone() {
	[[ ! $(ip netns pids "$1") ]]
}

node_kill() {
	kill -KILL "$(<"$scratch/$1/node")" || fail "$1 had ended by itself"
	wait_for node_is_gone "$1"
}

node_silence() {
	ip link set "to_$1" down && node_kill "$1"
}

node_boot() {
	ip link set "to_$1" up && start_slurmd "$1"
}

stop_slurmds() {
	local node
	for node in "${nodes[@]}"; do
		[[ ! -s $scratch/$node/node ]] ||
			kill -KILL "$(<"$scratch/$node/node")" 2>/dev/null
	done
}

# node_memory NODE: the path of its /dev/shm
node_memory() {
	local first
	first=$(pgrep -P "$(<"$scratch/$1/node")") || fail "$1 has ended by itself"
	echo "/proc/$first/root/dev/shm"
}

# ---- a job that loses nodes: $job, whose standard error is $scratch/job.err

# milliseconds
now() {
	echo $((${EPOCHREALTIME/./} / 1000))
}

wrong() {
	cat "$scratch/job.err" "$scratch/job.out" >&2
	cluster_logs
	fail "$*${ZERO_TEST_SEED+; ZERO_TEST_SEED=$ZERO_TEST_SEED}"
}

# soon COMMAND...: it succeeds before long
soon() {
	within 60 "$@" || wrong "waited in vain for: $*"
}

# said COUNT PATTERN: so many lines of the job match
said() {
	[[ $(grep -cE "$2" "$scratch/job.err") == "$1" ]]
}

# lose DEED NODE: node_kill or node_silence, or kill_rank with a rank
lose() {
	began=$(now)
	"$1" "$2"
}

# kill_rank RANK: of $program; what runs it is one of several processes that have its environment
kill_rank() {
	local pid
	for pid in $(pgrep -f "^$program "); do
		[[ $(readlink "/proc/$pid/exe") == */"${program##*/}" ]] || continue
		grep -qz "^SLURM_PROCID=$1$" "/proc/$pid/environ" && kill -KILL "$pid" && return
	done
	wrong "there is no rank $1"
}

# ended STATUS
ended() {
	wait "$job"
	status=$?
	((status == $1)) || wrong "the job ended with status $status, not $1"
}

# back NODE...: they are nodes of the cluster again
back() {
	local node
	for node; do
		node_boot "$node"
	done
	wait_for all_idle
}
