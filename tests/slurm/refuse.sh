#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a user may not set is refused before anything is submitted, with one line: wrong values,
# values beyond the site's limits, locked options, wrong files. What only the partition, node or GPU
# forbids is refused as soon as that is known.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
# shellcheck source=tests/slurm/table.sh
. "$top_srcdir/tests/slurm/table.sh"
read_table
cluster_start
plugin_on
yaml=$scratch/zero.yaml

wrong() {
	cat "$scratch/out" "$scratch/err" >&2
	cluster_logs
	fail "$*"
}

# error_has TEXT...: checks that the error has all texts
error_has() {
	local text
	for text; do
		grep -qF -- "$text" "$scratch/err" || wrong "$what: the line lacks '$text'"
	done
}

# is_refused COMMAND TEXT...: checks that the last COMMAND failed with one line that has the texts
is_refused() {
	local command=$1
	shift
	((status)) || wrong "$what: $command did not fail"
	[[ -s $scratch/out || $(wc -l <"$scratch/err") != 1 ]] ||
		error_has "$command: error: spank_zero: "
	[[ ! -s $scratch/out && $(wc -l <"$scratch/err") == 1 ]] ||
		wrong "$what: $command did not print one line on stderr"
	error_has "$@"
}

# refused WHAT ARGUMENT TEXT...: the argument, a flag or NAME=VALUE, is refused by one of the three
# commands, each in turn: they have the plugin's code in common.
commands=(sbatch salloc srun) turn=0
refused() {
	local what=$1 argument=$2 command=${commands[turn++ % 3]}
	shift 2
	if [[ $argument == -* ]]; then
		run "$command" "$argument" "$program"
	else
		run env "$argument" "$command" --zero "$program"
	fi
	is_refused "$command" "$@"
}

# both NAME VALUE TEXT...: that option as a flag and as a variable, which the line begins with
both() {
	local name=$1 value=$2
	shift 2
	refused "${flag_of[$name]}" "${flag_of[$name]}=$value" "${flag_of[$name]}: " "$@"
	refused "${variable_of[$name]}" "${variable_of[$name]}=$value" "${variable_of[$name]}: " \
		"$@"
}

program=$scratch/job.sh # which sbatch takes too
printf '#!/bin/sh\n#SBATCH -o /dev/null\ntrue\n' >"$program"
chmod +x "$program"

next_job() {
	scontrol show config | awk '/^NEXT_JOB_ID/ {print $3}'
}
first_job=$(next_job)

# ---- wrong values

long=/$(printf '%05000d' 0)
for name in "${names[@]}"; do
	case ${argument_of[$name]} in
	SIZE*)
		both "$name" 40MB "'40MB' is not a size"
		both "$name" 2T "'2T' is out of range" "to 1T is allowed"
		;;&
	*PERCENT%)
		both "$name" 101% "'101%' is out of range: 0% to 100% is allowed"
		;;
	DIR)
		both "$name" "$long" "at most 4095 are allowed"
		;;
	0"|"*)
		both "$name" x "'x' is not a whole number from 0 to"
		both "$name" 99 "'99' is out of range: 0 to"
		;;
	SIZE* | FILE) ;;
	*"|"*)
		both "$name" x "'x' is not one of ${argument_of[$name]%%|*}, "
		both "$name" "" "'' is not one of"
		;;
	*) fail "${flag_of[$name]}=${argument_of[$name]}: the test knows no wrong value for it" ;;
	esac
done
run env ZERO_ENABLED=maybe srun "$program"
what=ZERO_ENABLED is_refused srun "ZERO_ENABLED: 'maybe' is not one of yes, no" \
	"override it with --zero or --no-zero"
# The variable may be another program's.
refused "a foreign value" ZERO_STAGE=zero2 \
	"ZERO_STAGE: 'zero2' is not a whole number from 0 to 3;" \
	"override it with --zero-stage, or turn zero off with --no-zero"
refused "a foreign value without a flag" ZERO_CHECK=all "ZERO_CHECK: 'all' is not" \
	"unset it, or turn zero off with --no-zero"

# ---- a user's own file

own=$scratch/own.yaml
# wrong_file TEXT...: a user file with a wrong second line is refused
wrong_file() {
	printf 'version: 1\n%s\n' "$1" >"$own"
	shift
	refused "--zero-config" "--zero-config=$own" "$own:" "$@"
	refused ZERO_CONFIG "ZERO_CONFIG=$own" "$own:" "$@"
}

