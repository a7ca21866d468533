#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Faults under Slurm are reported in one line and affect no other job: a
# broken file on the submit host or on one node, a client that lies, tasks that die, a driver that
# hangs, a Slurm without PMIx. No node is drained and no slurmstepd dies, be the plugin
# optional or required.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
umask 022
ulimit -S -c unlimited 2>/dev/null # a slurmstepd that dies shall leave something
cluster_start
ulimit -S -c 0
# Some of these steps are another user's.
user=nobody
chmod 755 "$scratch"
cp "$libzero" "$scratch/libzero.so"
libzero=$scratch/libzero.so
runuser -u "$user" -- test -r "$SLURM_CONF" || skip slurm "$user cannot reach $scratch"

# A job asks for little, so that none waits for what is left of another one.
export SLURM_MEM_PER_NODE=100 SBATCH_MEM_PER_NODE=100 SALLOC_MEM_PER_NODE=100
six=(srun -N 3 -n 6 --ntasks-per-node=2)

# ---- what a command did --------------------------------------------------------------------------

readonly forever=600 # s: longer than any command may take

wrong() {
	echo "---- $*: status $status, and it printed" >&2
	cat "$scratch/out" >&2
	cluster_logs
	fail "$*"
}

# try COMMAND...: leaves its $status and, in $scratch/out, its output.
try() {
	run "$@"
	all_output
}

# tried NAME: the same of what began
tried() {
	ended "$1"
	all_output
}

all_output() {
	cat "$scratch/err" >>"$scratch/out"
	# where the job before is still being cleared away
	sed -i -E '/^srun: job [0-9]+ (queued and waiting for|has been allocated) resources$/d' \
		"$scratch/out"
}

# fails WHAT LINE: it failed, and the plugin printed one line with this text.
fails() {
	local lines
	lines=$(grep -F spank_zero: "$scratch/out")
	((status != 0 && status != 124)) || wrong "$1: it should fail"
	[[ $lines == *"$2"* ]] || wrong "$1: the plugin should print: $2"
	[[ $(wc -l <<<"$lines") == 1 ]] || wrong "$1: the plugin should print one line"
}

# refused WHAT LINE: the same, and there was no other line.
refused() {
	fails "$@"
	[[ $(wc -l <"$scratch/out") == 1 ]] || wrong "$1: it should print one line"
}

# silent WHAT: the command succeeded and printed nothing.
silent() {
	((status == 0)) || wrong "$1: it should go well"
	[[ ! -s $scratch/out ]] || wrong "$1: it should say nothing"
}

# A node that has just become idle may still have a job to clear away.
nothing_but_idle() {
	[[ $(sinfo -h -p test -o '%D %t') == "${#nodes[@]} idle" ]]
}

nodes_are_up() {
	wait_for nothing_but_idle
	try sinfo -h -R
	silent "$1: the reasons why nodes are down"
	try sinfo -h -o '%D %t'
	[[ $(<"$scratch/out") == "${#nodes[@]} idle" ]] || wrong "$1: all nodes should be idle"
}

# batch SCRIPT FLAG...: the same of a batch job. sbatch --wait would ask too rarely.
batch() {
	local script=$1 job state
	shift
	job=$(sbatch --parsable -o "$scratch/batch" "$@" 2>"$scratch/out" \
		<<<"#!/bin/bash"$'\n'"$script")
	status=1
	[[ $job ]] || return
	wait_for are_over "$job"
	state=$(scontrol -o show job "$job" | grep -o ' JobState=[A-Z_]*')
	[[ $state == *=COMPLETED ]] && status=0
	cp "$scratch/batch" "$scratch/out"
}

# ---- a broken file -------------------------------------------------------------------------------

mend_files() {
	chown -f root "$scratch/zero.yaml" "$scratch"/*/zero.yaml
	chmod -f 644 "$scratch/zero.yaml" "$scratch"/*/zero.yaml
	write_yaml <<<"defaults: {preload_path: $libzero}"
}

