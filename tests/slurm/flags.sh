#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each option through sbatch, salloc and srun, as a flag, a variable, in a user's file and in each
# section of the site's, with every layer over the one below, as tasks on each node get them.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
# shellcheck source=tests/slurm/table.sh
. "$top_srcdir/tests/slurm/table.sh"
read_table
cluster_start
plugin_on

# n3 has no GPU.
echo 'gpu GPU-1 60G 80G Test Big 80GB' >"$scratch/n1.gpus"
echo 'gpu GPU-2 20G 24G Test Small' >"$scratch/n2.gpus"

# ---- help

for command in sbatch salloc srun; do
	help=$("$command" --help 2>&1 | tr -s ' \n' ' ')
	for name in "${!flag_of[@]}"; do
		line="${flag_of[$name]}=${argument_of[$name]} ${help_of[$name]}"
		[[ $help == *" $line "* ]] || fail "$command --help does not print: $line"
	done
	[[ $help == *" --zero turn zero on"* && $help == *" --no-zero turn zero off"* ]] ||
		fail "$command --help has no --zero or no --no-zero"
	first=$("$command" --help 2>&1 | grep -oE '^ +--(no-)?zero[a-z-]*' | head -n 6 |
		tr -d ' \n')
	[[ $first == --zero--no-zero--zero-stage--zero-shard--zero-offload--zero-states ]] ||
		fail "$command --help begins with $first"
done

for layer in 5 6; do
	{ echo 'version: 1' && defaults "$layer"; } >"$scratch/own$layer.yaml"
done

# ---- what tasks get

# A word a line: srun would mix longer lines than 1024 bytes with those of other tasks.
# shellcheck disable=SC2016 # for the task's shell
task='for word in $ZERO_RESOLVED; do echo "$SLURMD_NODENAME $word"; done'
three=(-N 3 -n 3 /bin/sh -c "$task")

