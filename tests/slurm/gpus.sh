#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The facts about GPUs and memory that tasks get, on nodes with GPUs of several kinds: whole ones
# that others use in part, shared ones, instances, lost ones, and none.
# shellcheck source=tests/slurm/sized.sh
. "${top_srcdir:?run me by make check}/tests/slurm/sized.sh"
cluster_start
plugin_on

# With the default reserve of 5 % tasks may use, of 70, 30, 36, 38, 9, 18 and 75:
#   n1: 70 - 4 = 66G and 30 - 4 = 26G
#   n2: 36 - 2 = 34G and 38 - 2 = 36G
#   n3: of the instances 9G - 512M = 8704M and 18 - 1 = 17G; of the other GPU 75 - 4 = 71G
cat >"$scratch/n1.gpus" <<END
gpu GPU-10 70G 80G NVIDIA H100 80GB HBM3
gpu GPU-11 30G 80G NVIDIA H100 80GB HBM3
END
cat >"$scratch/n2.gpus" <<END
gpu GPU-20 36G 40G NVIDIA A100-SXM4-40GB
gpu GPU-21 38G 40G NVIDIA A100-SXM4-40GB
END
cat >"$scratch/n3.gpus" <<END
gpu GPU-30 0 80G NVIDIA H200
mig MIG-3a 9G 10G NVIDIA H200 MIG 1g.10gb
gap
mig MIG-3b 18G 20G NVIDIA H200 MIG 2g.20gb
gpu GPU-31 75G 80G NVIDIA H200
END

# Of $scratch/out: a line for each task, by rank: rank, node, CUDA_VISIBLE_DEVICES, order, budget,
# free, total, source, number of GPUs and model. Bytes are in G or M where that is exact.
tasks() {
	sed 's/^[0-9]*: //' "$scratch/out" | sort -n -k 2 -t ' ' | awk '
		function size(bytes) {
			if (bytes !~ /^[0-9]+$/ || bytes == 0)
				return bytes == "" ? "-" : bytes
			if (bytes % 2^30 == 0)
				return bytes / 2^30 "G"
			return bytes % 2^20 ? bytes : bytes / 2^20 "M"
		}
		$1 == "task" {
			split("", told)
			for (i = 6; i <= NF; i++)
				told[substr($i, 1, index($i, "=") - 1)] = \
					substr($i, index($i, "=") + 1)
			gsub("%20", " ", told["gpu"])
			print $2, $3, $4, $5, size(told["budget"]), size(told["vram_free"]),
				size(told["vram_total"]), told["vram_source"],
				told["gpus"], told["gpu"]
		}'
}

# ---- which GPUs are a task's, and how many tasks share them

step 0 -N 3 -n 6 --gpus-per-task=1
same <<END
0 n1 0 PCI_BUS_ID 66G 70G 80G nvml 1 NVIDIA H100 80GB HBM3
1 n1 1 PCI_BUS_ID 26G 30G 80G nvml 1 NVIDIA H100 80GB HBM3
2 n2 0 PCI_BUS_ID 34G 36G 40G nvml 1 NVIDIA A100-SXM4-40GB
3 n2 1 PCI_BUS_ID 36G 38G 40G nvml 1 NVIDIA A100-SXM4-40GB
4 n3 0 PCI_BUS_ID 8704M 9G 10G nvml 1 NVIDIA H200 MIG 1g.10gb
5 n3 1 PCI_BUS_ID 71G 75G 80G nvml 1 NVIDIA H200
END
printed

