#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each task is sized by the GPUs that it can open, on a node whose control groups hide the others:
# real device groups (v1), eight device files, and a driver that shows what the process may open.
# shellcheck source=tests/slurm/sized.sh
. "${top_srcdir:?run me by make check}/tests/slurm/sized.sh"

groups=/sys/fs/cgroup/devices
[[ ${CLUSTER_ALONE-} ]] || skip slurm "no mount namespace can be made"
mountpoint -q "$groups" || skip slurm "there are no control groups v1 of devices"

# A /dev of this test's own, with eight GPUs.
own_dev() {
	local number
	mkdir "$scratch/all" && mount -t tmpfs -o mode=0755 dev "$scratch/all" &&
		tar -C /dev --exclude=./shm --exclude=./pts --exclude='./nvidia*' -c . |
		tar -C "$scratch/all" -x &&
		mkdir "$scratch/all/shm" "$scratch/all/pts" &&
		mount --rbind /dev/shm "$scratch/all/shm" &&
		mount --rbind /dev/pts "$scratch/all/pts" && mount --move "$scratch/all" /dev ||
		return
	for number in {0..7}; do
		mknod -m 666 "/dev/nvidia$number" c 195 "$number" || return
	done
}
own_dev || skip slurm "no devices can be made"

# One node, since several on a host would share the names of their groups.
nodes=(n1)
cluster_adjust() {
	local folder
	for folder in "$scratch" "$scratch/n1"; do
		sed -i 's/^NodeName=n\[1-3\]/NodeName=n1/; s/Port=\[\([0-9]*\)-[0-9]*\]/Port=\1/
			s/Gres=gpu:2/Gres=gpu:8/; s/Nodes=n\[1-3\]/Nodes=n1/
			s/^TaskPlugin=.*/TaskPlugin=task\/cgroup/' "$folder/slurm.conf"
		cat >"$folder/gres.conf" <<-CONF
			AutoDetect=off
			NodeName=n1 Name=gpu File=/dev/nvidia[0-7]
		CONF
		cat >"$folder/cgroup.conf" <<-CONF
			CgroupPlugin=cgroup/v1
			CgroupMountpoint=/sys/fs/cgroup
			ConstrainDevices=yes
			ConstrainCores=no
			ConstrainRAMSpace=no
		CONF
	done
}
cluster_start
plugin_on
write_yaml <<<"defaults: {preload_path: $libzero, vram_reserve: 0}"
# Steps that were killed may be ending still.
no_groups() {
	[[ ! -d $groups/slurm_n1 ]] || find "$groups/slurm_n1" -depth -type d -exec rmdir {} +
}
trap 'cluster_stop; within 60 no_groups' EXIT

# GPU N has 10 (N + 1) GiB left; the last one is in MIG mode.
for number in {0..7}; do
	echo "gpu GPU-$number $((10 * number + 10))G 100G NVIDIA H100"
	echo "at $number 00000000:$number$number:00.0"
done >"$scratch/n1.gpus"
cat >>"$scratch/n1.gpus" <<'END'
mig MIG-7a 17G 20G NVIDIA H100 MIG 2g.20gb
mig MIG-7b 7G 10G NVIDIA H100 MIG 1g.10gb
END

# Prints a task's rank, the GPUs that it can open, CUDA_VISIBLE_DEVICES and the options that it got.
# One of step "a" waits for step "b".
cat >"$scratch/task" <<TASK
#!/bin/bash
files=
for number in {0..7}; do
	[[ -r /dev/nvidia\$number && -w /dev/nvidia\$number ]] && files+=\$number
done
echo "task \${1-}\$SLURM_PROCID \${files:-none} \${CUDA_VISIBLE_DEVICES-unset} \$ZERO_RESOLVED"
[[ \${1-} ]] && touch "$scratch/step-\$1"
while [[ \${1-} == a && ! -e $scratch/step-b ]]; do
	sleep 0.02
done
TASK

# Of $scratch/out: a line for each task: rank, GPUs that it can open, CUDA_VISIBLE_DEVICES, budget
# in GiB, and where that is from.
tasks() {
	sort -k 2 -t ' ' "$scratch/out" | awk '$1 == "task" {
		match($0, / budget=[0-9]+/)
		budget = substr($0, RSTART + 8, RLENGTH - 8) / 2^30
		match($0, /vram_source=[a-z_]+/)
		print $2, $3, $4, budget, substr($0, RSTART + 12, RLENGTH - 12)
	}'
}

# ---- beside a job that holds the first five GPUs