# break_file HOW FOLDER: all is well but for this; leaves in $where what a message names.
break_file() {
	local file=$2/zero.yaml
	mend_files
	case $1 in
	"bad syntax")
		printf 'version: 1\ndefaults:\n\tstage: 3\n' >"$file"
		where=$file:3:1
		;;
	"unknown key")
		printf 'version: 1\ndefaults:\n  stages: 3\n' >"$file"
		where=$file:3:3
		;;
	"file that all may write")
		chmod 646 "$file"
		where="$file: is writable by others than its owner (mode 0646)"
		;;
	"file that its group may write")
		chmod 664 "$file"
		where="$file: is writable by others than its owner (mode 0664)"
		;;
	"file of another user")
		chown "$user" "$file"
		where="$file: is owned by user $(id -u "$user")"
		;;
	"missing file")
		rm "$file"
		where="$file: cannot be opened: No such file or directory"
		;;
	"missing library")
		printf 'version: 1\ndefaults: {preload_path: %s}\n' "$scratch/gone.so" >"$file"
		where="$scratch/gone.so cannot be preloaded: No such file or directory"
		where+="; correct preload_path of $file:2"
		;;
	esac
}

# broken_at_submit MODE HOW...
broken_at_submit() {
	local mode=$1 how
	shift
	for how; do
		break_file "$how" "$scratch"
		try srun --zero true
		refused "$mode, $how, srun" ": $where"
		try srun true
		silent "$mode, $how, srun without zero"
	done
	try env ZERO_ENABLED=yes sbatch --wrap true
	refused "$mode, $how, sbatch" ": $where"
	try salloc --zero-stage=2 true
	refused "$mode, $how, salloc" ": $where"
	try salloc -Q true
	silent "$mode, $how, salloc without zero"
	batch "srun true"
	silent "$mode, $how, sbatch without zero"
	mend_files
}

# broken_on_a_node MODE HOW...: the first of them in a batch job too
broken_on_a_node() {
	local mode=$1 how
	shift
	for how; do
		break_file "$how" "$scratch/n2"
		try "${six[@]}" --zero sleep "$forever"
		fails "$mode, $how on n2" ": node n2: $where"
		try srun -w n2 true
		silent "$mode, $how on n2, srun without zero"
	done
	break_file "$1" "$scratch/n2"
	batch "srun true; echo \"srun's status: \$?\"; echo \"on \$SLURMD_NODENAME\"" --zero -w n2
	((status == 0)) || wrong "$mode, $1 on n2: the batch script should go well"
	grep -qx 'on n2' "$scratch/out" || wrong "$mode, $1 on n2: the batch script should run"
	grep -qx "srun's status: [1-9][0-9]*" "$scratch/out" ||
		wrong "$mode, $1 on n2: the batch script's srun should fail"
	grep -qF "$where" "$scratch/out" || wrong "$mode, $1 on n2: it should be printed"
	mend_files
	try "${six[@]}" --zero true
	silent "$mode, files mended"
}

files=("bad syntax" "unknown key" "file that all may write" "missing file")
# Slurm ignores what an optional plugin returns.
plugin_mode=optional plugin_on
mend_files
broken_at_submit optional "bad syntax"
broken_on_a_node optional "missing library"
plugin_mode=required plugin_on
mend_files
broken_at_submit required "${files[@]}" "file that its group may write" "file of another user"
broken_on_a_node required "${files[@]}"
nodes_are_up "broken files"
plugin_on

# ---- clients that lie ----------------------------------------------------------------------------

# A client with a slurm.conf of its own and no plugin, as every user can have. It sets the plugin's
# variables itself.
mkdir "$scratch/forged"
: >"$scratch/forged/plugstack.conf"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$scratch/forged/plugstack.conf|" "$SLURM_CONF" \
	>"$scratch/forged/slurm.conf"
forged=(env SLURM_CONF="$scratch/forged/slurm.conf" SLURM_ZERO=on)
write_yaml "${nodes[@]}" <<YAML
defaults: {preload_path: $libzero}
limits: {stream_chunk: {max: 16M}}
locked: [offload]
YAML