# several a task: the fullest counts
step 0 -N 3 -n 3 --gpus-per-task=2
same <<END
0 n1 0,1 PCI_BUS_ID 26G 30G 80G nvml 2 NVIDIA H100 80GB HBM3
1 n2 0,1 PCI_BUS_ID 34G 36G 40G nvml 2 NVIDIA A100-SXM4-40GB
2 n3 0,1 PCI_BUS_ID 8704M 9G 10G nvml 2 NVIDIA H200 MIG 1g.10gb
END
# several tasks that all see all: three on two GPUs are two on one of them
step 0 -n 7 --gres=gpu:2 --distribution=arbitrary -w n1,n1,n1,n1,n2,n2,n2
same <<END
0 n1 0,1 PCI_BUS_ID 13G 30G 80G nvml 2 NVIDIA H100 80GB HBM3
1 n1 0,1 PCI_BUS_ID 13G 30G 80G nvml 2 NVIDIA H100 80GB HBM3
2 n1 0,1 PCI_BUS_ID 13G 30G 80G nvml 2 NVIDIA H100 80GB HBM3
3 n1 0,1 PCI_BUS_ID 13G 30G 80G nvml 2 NVIDIA H100 80GB HBM3
4 n2 0,1 PCI_BUS_ID 17G 36G 40G nvml 2 NVIDIA A100-SXM4-40GB
5 n2 0,1 PCI_BUS_ID 17G 36G 40G nvml 2 NVIDIA A100-SXM4-40GB
6 n2 0,1 PCI_BUS_ID 17G 36G 40G nvml 2 NVIDIA A100-SXM4-40GB
END
# two tasks a GPU, bound to it
step 0 -N 2 -n 8 -w n1,n2 --ntasks-per-node=4 --gres=gpu:2 --gpu-bind=single:2
same <<END
0 n1 0 PCI_BUS_ID 33G 70G 80G nvml 1 NVIDIA H100 80GB HBM3
1 n1 0 PCI_BUS_ID 33G 70G 80G nvml 1 NVIDIA H100 80GB HBM3
2 n1 1 PCI_BUS_ID 13G 30G 80G nvml 1 NVIDIA H100 80GB HBM3
3 n1 1 PCI_BUS_ID 13G 30G 80G nvml 1 NVIDIA H100 80GB HBM3
4 n2 0 PCI_BUS_ID 17G 36G 40G nvml 1 NVIDIA A100-SXM4-40GB
5 n2 0 PCI_BUS_ID 17G 36G 40G nvml 1 NVIDIA A100-SXM4-40GB
6 n2 1 PCI_BUS_ID 18G 38G 40G nvml 1 NVIDIA A100-SXM4-40GB
7 n2 1 PCI_BUS_ID 18G 38G 40G nvml 1 NVIDIA A100-SXM4-40GB
END
step 0 -N 1 -n 4 -w n1 --gres=gpu:2 --gpu-bind=map_gpu:1,0,1,0
same <<END
0 n1 1 PCI_BUS_ID 13G 30G 80G nvml 1 NVIDIA H100 80GB HBM3
1 n1 0 PCI_BUS_ID 33G 70G 80G nvml 1 NVIDIA H100 80GB HBM3
2 n1 1 PCI_BUS_ID 13G 30G 80G nvml 1 NVIDIA H100 80GB HBM3
3 n1 0 PCI_BUS_ID 33G 70G 80G nvml 1 NVIDIA H100 80GB HBM3
END
# the backend overrides Slurm: cuda uses all GPUs if nothing names them, host none; the order
# of a user's own stays
CUDA_DEVICE_ORDER=FASTEST_FIRST step 0 -N 1 -n 1 -w n1 --zero-backend=cuda
same <<<"0 n1 unset FASTEST_FIRST 26G 30G 80G nvml 2 NVIDIA H100 80GB HBM3"
step 0 -N 1 -n 1 -w n1 --zero-backend=host --gres=gpu:1 --mem=100M
same <<<"0 n1 0 unset 100M 100M 100M step_memory 0"
printed

# ---- a reserve, as a size and in percent, by flag and by model

step 0 -N 3 -n 6 --gpus-per-task=1 --zero-vram-reserve=32G
same <<END
0 n1 0 PCI_BUS_ID 38G 70G 80G nvml 1 NVIDIA H100 80GB HBM3
1 n1 1 PCI_BUS_ID 0 30G 80G nvml 1 NVIDIA H100 80GB HBM3
2 n2 0 PCI_BUS_ID 4G 36G 40G nvml 1 NVIDIA A100-SXM4-40GB
3 n2 1 PCI_BUS_ID 6G 38G 40G nvml 1 NVIDIA A100-SXM4-40GB
4 n3 0 PCI_BUS_ID 0 9G 10G nvml 1 NVIDIA H200 MIG 1g.10gb
5 n3 1 PCI_BUS_ID 43G 75G 80G nvml 1 NVIDIA H200
END
write_yaml <<END
defaults: {preload_path: $libzero, vram_reserve: 1G}
gpus:
  "*H100*": {defaults: {vram_reserve: 25%}}
  "NVIDIA A100-SXM4-40GB":
    defaults: {vram_reserve: 6G}
    limits: {stream_chunk: {max: 64M}, stream_threshold: {max: 100M}}
  "*H200*": {defaults: {vram_reserve: 2G}}
  "*H200 MIG 1g.*": {defaults: {vram_reserve: 50%}}
