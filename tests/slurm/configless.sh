#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Nodes without a configuration of their own, which get plugstack.conf from slurmctld: the plugin
# works there, with the zero.yaml that the line names on each node.
# shellcheck source=tests/slurm/given.sh
. "${top_srcdir:?run me by make check}/tests/slurm/given.sh"

# slurmd leaves a link there to what it has fetched: in a name space of the test's own, nobody else
# sees that.
[[ -n ${CLUSTER_ALONE-} ]] || skip slurm "unshare makes no name space"
made=
mkdir /run/slurm 2>/dev/null && made=/run/slurm
mount -t tmpfs tmpfs /run/slurm || skip slurm "nothing can be mounted on /run/slurm"

# Without PlugStackConfig, Slurm takes the plugstack.conf beside slurm.conf, and sends it.
cluster_adjust() {
	local node
	sed -i '/^PlugStackConfig=/d' "$SLURM_CONF"
	echo SlurmctldParameters=enable_configless >>"$SLURM_CONF"
	for node in "${nodes[@]}"; do
		rm -r "${scratch:?}/$node"
	done
}
start_slurmd() {
	local port
	port=$(sed -n 's/^SlurmctldPort=//p' "$scratch/slurm.conf")
	env -u SLURM_CONF slurmd -N "$1" --conf-server "127.0.0.1:$port"
}
cluster_start
trap 'cluster_stop; umount /run/slurm; [[ -z $made ]] || rmdir "$made"' EXIT

# As an admin does it: the line in plugstack.conf, itself rather than in a file that is included,
# and scontrol reconfigure.
line="optional $scratch/spank_zero.so config=$scratch/zero.yaml nvml=$scratch/nvml.so"
echo "$line" >"$scratch/plugstack.conf"
write_yaml "" <<<"defaults: {preload_path: $libzero, stage: 2}"
timeout 60 scontrol reconfigure || fail "scontrol reconfigure failed"
for node in "${nodes[@]}"; do
	wait_for grep -qF "$line" "$scratch/spool/$node/conf-cache/plugstack.conf"
done
wait_for all_idle

ran "srun" srun --zero -N 3 -n 3 "$given"
has_lines "srun" 3 'library=mapped zero=stage=2 '
numbered "srun" 3

# in a job, srun knows no other configuration than what slurmd has fetched
echo "#!/bin/bash
unset SLURM_CONF
$(command -v srun) $given step" >"$scratch/job.sh"
ran_batch "sbatch" --zero-stage=1 -N 2 -n 2 "$scratch/job.sh"
has_lines "sbatch" 2 'library=mapped zero=stage=1 .*step=step$'