too_much="40M is not allowed: stream_chunk must be at most 16M by $scratch/n2/zero.yaml:3"
try env ZERO_STREAM_CHUNK=40M srun --zero -w n2 true
fails "more than the node's limit" ": node n2: ZERO_STREAM_CHUNK: $too_much"
try srun -w n2 -n 2 --zero-stream-chunk=40M true
fails "more than the node's limit, by a flag" ": node n2: --zero-stream-chunk: $too_much"
try env ZERO_STREAM_CHUNK=16M srun --zero -w n2 true
silent "no more than the node's limit"
try "${forged[@]}" ZERO_STREAM_CHUNK=40M srun -w n2 true
fails "more than the node's limit, forged" ": node n2: ZERO_STREAM_CHUNK: $too_much"
try "${forged[@]}" ZERO_OFFLOAD=optimizer srun -w n2 true
fails "a locked key, forged" ": node n2: ZERO_OFFLOAD: optimizer is not allowed: offload is locked"
try "${forged[@]}" ZERO_STAGE=7 srun -w n2 true
fails "no number of a stage, forged" ": node n2: ZERO_STAGE: '7' is out of range"
# A decision of the plugin is no word of the user's.
# shellcheck disable=SC2016 # for the task's shell
try "${forged[@]}" ZERO_RESOLVED="stage=1 stream_chunk=41943040" srun -w n2 \
	sh -c 'echo "$ZERO_RESOLVED"'
((status == 0)) || wrong "a forged decision: the step should run"
grep -q ' stream_chunk=16777216 ' "$scratch/out" || wrong "a forged decision: it should not count"

# ---- a user's own file ---------------------------------------------------------------------------

# The user may not see into the folder that this test was started in.
as_user=(runuser -u "$user" -- env -C "$scratch")
# secret OWNER MODE TEXT: a file whose content no other user may see.
secret() {
	printf '%s\n' "$3" >"$scratch/secret.yaml"
	chown "$1" "$scratch/secret.yaml"
	chmod "$2" "$scratch/secret.yaml"
}
denied="$scratch/secret.yaml: cannot be opened: Permission denied"

for mode in 600 640 660; do
	secret root:root "$mode" "confidential: 1"
	try "${as_user[@]}" srun --zero-config="$scratch/secret.yaml" true
	refused "root's file of mode $mode" ": $denied"
	try "${as_user[@]}" env ZERO_CONFIG="$scratch/secret.yaml" sbatch --zero --wrap true
	refused "root's file of mode $mode, sbatch" ": $denied"