END
# 80G / 4 = 20G; 6G; half of the instance's 10G, but of the whole GPU 2G
step 0 -N 3 -n 6 --gpus-per-task=1
same <<END
0 n1 0 PCI_BUS_ID 50G 70G 80G nvml 1 NVIDIA H100 80GB HBM3
1 n1 1 PCI_BUS_ID 10G 30G 80G nvml 1 NVIDIA H100 80GB HBM3
2 n2 0 PCI_BUS_ID 30G 36G 40G nvml 1 NVIDIA A100-SXM4-40GB
3 n2 1 PCI_BUS_ID 32G 38G 40G nvml 1 NVIDIA A100-SXM4-40GB
4 n3 0 PCI_BUS_ID 4G 9G 10G nvml 1 NVIDIA H200 MIG 1g.10gb
5 n3 1 PCI_BUS_ID 73G 75G 80G nvml 1 NVIDIA H200
END
# the flag wins: 8G and 4G and 1G are a tenth
step 0 -N 3 -n 6 --gpus-per-task=1 --zero-vram-reserve=10%
same <<END
0 n1 0 PCI_BUS_ID 62G 70G 80G nvml 1 NVIDIA H100 80GB HBM3
1 n1 1 PCI_BUS_ID 22G 30G 80G nvml 1 NVIDIA H100 80GB HBM3
2 n2 0 PCI_BUS_ID 32G 36G 40G nvml 1 NVIDIA A100-SXM4-40GB
3 n2 1 PCI_BUS_ID 34G 38G 40G nvml 1 NVIDIA A100-SXM4-40GB
4 n3 0 PCI_BUS_ID 8G 9G 10G nvml 1 NVIDIA H200 MIG 1g.10gb
5 n3 1 PCI_BUS_ID 67G 75G 80G nvml 1 NVIDIA H200
END

# ---- a limit of one model, which only that node can know

limit="--zero-stream-chunk: 128M .* at most 64M by $scratch/n2/zero.yaml:7"
step 0 -N 2 -n 2 -w n1,n3 --gpus-per-task=1 --zero-stream-chunk=128M
printed
step 0 -N 1 -n 1 -w n2 --zero-stream-chunk=128M
printed
step 1 -N 3 -n 6 --gpus-per-task=1 --zero-stream-chunk=128M
printed n2 "$limit"
# which holds for what is computed, too: a 64th of the budget would be 512M
step 0 -N 1 -n 1 -w n2 --gpus-per-task=1
grep -q "stream_threshold=$((100 << 20)) " "$scratch/out" || fail "the limit: $(<"$scratch/out")"
wait_for all_idle
write_yaml <<<"defaults: {preload_path: $libzero}"

# ---- a lost GPU, and a node without NVML: one message each, and the step runs

mv "$scratch/n1.gpus" "$scratch/n1.whole"
cat >"$scratch/n1.gpus" <<END
lost GPU-10
gpu GPU-11 30G 80G NVIDIA H100 80GB HBM3
END
sed -i "s|nvml=.*|nvml=$scratch/nowhere/libnvidia-ml.so.1|" "$scratch/n2/plugstack.conf"
step 0 -N 3 -n 6 --gpus-per-task=1
same <<END
0 n1 0 PCI_BUS_ID 0 0 0 unknown 1
1 n1 1 PCI_BUS_ID 26G 30G 80G nvml 1 NVIDIA H100 80GB HBM3
2 n2 0 PCI_BUS_ID 0 0 0 unknown 1
3 n2 1 PCI_BUS_ID 0 0 0 unknown 1
4 n3 0 PCI_BUS_ID 8704M 9G 10G nvml 1 NVIDIA H200 MIG 1g.10gb
5 n3 1 PCI_BUS_ID 71G 75G 80G nvml 1 NVIDIA H200
END
printed n1 "GPU 0 is left out: .*: GPU is lost" \
	n2 "NVML cannot be loaded: $scratch/nowhere/libnvidia-ml.so.1: "
# the other GPUs of the task count
step 0 -N 1 -n 2 -w n1 --gres=gpu:2
same <<END
0 n1 0,1 PCI_BUS_ID 26G 30G 80G nvml 2 NVIDIA H100 80GB HBM3
1 n1 0,1 PCI_BUS_ID 26G 30G 80G nvml 2 NVIDIA H100 80GB HBM3
END
# without GPUs NVML is not queried
step 0 -n 3 --mem=100M --distribution=arbitrary -w n2,n2,n3
same <<END
0 n2 unset unset 50M 100M 100M step_memory 0
1 n2 unset unset 50M 100M 100M step_memory 0
2 n3 unset unset 100M 100M 100M step_memory 0
END
printed
mv "$scratch/n1.whole" "$scratch/n1.gpus"