mkfifo "$scratch/held"
begin holder srun -Q -n 1 --gres=gpu:5 bash -c "touch $scratch/holds; cat $scratch/held"
wait_for test -e "$scratch/holds"
exec 9>"$scratch/held"
step 0 -n 1 --gres=gpu:1
same <<<"0 5 0 60 nvml"
step 0 -n 3 --gpus-per-task=1
same <<END
0 5 0 60 nvml
1 6 0 70 nvml
2 7 0 17 nvml
END
exec 9>&-
ended_well holder

# ---- bound to one GPU each, to several, and to none

step 0 -n 8 --gpus-per-task=1
same <<END
0 0 0 10 nvml
1 1 0 20 nvml
2 2 0 30 nvml
3 3 0 40 nvml
4 4 0 50 nvml
5 5 0 60 nvml
6 6 0 70 nvml
7 7 0 17 nvml
END
step 0 -n 2 --gpus-per-task=3
same <<END
0 012 0,1,2 10 nvml
1 345 0,1,2 40 nvml
END
step 0 -n 4 --gpus-per-node=2
same <<END
0 01 0,1 5 nvml
1 01 0,1 5 nvml
2 01 0,1 5 nvml
3 01 0,1 5 nvml
END
step 0 -n 4 --gres=gpu:4 --gpu-bind=single:1
same <<END
0 0 0 10 nvml
1 1 0 20 nvml
2 2 0 30 nvml
3 3 0 40 nvml
END
step 0 -n 4 --gres=gpu:2 --gpu-bind=single:2
same <<END
0 0 0 5 nvml
1 0 0 5 nvml
2 1 0 10 nvml
3 1 0 10 nvml
END
step 0 -n 4 --gres=gpu:4 --gpu-bind=map_gpu:3,2,1,0
same <<END
0 3 0 40 nvml
1 2 0 30 nvml
2 1 0 20 nvml
3 0 0 10 nvml
END
step 0 -n 2 --gres=gpu:4 --gpu-bind=mask_gpu:0xc,0x3
same <<END
0 23 0,1 30 nvml
1 01 0,1 10 nvml
END
# nobody gave it a GPU, whatever the backend
step 0 -n 1 --exclusive --mem=1024M
same <<<"0 none unset 1 step_memory"
step 0 -n 1 --exclusive --mem=1024M --zero-backend=cuda
same <<<"0 none unset 1 step_memory"

# ---- two steps of a job side by side, and a step within a step

cat >"$scratch/job.sh" <<END
#!/bin/bash
srun -Q --exact --mem=100M -n 2 --gpus-per-task=1 "$scratch/task" a &
until [[ -e $scratch/step-a ]]; do
	sleep 0.02
done
srun -Q --exact --mem=100M -n 2 --gpus-per-task=2 "$scratch/task" b
wait
END
chmod +x "$scratch/job.sh"
what="two steps side by side"
ran "$what" salloc -Q --zero -n 4 --gres=gpu:6 --mem=1024M "$scratch/job.sh"
same <<END
a0 0 0 10 nvml
a1 1 0 20 nvml
b0 23 0,1 30 nvml
b1 45 0,1 50 nvml
END
what="a step within a step"
ran "$what" srun -Q --zero -n 2 --gres=gpu:4 bash -c \
	"((SLURM_PROCID)) || srun -Q --zero --overlap -n 2 --gpus-per-task=1 $scratch/task"
same <<END
0 0 0 10 nvml
1 1 0 20 nvml
END

# ---- a user's own CUDA_VISIBLE_DEVICES, on a node that leaves it alone

sed -i '/^NodeName/s/$/ Flags=no_gpu_env/' "$scratch/n1/gres.conf"
restart_slurmd n1
begin holder srun -Q -n 1 --gres=gpu:5 bash -c "touch $scratch/holds-again; cat $scratch/held"
wait_for test -e "$scratch/holds-again"
exec 9>"$scratch/held"
# own VALUE EXPECTED: of a task that can open the last three
own() {
	CUDA_VISIBLE_DEVICES=$1 step 0 -n 1 --gres=gpu:3 --mem=1024M
	same <<<"0 567 $1 $2"
}
own 1 "70 nvml"
own 1,0 "60 nvml"
own GPU-6 "70 nvml"
own MIG-7b "7 nvml"
own 5 "1 step_memory"
printed n1 "CUDA_VISIBLE_DEVICES=5: this task has no GPU 5"
own GPU-2 "1 step_memory"
exec 9>&-
ended_well holder