done
grep -q confidential "$scratch"/*.log "$scratch/out" && wrong "what is in root's file was told"
# ... which is what would be told:
secret root:root 644 "confidential: 1"
try "${as_user[@]}" srun --zero-config="$scratch/secret.yaml" true
refused "root's file that all may read" "$scratch/secret.yaml:1:1: there is no key 'confidential'"
secret "$user" 600 "version: 1"$'\n'"defaults: {stage: 1}"
# shellcheck disable=SC2016 # for the task's shell
try "${as_user[@]}" srun --zero-config="$scratch/secret.yaml" sh -c 'echo "$ZERO_RESOLVED"'
grep -q '^stage=1 \| stage=1 ' "$scratch/out" || wrong "the user's own file should count"
rm "$scratch/secret.yaml"
mkfifo -m 644 "$scratch/secret.yaml"
try "${as_user[@]}" srun --zero-config="$scratch/secret.yaml" true
refused "a pipe that nobody writes" ": $scratch/secret.yaml: is not a regular file"
# Nodes need no such file, and open none: that of a client is all that counts.
try "${as_user[@]}" "${forged[@]}" ZERO_CONFIG="$scratch/secret.yaml" srun -w n2 -n 2 true
fails "a file for the node alone" ": node n2: ZERO_CONFIG: '"
chmod 600 "$scratch/zero.yaml"
try "${as_user[@]}" srun --zero true
refused "a site's file that the user cannot read" ": $scratch/zero.yaml: cannot be opened"
# It may say that zero is on for all jobs.
try "${as_user[@]}" srun true
((status == 0)) || wrong "a site's file that the user cannot read, without zero: it should go well"
grep -q "error: spank_zero: zero is not on, .*: $scratch/zero.yaml: cannot be opened" \
	"$scratch/out" ||
	wrong "a site's file that the user cannot read, without zero: it should be reported"
mend_files

# ---- tasks that die ------------------------------------------------------------------------------

# dies COMMAND RANK: what six tasks run, of which one ends so and the others sleep.
dies() {
	echo "if [ \$SLURM_PROCID = $2 ]; then sleep 0.5; $1; fi; sleep $forever"
}

# Whoever does not want that says so.
survives="if [ \$SLURM_PROCID = 1 ]; then kill -SEGV \$\$; fi; sleep 2; echo alive"
one_each=(srun -N 3 -n 3)
for node in "${nodes[@]}"; do
	printf 'gpu GPU-%s 70G 80G NVIDIA H100 80GB HBM3\n' 0 1 >"$scratch/$node.gpus"
done
echo "wedge nvmlDeviceGetMemoryInfo GPU-1" >>"$scratch/n2.gpus"
echo "wedge nvmlInit_v2" >>"$scratch/n3.gpus"
sed -i 's/$/ nvml_timeout=2/' "$scratch"/n[23]/plugstack.conf

# All of them at once, since they wait more than they work.
begin SEGV "${six[@]}" --zero sh -c "$(dies 'kill -SEGV $$' 2)"
begin ABRT "${six[@]}" --zero sh -c "$(dies 'kill -ABRT $$' 5)"
begin shell "${six[@]}" --zero sh -c "$(dies 'sh -c "kill -SEGV \$\$"; exit $?' 0)"
begin PIPE "${six[@]}" --zero sh -c "$(dies 'kill -PIPE $$' 2)"
begin exit "${six[@]}" --zero sh -c "$(dies 'exit 3' 2)"
begin variable env SLURM_KILL_BAD_EXIT=0 ZERO_ENABLED=yes "${one_each[@]}" sh -c "$survives"
begin flag env ZERO_ENABLED=yes "${one_each[@]}" --kill-on-bad-exit=0 sh -c "$survives"
# shellcheck disable=SC2016 # for the task's shell
begin wedged "${six[@]}" --gres=gpu:2 --zero sh -c 'echo "$SLURMD_NODENAME $ZERO_RESOLVED"'

tried SEGV
fails "a task that dies of SIGSEGV" ": rank 2 on node n2 died of signal 11 (Segmentation fault)"
tried ABRT
fails "a task that dies of SIGABRT" ": rank 5 on node n3 died of signal 6 (Aborted)"
tried shell
fails "a shell whose program dies" ": rank 0 on node n1 died of signal 11 (Segmentation fault)"
for how in PIPE exit; do
	tried "$how"
	((status != 0 && status != 124)) || wrong "a task that ends by $how: the step should end"
	grep -q spank_zero: "$scratch/out" &&
		wrong "a task that ends by $how: it should not be named"
done
for how in variable flag; do
	tried "$how"
	fails "a $how lets the others live" ": rank 1 on node n2 died of signal 11"
	[[ $(grep -cx alive "$scratch/out") == 2 ]] || wrong "a $how: the others should live"
done
batch "${six[*]} sh -c '$(dies 'kill -SEGV $$' 3)'" --zero -N 3 -n 6
fails "a task of a batch job that dies" ": rank 3 on node n2 died of signal 11 (Segmentation fault)"
try srun -w n1 -n 4 --kill-on-bad-exit=0 --zero sh -c 'kill -SEGV $$'
fails "four tasks that die" "on node n1 died of signal 11 (Segmentation fault)"
# shellcheck disable=SC2016 # for the tasks' shells
try srun -w n1 -n 2 --zero sh -c 'cd "$1"; [ $SLURM_PROCID = 1 ] || { echo $$ >first; exit; }
	until [ -s first ] && ! kill -0 "$(cat first)"; do sleep 0.1; done 2>>/dev/null
	kill -SEGV $$' - "$scratch"
fails "a task that dies after another has ended" ": rank 1 on node n1 died of signal 11"

# ---- a driver that hangs -------------------------------------------------------------------------

tried wedged
((status == 0)) || wrong "wedged drivers: the step should run"
for node in "n1 .* vram_source=nvml " "n2 .* vram_source=nvml " "n3 .* vram_source=unknown "; do
	[[ $(grep -c "^$node" "$scratch/out") == 2 ]] ||
		wrong "wedged drivers: no two tasks have $node"
done
for hung in "n2: .* nvmlDeviceGetMemoryInfo of GPU 1;" "n3: .* nvmlInit_v2"; do
	line="spank_zero: node ${hung/ / NVML did not answer within 2 s}"
	[[ $(grep -c "$line" "$scratch/out") == 1 ]] ||
		wrong "wedged drivers: it should be printed once that $hung"
done
# for a task that is refused nobody is asked
rm -f "$scratch/stuck"
echo "wedge nvmlInit_v2" >"$scratch/n1.gpus"
sed -i 's/$/ nvml_timeout=600/' "$scratch/n1/plugstack.conf"
write_yaml n1 <<<"limits: {stream_chunk: {max: 16M}}"
try srun -w n1 -n 1 --gres=gpu:1 --zero-stream-chunk=40M true
fails "a limit and a wedged driver" \
	"40M is not allowed: stream_chunk must be at most 16M by $scratch/n1/zero.yaml"
write_yaml n1 <<<"defaults: {preload_path: $libzero}"
[[ ! -e $scratch/stuck ]] || wrong "a limit and a wedged driver: NVML was asked"
# tasks are launched beside the query
begin launched srun -v -w n1 -n 1 --gres=gpu:1 --zero true
wait_for grep -q "Node n1, 1 tasks started" "$scratch/launched.err"
wait_for test -s "$scratch/stuck"
kill "$(<"$scratch/stuck")"
tried launched
((status == 0)) || wrong "a step whose query is ended: it should run"
rm "$scratch"/*.gpus

sed -i 's/nvml_timeout=600/nvml_timeout=601/' "$scratch/n1/plugstack.conf"
try srun -w n1 -n 1 --zero true
allowed='config=PATH or nvml=PATH with an absolute path, nor nvml_timeout=SECONDS from 1 to 600'
fails "no time for NVML" "plugstack.conf: 'nvml_timeout=601' is not $allowed"
sed -i 's/ nvml_timeout=.*//' "$scratch"/n?/plugstack.conf

