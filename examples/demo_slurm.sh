#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make demo, where root has Slurm's packages: a Slurm of three nodes with the plugin on this
# machine, for a minute or two. Its folder and its processes are gone in the end, also after Ctrl-C;
# the report stays. Ends with status 77, and one line of why, where there can be no such Slurm.
#
#	TEXT="FILE..."  train on these files
#	STEPS=N         so many steps, at least 10
: "${top_srcdir:?make demo runs me}" "${top_builddir:?}" "${TEXT:?}" "${STEPS:=400}" "${ZERORUN:?}"
# shellcheck source=tests/common.sh
. "$top_srcdir/tests/common.sh"
skip() {
	echo "== No Slurm is started here, but zerorun alone: $1: $2"
	exit 77
}
fail() {
	echo "demo: $*" >&2
	exit 1
}
# shellcheck source=tests/slurm/cluster.sh
. "$top_srcdir/tests/slurm/cluster.sh"
need files
CLUSTER_AGAIN=no # what went wrong is shown, not done again
trap 'exit 130' INT TERM HUP

report=$PWD/demo-report
mkdir -p "$scratch/work" && cd "$scratch/work" || exit
ln -s "$top_builddir/examples/gpt" gpt
PATH=$(dirname "$ZERORUN"):$PATH
# shellcheck disable=SC2086 # several files
cat $TEXT >text || exit

# step WORDS: what comes next
step() {
	printf '\n== %s\n' "$*"
}

# The files of this cluster stand for those in /etc/slurm.
in_etc() {
	sed -u -E "s|$scratch/(n[0-9]/)?|/etc/slurm/|g"
}

# user COMMAND: shows what a user types, and does it.
user() {
	in_etc <<<"\$ $1"
	bash -c "$1" 2>&1 </dev/null | in_etc
	return "${PIPESTATUS[0]}"
}

# Shows every tenth part of the steps, with a bar for the loss, and all other lines.
show_steps() {
	local line number bar
	while IFS= read -r line; do
		line=${line//$'\r'/}
		if [[ $line =~ ^step\ *([0-9]+)/.*loss\ ([0-9.]+) ]]; then
			number=${BASH_REMATCH[1]}
			((number != 1 && number % (STEPS / 10))) && continue
			printf -v bar '%*s' $((10#${BASH_REMATCH[2]/./} / 1000)) ''
			line="${line%%  norm*}  ${bar// /=}"
		fi
		echo "$line"
	done
}

# has_steps FILE: it has been training for a while
has_steps() {
	grep -q '^step 20/' "$1"
}

step "A Slurm of three nodes starts on this machine, with the plugin. Their GPUs are made up."
cluster_start
plugin_on
echo "gpu GPU-1 79G 80G NVIDIA H100" >"$scratch/n1.gpus"
echo "gpu GPU-2 38G 40G NVIDIA A100" >"$scratch/n2.gpus"
echo "gpu GPU-3 22G 24G NVIDIA L4" >"$scratch/n3.gpus"
write_yaml <<YAML
defaults:
  stage: 2
  report: $report
  preload_path: $libzero
limits:
  stream_chunk: {max: 64M}
gpus:
  NVIDIA L4: {defaults: {vram_reserve: 10%}}
YAML
user "cat $scratch/zero.yaml"

cat >job.sh <<JOB
#!/bin/bash
#SBATCH -N 3 -n 3 --gres=gpu:1
srun -v true 2>&1 | grep -o 'node n.: .*'
zerorun --plan ./gpt | grep -E '^# +(node|n[1-3]|all) '
srun ./gpt --text text --layers 4 --heads 4 --width 96 --context 64 --steps $STEPS --lr 3e-3
JOB
step "A job for three nodes: it prints what each node resolves, where that comes from, and trains"
user "cat job.sh"

step "The site's limit is 64M: a larger chunk is refused when the job is submitted"
user "sbatch --zero-stage=3 --zero-stream-chunk=1G job.sh" && fail "the flag was not refused"

step "Within the limit. The flag wins over the site's default, stage 2"
user "sbatch --zero-stage=3 --zero-stream-chunk=40M job.sh" | tee submitted
job=$(grep -oE '[0-9]+$' submitted) || exit
echo "\$ tail -f slurm-$job.out"
within 300 are_over "$job" &
tail -n +1 -F --pid=$! "slurm-$job.out" 2>/dev/null | in_etc | show_steps
page=$(compgen -G "$report/*-$job*.html") || fail "the job has written no report to $report"

step "Training without end. After some steps the rank on n2 is killed (without what Open MPI adds)"
command="srun -N 3 -n 3 --zero-stage=3 ./gpt --text text --steps 1000000"
echo "\$ $command"
$command >lost.out 2>&1 </dev/null &
wait_for has_steps lost.out
for pid in $(pgrep -x gpt); do
	# of this demo, not of a job of the machine's own Slurm
	[[ /proc/$pid/cwd -ef . ]] && grep -qzx SLURMD_NODENAME=n2 "/proc/$pid/environ" &&
		kill -9 "$pid"
done
wait "$!"
grep -E '^(srun|slurmstepd.*|zero): ' lost.out

step "The page of the training's report, which stays when the cluster is gone now"
echo "$page"