# ---- the batch script has the options, but no facts; its step's tasks have them

cat >"$scratch/job.sh" <<END
#!/bin/bash
echo "script \$ZERO_RESOLVED \${LD_PRELOAD-unset} \${CUDA_DEVICE_ORDER-unset}"
srun "$scratch/task"
echo ended
END
what="sbatch --gres=gpu:1"
timeout 60 sbatch --zero -N 1 -n 1 -w n1 --gres=gpu:1 --mem=100M -o "$scratch/out" \
	"$scratch/job.sh" \
	>"$scratch/err" 2>&1 || fail "$what: $(<"$scratch/err")"
wait_for grep -q '^ended$' "$scratch/out"
unsized="stream_threshold=auto .* budget=0 vram_free=0 vram_total=0 vram_source=unknown gpus=0 gpu="
grep -q "^script stage=3 .*$unsized .* unset unset\$" "$scratch/out" ||
	fail "$what: the script was sized, or has no options: $(<"$scratch/out")"
same <<<"0 n1 0 PCI_BUS_ID 66G 70G 80G nvml 1 NVIDIA H100 80GB HBM3"

# ---- a user's own CUDA_VISIBLE_DEVICES: Slurm sets or takes away what it manages

CUDA_VISIBLE_DEVICES=GPU-11 step 0 -N 1 -n 1 -w n1 --gres=gpu:1
same <<<"0 n1 0 PCI_BUS_ID 66G 70G 80G nvml 1 NVIDIA H100 80GB HBM3"
CUDA_VISIBLE_DEVICES=GPU-11 step 0 -N 1 -n 1 -w n1 --mem=100M
same <<<"0 n1 unset unset 100M 100M 100M step_memory 0"

# On a node that leaves the variable alone, it is read as CUDA reads it.
sed -i '/^NodeName/s/$/ Flags=no_gpu_env/' "$scratch/n3/gres.conf"
restart_slurmd n3

# own VALUE NUMBER FACTS: two tasks with that CUDA_VISIBLE_DEVICES have NUMBER GPUs
own() {
	CUDA_VISIBLE_DEVICES=$1 step 0 -N 1 -n 2 -w n3 --mem=100M
	same <<-END
		0 n3 $1 $2
		1 n3 $1 $2
	END
}

own GPU-31 "PCI_BUS_ID 36352M 75G 80G nvml 1 NVIDIA H200"
own MIG-3b "PCI_BUS_ID 8704M 18G 20G nvml 1 NVIDIA H200 MIG 2g.20gb"
own MIG-3b,MIG-3a "PCI_BUS_ID 8704M 9G 10G nvml 2 NVIDIA H200 MIG 1g.10gb"
# a GPU in MIG mode stands for its first instance
own GPU-30 "PCI_BUS_ID 4352M 9G 10G nvml 1 NVIDIA H200 MIG 1g.10gb"
printed
# CUDA ignores the list from the first GPU that does not exist; both tasks then share the other
own GPU-31,GPU-4 "PCI_BUS_ID 36352M 75G 80G nvml 1 NVIDIA H200"
printed n3 "CUDA_VISIBLE_DEVICES=GPU-31,GPU-4: this task has no GPU GPU-4"
own 2 "unset 50M 100M 100M step_memory 0"
printed n3 "CUDA_VISIBLE_DEVICES=2: this task has no GPU 2"

# ---- a cluster that does not count memory: what the node has

stop "$scratch/slurmctld.pid"
sed -i 's/CR_Core_Memory/CR_Core/' "$scratch"/slurm.conf "$scratch"/n?/slurm.conf
slurmctld -f "$SLURM_CONF" || fail "slurmctld does not start again"
wait_for all_idle
step 0 -N 1 -n 2 -w n1
total=$(awk '$1 == "MemTotal:" {print $2}' /proc/meminfo)
found=0
while read -r budget free all; do
	((all == total * 1024 && free > 0 && free <= all && budget == free / 2)) && ((++found))
done < <(grep -o 'budget=.* vram_source=mem_available gpus=0' "$scratch/out" |
	sed -E 's/[a-z_]+=//g; s/ mem_available.*//')
((found == 2)) || fail "$what: $(<"$scratch/out")"