wrong_file 'defaults: {stage: 7}' "$own:2:19: " "'7'"
wrong_file 'defaults: {stge: 1}' "$own:2:12: " 'did you mean stage?'
wrong_file 'locked: [stage]' "$own:2:1: " "only the site's file may have locked"
wrong_file 'defaults: [1]' "$own:2:11: "
wrong_file 'defaults: {stage: 1' "$own:3:1: "
wrong_file 'defaults: {stage: 1, stage: 1}' "$own:2:22: "
refused "no file" --zero-config="$scratch/none.yaml" "$scratch/none.yaml: "
refused "a folder" --zero-config="$scratch" "$scratch: "

# ---- limits

# bounds NAME: into the array $bounds: less than the min, min, max, more than that; empty for what
# has none
bounds() {
	bounds=()
	case ${argument_of[$1]} in
	*PERCENT%) bounds=(1% 2% 8% 9%) ;;
	SIZE*) bounds=(512K 1M 2M 4M) ;;
	0"|"*) bounds=(0 1 2 3) ;;
	esac
}

# line PATTERN: its number in the site's file, into $line
line() {
	line=$(grep -nE "$1" "$yaml" | cut -d: -f1)
}

{
	printf 'defaults:\n  preload_path: %s\nlimits:\n' "$libzero"
	for name in "${names[@]}"; do
		bounds "$name"
		((${#bounds[@]})) && printf '  %s:\n    min: "%s"\n    max: "%s"\n' "$name" \
			"${bounds[@]:1:2}"
	done
} | write_yaml
limited=0
for name in "${names[@]}"; do
	bounds "$name"
	((${#bounds[@]})) || continue
	((++limited))
	line "^  $name:"
	bound="is not allowed: $name must be"
	both "$name" "${bounds[0]}" \
		"${bounds[0]} $bound at least ${bounds[1]} by $yaml:$((line + 1))"
	both "$name" "${bounds[3]}" \
		"${bounds[3]} $bound at most ${bounds[2]} by $yaml:$((line + 2))"
	printf 'version: 1\ndefaults:\n  %s: "%s"\n' "$name" "${bounds[3]}" >"$own"
	refused "a file beyond limits" --zero-config="$own" \
		"$own:3: ${bounds[3]} $bound at most ${bounds[2]} by $yaml:$((line + 2))"
done
((limited > 3)) || fail "there are only $limited options with limits"

# ---- locks

{
	printf 'defaults:\n  preload_path: %s\nlocked:\n' "$libzero"
	printf '  - %s\n' "${names[@]}"
} | write_yaml
for name in "${names[@]}"; do
	value "$name" 1
	line "^  - $name\$"
	both "$name" "$value" " is not allowed: $name is locked at " " by $yaml:$line"
	printf 'version: 1\ndefaults:\n  %s: "%s"\n' "$name" "$value" >"$own"
	refused "a file with a locked option" --zero-config="$own" "$own:3: " \
		" is not allowed: $name is locked at " " by $yaml:$line"
done

[[ $(next_job) == "$first_job" ]] || wrong "something was submitted"

# a lock accepts the locked value
flags 0
variables 0
run srun "${flags[@]}" "$program"
((status == 0)) || wrong "a lock refuses the locked value of a flag"
run env "${variables[@]}" srun --zero "$program"
((status == 0)) || wrong "a lock refuses the locked value of a variable"

# an unused value may be wrong
run env ZERO_STAGE=9 srun --no-zero "$program"
((status == 0)) || wrong "srun --no-zero with a wrong variable failed"

# ---- what holds in one partition, on one node or GPU

write_yaml <<YAML
defaults: {preload_path: $libzero}
partitions:
  small:
    limits: {stream_chunk: {max: 1M}}
    locked:
      - flatten
nodes:
  n2:
    limits: {bucket: {max: 2M}}
gpus:
  "*Small*":
    limits: {stage: {max: 1}}
YAML
echo 'gpu GPU-1 20G 24G Test Small' >"$scratch/n1.gpus"
echo 'gpu GPU-2 60G 80G Test Big' | tee "$scratch/n2.gpus" >"$scratch/n3.gpus"
small="stream_chunk must be at most 1M by"

# inside WHAT TEXT... -- COMMAND...: refused by the srun inside a job, which starts no step
inside() {
	local what=$1 texts=() job
	shift
	while [[ $1 != -- ]]; do
		texts+=("$1")
		shift
	done
	shift
	run "$@"
	job=$(awk '/Granted job allocation/ {print $NF}' "$scratch/err")
	sed -i '/^salloc: /d' "$scratch/err"
	is_refused srun "${texts[@]}"
	grep -q "launch task StepId=$job\." "$scratch"/slurmd-*.log &&
		wrong "$what: a step was started"
}
inside "a partition's limit in its job" "--zero-stream-chunk: 2M is not allowed" \
	"$small $yaml:5" -- \
	salloc -p small srun --zero-stream-chunk=2M "$program"
inside "a partition's limit in its job" "ZERO_STREAM_CHUNK: 2M is not allowed" "$small $yaml:5" -- \
	salloc -p small env ZERO_STREAM_CHUNK=2M srun --zero "$program"
inside "a partition's limit for salloc's flag" "--zero-stream-chunk: 2M" "$small $yaml:5" -- \
	salloc -p small --zero-stream-chunk=2M srun "$program"
inside "a partition's lock in its job" "--zero-flatten: host is not allowed" "$yaml:7" -- \
	salloc -p small srun --zero-flatten=host "$program"
run salloc -p test srun --zero-stream-chunk=2M --zero-flatten=host "$program"
((status == 0)) || wrong "a partition's limit holds in another one"

# The batch script continues: only its srun fails.
cat >"$scratch/batch.sh" <<JOB
#!/bin/sh
$(command -v srun) "$program"
echo "srun: \$?"
JOB
run sbatch -p small --zero-stream-chunk=2M -o "$scratch/batch" "$scratch/batch.sh"
((status == 0)) || wrong "sbatch cannot know the partition, but refused"

# on_node WHAT NODE TEXT... -- COMMAND...: refused by that node alone, with one line of the plugin
on_node() {
	local what=$1 node=$2 texts=()
	shift 2
	while [[ $1 != -- ]]; do
		texts+=("$1")
		shift
	done
	shift
	run "$@"
	((status)) || wrong "$what: it did not fail"
	[[ $(grep -c spank_zero "$scratch/err") == 1 ]] ||
		wrong "$what: there is not one line of ours"
	error_has "error: spank_zero: node $node: " "${texts[@]}"
	[[ ! -s $scratch/out ]] || wrong "$what: something ran"
}
on_node "a partition's limit" n1 "--zero-stream-chunk: 2M is not allowed" "$small" \
	"n1/zero.yaml:5" -- \
	srun -w n1 -n 2 -p small --zero-stream-chunk=2M "$program"
on_node "a partition's limit" n3 "ZERO_STREAM_CHUNK: 2M is not allowed" "$small" \
	"n3/zero.yaml:5" -- \
	env ZERO_STREAM_CHUNK=2M srun -w n3 -n 2 -p small --zero "$program"
on_node "a node's limit" n2 "--zero-bucket: 4M is not allowed" "n2/zero.yaml:10" -- \
	srun -N 3 -n 3 --zero-bucket=4M "$program"
on_node "a GPU's limit" n1 "--zero-stage: 2 is not allowed" "n1/zero.yaml:13" -- \
	srun -N 3 -n 3 --gres=gpu:1 --zero-stage=2 "$program"
run srun -N 1 -w n1 --zero-stage=2 "$program"
((status == 0)) || wrong "a GPU's limit holds without it"

wait_for grep -q '^srun: [0-9]' "$scratch/batch"
if ! grep -q '^srun: [1-9]' "$scratch/batch" ||
	[[ $(grep -c '^srun: error: ' "$scratch/batch") != 1 ]] ||
	! grep -q \
	"^srun: error: spank_zero: --zero-stream-chunk: 2M .*$small $scratch/n./zero.yaml:5\$" \
		"$scratch/batch"; then
	cat "$scratch/batch" >&2
	wrong "a partition's limit in a batch job"
fi

# No node may be drained.
[[ -z $(sinfo -h -N -t drain,drained,draining,down,fail -o %N) ]] ||
	wrong "nodes were drained: $(sinfo -R)"
run srun -N 3 -n 3 --zero-stage=1 "$program"
((status == 0)) || wrong "a good step failed afterwards"