# ---- a Slurm without PMIx ------------------------------------------------------------------------

plugins=$(scontrol show config | sed -n 's/^PluginDir *= //p')
mkdir "$scratch/plugins" "$scratch/without"
ln -s "$plugins"/*.so "$scratch/plugins"
rm -f "$scratch/plugins"/mpi_pmix*.so
{
	grep -v '^PluginDir=' "$SLURM_CONF"
	echo "PluginDir=$scratch/plugins"
} >"$scratch/without/slurm.conf"
without=(env SLURM_CONF="$scratch/without/slurm.conf")
no_pmix=": this Slurm has no PMIx plugin (no mpi_pmix.so in $scratch/plugins)"
try "${without[@]}" srun --zero true
refused "no PMIx, srun" "$no_pmix"
try "${without[@]}" salloc -Q --zero srun true
refused "no PMIx, srun within salloc" "$no_pmix"
try "${without[@]}" srun --zero --mpi=none true
silent "no PMIx, srun that says how"
try "${without[@]}" salloc -Q --zero srun --no-zero true
silent "no PMIx, srun without zero within salloc"
try "${without[@]}" srun test "--zero"
silent "no PMIx, srun without zero"

# ---- what is left --------------------------------------------------------------------------------

# Programs that have the plugin in them: srun, sbatch, salloc and slurmstepd.
plugin_is_in() {
	grep -lF "$scratch/spank_zero.so" /proc/[0-9]*/maps 2>/dev/null
}

nodes_are_up "in the end"
plugin_is_gone() {
	[[ ! $(plugin_is_in) ]]
}
within 120 plugin_is_gone || fail "a slurmstepd is left: $(plugin_is_in)"
# Each slurmstepd logged its end, as one that died would not.
ends_are_logged() {
	local node log
	for node in "${nodes[@]}"; do
		log=$scratch/slurmd-$node.log
		sed -n 's/.* launch task StepId=\([^ ]*\) .*/\1/p
			s/.* Launching batch \(job \|JobId=\)\([0-9]*\) .*/\2.batch/p' "$log" |
			sort >"$scratch/begun"
		sed -En 's/.*\[([0-9]+\.[^]]*)\] (stepd_cleanup: )?done with (job|step)\>.*/\1/p' \
			"$log" | sort |
			diff "$scratch/begun" - >"$scratch/out" && [[ -s $scratch/begun ]] || return
	done
}
within 120 ends_are_logged || wrong "a slurmstepd died"
if find "$scratch" -type f '(' -name core -o -name 'core.*' ')' | grep .; then
	fail "a program crashed"
fi