# read_task FILE NODE: reads the options of the task on the node into the array got
declare -A got
read_task() {
	local words word text
	mapfile -t words < <(sed -n "s/^$2 //p" "$1")
	((${#words[@]})) || {
		cat "$1" >&2
		cluster_logs
		fail "$what: no zero in the task on $2"
	}
	got=()
	for word in "${words[@]}"; do
		text=${word#*=}
		while [[ $text =~ ^(.*)%([0-9A-Fa-f]{2})(.*)$ ]]; do
			text=${BASH_REMATCH[1]}$(printf '%b' \
				"\\x${BASH_REMATCH[2]}")${BASH_REMATCH[3]}
			# the only percent signs that values have here stand at their end
			[[ ${BASH_REMATCH[1]} == *%* ]] || break
		done
		got[${word%%=*}]=$text
	done
}

# is NODE NAME VALUE
is() {
	bytes "$3"
	# auto becomes a number that differs between nodes
	[[ $bytes == auto && ${got[$2]} =~ ^[0-9]+$ && $2 == stream_threshold ]] && return
	[[ ${got[$2]-nothing} == "$bytes" ]] ||
		fail "$what: $2 is '${got[$2]-nothing}' on $1, not '$bytes'"
}

# got WHAT LAYER1 LAYER2 LAYER3 [CONFIG]: checks that tasks with output in $scratch/out have the
# values of these layers on n1, n2 and n3
got() {
	local what=$1 node name config=${5-}
	shift
	for node in "${nodes[@]}"; do
		read_task "$scratch/out" "$node"
		for name in "${names[@]}"; do
			value "$name" "$1"
			is "$node" "$name" "$value"
		done
		is "$node" config "$config"
		shift
	done
}

# ---- each option alone changes nothing else, and as a flag it turns zero on

# alone NAME VALUE: both in the background, into $scratch/NAME.flag and $scratch/NAME.variable
alone() {
	local step=(timeout 60 srun --jobid="$job" --overlap -N 1 -n 1 -w n1)
	"${step[@]}" "${flag_of[$1]}=$2" /bin/sh -c "$task" >"$scratch/$1.flag" 2>&1 </dev/null &
	env "${variable_of[$1]}=$2" "${step[@]}" --zero /bin/sh -c "$task" \
		>"$scratch/$1.variable" 2>&1 </dev/null &
}

was_alone() {
	local name=$1 layer=$2 form what other
	for form in flag variable; do
		what="$name as a $form alone"
		read_task "$scratch/$name.$form" n1
		for other in "${names[@]}"; do
			value "$other" 0
			[[ $other == "$name" ]] && value "$other" "$layer"
			is n1 "$other" "$value"
		done
		is n1 config ""
	done
}

salloc --no-shell -N 3 -n 3 2>"$scratch/err" || fail "no allocation: $(<"$scratch/err")"
job=$(squeue -h -o %A)
for name in "${names[@]}"; do
	value "$name" 1
	alone "$name" "$value"
done
alone config "$scratch/own5.yaml"
wait
scancel "$job"
for name in "${names[@]}"; do
	was_alone "$name" 1
done
for form in flag variable; do
	what="config as a $form alone"
	read_task "$scratch/config.$form" n1
	for name in "${names[@]}"; do
		value "$name" 5
		is n1 "$name" "$value"
	done
	is n1 config "$scratch/own5.yaml"
done

# ---- layer over layer

# site LAYER: the site's file with its layers up to that one
site() {
	if (($1 >= 1)); then
		defaults 1
	else
		echo 'defaults:'
	fi
	echo "  preload_path: $libzero"
	(($1 >= 2)) && printf 'gpus:\n  "*Big*":\n%s\n  "Test Small":\n%s\n' \
		"$(defaults 2 '    ')" "$(defaults 8 '    ')"
	(($1 >= 3)) && printf 'partitions:\n  test:\n%s\n' "$(defaults 3 '    ')"
	(($1 >= 4)) && printf 'nodes:\n  n1:\n%s\n  "n[2,04-9]":\n%s\n' \
		"$(defaults 4 '    ')" "$(defaults 8 '    ')"
}

# use_site LAYER
use_site() {
	site "$1" | write_yaml
	"$ZERORUN" --check-config "$scratch/zero.yaml" >"$scratch/out" 2>&1
	check "zerorun --check-config of layer $1" $?
}

ran "compiled defaults" srun --zero "${three[@]}"
got "compiled defaults" 0 0 0
use_site 1
ran defaults srun --zero "${three[@]}"
got defaults 1 1 1
use_site 2
ran gpus srun --zero --gres=gpu:1 "${three[@]}"
got gpus 2 8 1
use_site 3
ran partitions srun --zero --gres=gpu:1 "${three[@]}"
got partitions 3 3 3
ran "another partition" srun --zero -p small --gres=gpu:1 "${three[@]}"
got "another partition" 2 8 1
use_site 4
ran nodes srun --zero --gres=gpu:1 "${three[@]}"
got nodes 4 8 3
ran "a user's file" srun --gres=gpu:1 --zero-config="$scratch/own5.yaml" "${three[@]}"
got "a user's file" 5 5 5 "$scratch/own5.yaml"

export ZERO_CONFIG=$scratch/own5.yaml ZERO_ENABLED=yes
ran "a user's file by variable" srun --gres=gpu:1 "${three[@]}"
got "a user's file by variable" 5 5 5 "$scratch/own5.yaml"
ran "two files" srun --gres=gpu:1 --zero-config="$scratch/own6.yaml" "${three[@]}"
got "two files" 6 6 6 "$scratch/own6.yaml"
variables 6
flags 7
ran variables env "${variables[@]}" srun --gres=gpu:1 "${three[@]}"
got variables 6 6 6 "$scratch/own5.yaml"
ran flags env "${variables[@]}" srun --gres=gpu:1 "${flags[@]}" "${three[@]}"
got flags 7 7 7 "$scratch/own5.yaml"

# ---- the same by salloc and sbatch: steps inside inherit it

unset ZERO_CONFIG ZERO_ENABLED
inside=(srun /bin/sh -c "$task")
own=--zero-config=$scratch/own5.yaml

# batch NAME COMMAND...: a job that prints into $scratch/batch.NAME; --export=NONE leaves it no PATH
batch() {
	local name=$1
	shift
	cat >"$scratch/$name.sh" <<JOB
#!/bin/bash
$comments
$(command -v srun) /bin/sh -c '$task'
echo ended
JOB
	timeout 60 "$@" -N 3 -n 3 -o "$scratch/batch.$name" "$scratch/$name.sh" >"$scratch/out" 2>&1
	check "sbatch of $name" $?
}

comments=
batch yaml sbatch --zero
batch flags env "${variables[@]}" sbatch "$own" "${flags[@]}"
batch variables env ZERO_CONFIG="$scratch/own5.yaml" "${variables[@]}" sbatch --zero
batch none env "${variables[@]}" sbatch --export=NONE "$own" "${flags[@]}"
cp "$scratch/own5.yaml" "$scratch/gone.yaml"
batch no_variables env ZERO_ENABLED=yes ZERO_CONFIG="$scratch/gone.yaml" "${variables[@]}" \
	sbatch --export=NONE
batch no_file env ZERO_CONFIG="$scratch/gone.yaml" sbatch --zero
rm "$scratch/gone.yaml" # it is read once, where the job is submitted
comments=$(for flag in "$own" "${flags[@]}"; do echo "#SBATCH \"$flag\""; done)
batch comments sbatch

ran "salloc --zero" salloc --zero -N 3 -n 3 "${inside[@]}"
got "salloc --zero" 4 8 3
ran "salloc, variables" env ZERO_CONFIG="$scratch/own5.yaml" "${variables[@]}" \
	salloc --zero -N 3 -n 3 "${inside[@]}"
got "salloc, variables" 6 6 6 "$scratch/own5.yaml"
ran "salloc, flags" env "${variables[@]}" salloc "$own" "${flags[@]}" -N 3 -n 3 "${inside[@]}"
got "salloc, flags" 7 7 7 "$scratch/own5.yaml"
# options of srun override those of salloc
flags 8
ran "salloc, flags of srun" salloc "${flags[@]}" -N 3 -n 3 srun "$own" "${flags[@]}" \
	"${inside[@]:1}"
got "salloc, flags of srun" 8 8 8 "$scratch/own5.yaml"

# was_batch NAME LAYER1 LAYER2 LAYER3 [CONFIG]
was_batch() {
	local name=$1
	wait_for grep -q '^ended$' "$scratch/batch.$name"
	cp "$scratch/batch.$name" "$scratch/out"
	shift
	got "sbatch, $name" "$@"
}

was_batch yaml 4 8 3
was_batch flags 7 7 7 "$scratch/own5.yaml"
was_batch variables 6 6 6 "$scratch/own5.yaml"
was_batch none 7 7 7 "$scratch/own5.yaml"
was_batch no_variables 6 6 6 "$scratch/gone.yaml"
was_batch no_file 5 5 5 "$scratch/gone.yaml"
was_batch comments 7 7 7 "$scratch/own5.yaml"

# ---- the batch script itself, whose mpirun hands its options on to ranks

# shellcheck disable=SC2016 # for the script
printf '#!/bin/sh\necho "$ZERO_RESOLVED"\n' >"$scratch/script"
ran_batch "sbatch --export=NONE" -n 1 --export=NONE --zero-stage=1 --zero-stream-chunk=7M \
	"$scratch/script"
grep -q '^stage=1 .* stream_chunk=7340032 ' "$scratch/out" ||
	fail "after --export=NONE a batch script gets: $(<"$scratch/out")"

# A task alone.
# shellcheck disable=SC2016 # for the task's shell
task='printf "%s %s\n" "$SLURMD_NODENAME" "$ZERO_RESOLVED"'

# ---- a crontab: scrontab submits a script with the lines, and passes on no flag

cat >"$scratch/script" <<JOB
#!/bin/sh
#SCRON --zero-stage=1 --zero-stream-chunk 7M
$(command -v srun) /bin/sh -c '$task'
JOB
ran_batch "a crontab's script" -n 1 --export=NONE "$scratch/script"
grep ' stage=1 ' "$scratch/out" | grep -q ' stream_chunk=7340032 ' ||
	fail "an srun in a crontab gets: $(<"$scratch/out")"
if [[ $(type -P scrontab) ]]; then
	printf '#SCRON --zero-stage=9\n* * * * * true\n' >"$scratch/crontab"
	run_all scrontab "$scratch/crontab" </dev/null
	((status)) && grep -q "spank_zero: --zero-stage: '9' is out of range" "$scratch/out" ||
		fail "scrontab accepts a wrong stage: $(<"$scratch/out")"
fi

# ---- the plugin's line twice, as where a site includes it twice

for node in "" "${nodes[@]}"; do
	sed -i p "$scratch${node:+/$node}/plugstack.conf"
done
ran "srun with the plugin's line twice" srun --zero-stage=1 "${three[@]}"
# a job may wait for what is left of the one before
said=$(grep -v '^srun: job .* resources$' "$scratch/err")
[[ $(grep -c '^n[123] stage=1$' "$scratch/out") == 3 && -z $said ]] ||
	fail "with the plugin's line twice: $(<"$scratch/out")"
