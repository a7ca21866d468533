#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What turns zero on and off: flags and variables of a job and of the steps inside it, and the
# site's `enabled`. A step without zero inside a job with it has nothing of it.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
need_command python3 slurm
cp "$top_builddir/tests/double/.libs/container.so" "$scratch" || fail "container.so is not built"
cluster_start
plugin_on
env=$(command -v env)
library=$(ldd "$env" | awk '/libc\.so/ {print $3}') # one that is loaded anyway

# ---- what a task has, by the output of env

# lines FILE EXTENDED_REGEX
lines() {
	grep -E "$2" "$1"
}

wrong() {
	{
		echo "$1:"
		grep -E '^(ZERO|RANK|WORLD|LOCAL|MASTER|LD_|PMI|SLURM_ZERO|SLURM_MPI|SLURM_KILL)' \
			"$1"
		cat "$1.err"
	} >&2
	cluster_logs
	fail "lines ${BASH_LINENO[*]}: $2"
}

# on FILE STAGE
on() {
	[[ $(cat "$1.status") == 0 ]] || wrong "$1" "it failed"
	lines "$1" "^ZERO_RESOLVED=stage=$2 " >/dev/null || wrong "$1" "zero is not on at stage $2"
	for name in RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT PMIX_RANK \
		"LD_PRELOAD=$libzero" SLURM_MPI_TYPE=pmix SLURM_KILL_BAD_EXIT=1; do
		lines "$1" "^${name%%=*}=${name#*=}" >/dev/null ||
			lines "$1" "^$name=" >/dev/null || wrong "$1" "no $name"
	done
}

# Messages of Slurm when it is busy.
busy='^salloc: |^srun: ([Jj]ob [0-9]+ |Step created for )'

# off FILE [REGEX]: but for lines like that
off() {
	local ours='^(ZERO_RESOLVED|LD_PRELOAD|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)='
	ours+='|^(MASTER_ADDR|MASTER_PORT|PMIX_RANK|SLURM_MPI_TYPE|SLURM_KILL_BAD_EXIT)='
	[[ $(cat "$1.status") == 0 ]] || wrong "$1" "it failed"
	grep -qvE "$busy" "$1.err" && wrong "$1" "it was not silent"
	lines "$1" '^SLURM_PROCID=0' >/dev/null || wrong "$1" "it is no task"
	lines "$1" "$ours" | grep -vE "${2-^$}" && wrong "$1" "zero is not off"
}

# ---- the same steps in jobs of all kinds

cat >"$scratch/steps.sh" <<STEPS
#!/bin/bash
cd "\$1"
step() {
	local out=\$1
	shift
	timeout 60 "\$@" >"\$out" 2>"\$out.err" </dev/null
	echo \$? >"\$out.status"
}
step plain srun -n 1 env
step zero srun -n 1 --zero env
step stage srun -n 1 --zero-stage=0 env
step no srun -n 1 --no-zero env
step both srun -n 1 --no-zero --zero-stage=0 env
step variable $env ZERO_STAGE=1 srun -n 1 env
step yes $env ZERO_ENABLED=yes srun -n 1 env
step enabled_no $env ZERO_ENABLED=no srun -n 1 env
step flag_over_no $env ZERO_ENABLED=no srun -n 1 --zero-stage=0 env
step no_over_yes $env ZERO_ENABLED=yes ZERO_STAGE=1 srun -n 1 --no-zero env
step nested srun -n 1 sh -c 'srun --overlap -n 1 env'
step nested_stage srun -n 1 --zero sh -c 'srun --overlap -n 1 --zero-stage=0 env'
step nested_no srun -n 1 --zero sh -c 'srun --overlap -n 1 --no-zero env'
step foreign $env ZERO_STAGE=zero2 srun -n 1 --zero-stage=1 env
step back srun -n 1 --no-zero sh -c 'srun --overlap -n 1 --zero-stage=0 env'
step own_preload $env LD_PRELOAD=$library PMIX_MCA_zero_test=kept srun -n 1 --zero \
	sh -c 'srun --overlap -n 1 --no-zero env'
step own_master $env MASTER_ADDR=me MASTER_PORT=9 srun -n 1 --zero \
	sh -c 'srun --overlap -n 1 --no-zero env'
step nested_on srun -n 1 --zero sh -c 'srun --overlap -n 1 env'
step own_kill $env SLURM_KILL_BAD_EXIT=0 srun -n 1 --zero sh -c 'srun --overlap -n 1 --no-zero env'
step own_mpi $env SLURM_MPI_TYPE=none SLURM_KILL_BAD_EXIT=0 srun -n 1 --zero env
step own_mpi_flag srun --mpi=none -n 1 --zero env
touch ended
STEPS
chmod +x "$scratch/steps.sh"

# job NAME COMMAND...: the steps inside it, with their output in $scratch/NAME, beside what follows
job() {
	mkdir -p "$scratch/$1"
	begin "$1" "${@:2}" "$scratch/steps.sh" "$scratch/$1"
}

job_ended() {
	ended "$1"
	check "$1" "$status"
	wait_for test -e "$scratch/$1/ended"
}

# own_options: options of the step override those of the job; STAGE is that of --zero alone.
own_options() {
	local at=$scratch/$1
	on "$at/zero" "$2"
	on "$at/stage" 0
	off "$at/no"
	off "$at/both"
	on "$at/flag_over_no" 0
	off "$at/no_over_yes"
	on "$at/nested_stage" 0
	on "$at/foreign" 1 # a flag overrides it
	off "$at/nested_no"
	on "$at/back" 0
	off "$at/own_preload" "^LD_PRELOAD=$library\$"
	lines "$at/own_preload" '^PMIX_MCA_zero_test=kept$' >/dev/null ||
		wrong "$at/own_preload" "the user's own PMIX_MCA_zero_test is gone"
	off "$at/own_master" '^MASTER_(ADDR=me|PORT=9)$'
	off "$at/own_kill" '^SLURM_KILL_BAD_EXIT=0$'
	lines "$at/own_kill" '^SLURM_KILL_BAD_EXIT=0$' >/dev/null ||
		wrong "$at/own_kill" "the user's own SLURM_KILL_BAD_EXIT is gone"
	lines "$at/own_mpi" '^PMIX_RANK|^SLURM_MPI_TYPE=pmix|^SLURM_KILL_BAD_EXIT=1' &&
		wrong "$at/own_mpi" "the user's own SLURM_MPI_TYPE does not count"
	lines "$at/own_mpi" "^ZERO_RESOLVED=stage=$2" >/dev/null ||
		wrong "$at/own_mpi" "zero is not on"
	lines "$at/own_mpi_flag" '^PMIX_RANK' &&
		wrong "$at/own_mpi_flag" "--mpi=none does not count"
}

job zero_job sbatch --zero-stage=2 -o "$scratch/batch.zero"
job no_zero_job sbatch --no-zero -o "$scratch/batch.no_zero"
job plain_job salloc

job_ended zero_job
own_options zero_job 2
at=$scratch/zero_job
on "$at/plain" 2
on "$at/variable" 1 # what the script sets comes before what sbatch was told
on "$at/yes" 2
off "$at/enabled_no"
on "$at/nested" 2
on "$at/nested_on" 2

job_ended no_zero_job
own_options no_zero_job 3
at=$scratch/no_zero_job
off "$at/plain"
off "$at/variable"
on "$at/yes" 3
off "$at/enabled_no"
off "$at/nested"

job_ended plain_job
own_options plain_job 3
at=$scratch/plain_job
off "$at/plain"
off "$at/variable" # it turns nothing on
on "$at/yes" 3
off "$at/nested_on" # the flags were those of the outer step alone
off "$at/enabled_no"
off "$at/nested"
lines "$at/plain" '^SLURM_ZERO' && wrong "$at/plain" "a job without zero was touched"

# ---- a variable of the job, and the setting of the site

# one NAME COMMAND...: with its output in $scratch/NAME
one() {
	local name=$1
	shift
	run "$@" </dev/null
	mv "$scratch/out" "$scratch/$name"
	mv "$scratch/err" "$scratch/$name.err"
	echo "$status" >"$scratch/$name.status"
}

# refused NAME: with one line
refused() {
	[[ $(<"$scratch/$1.status") != 0 ]] || wrong "$scratch/$1" "it was not refused"
	[[ $(wc -l <"$scratch/$1.err") == 1 && ! -s $scratch/$1 ]] ||
		wrong "$scratch/$1" "there is not one line"
	lines "$scratch/$1.err" 'error: spank_zero: zero is switched off \(' |
		grep -qF "$scratch/zero.yaml:2" || wrong "$scratch/$1" "the line does not say why"
}

# none NAME VARIABLE...: submits a job with these variables, which do not reach it, but their effect
# does
none() {
	env "${@:2}" sbatch --export=NONE -n 1 -o "$scratch/$1" >"$scratch/out" 2>&1 <<JOB
#!/bin/bash
$(command -v srun) $env 2>$scratch/$1.err
echo "\$?" >$scratch/$1.status
JOB
	check "sbatch --export=NONE" $?
}
none none ZERO_ENABLED=yes ZERO_STAGE=1

one a env ZERO_ENABLED=yes salloc -n 1 srun env
on "$scratch/a" 3
one b env ZERO_ENABLED=no ZERO_STAGE=1 salloc -n 1 srun env
off "$scratch/b"
one c env ZERO_ENABLED=yes salloc -n 1 --no-zero srun env
off "$scratch/c"
one d env ZERO_ENABLED=no salloc -n 1 --zero-stage=1 srun env
on "$scratch/d" 1
one e env ZERO_ENABLED=yes srun -n 1 env
on "$scratch/e" 3
# a job within the job has what that has
one i salloc -n 1 --zero-stage=1 salloc -n 1 srun env
on "$scratch/i" 1
one j env ZERO_ENABLED=yes salloc -n 1 salloc -n 1 --no-zero srun env
off "$scratch/j"

one g env SLURM_KILL_BAD_EXIT=0 salloc -n 1 --zero srun env
lines "$scratch/g" '^SLURM_KILL_BAD_EXIT=0$' >/dev/null ||
	wrong "$scratch/g" "the user's own SLURM_KILL_BAD_EXIT is gone"

# other programs' variables turn nothing on
one f env ZERO_STAGE=zero2 ZERO_CHECK=1 srun -n 1 env
off "$scratch/f"
one h env ZERO_STAGE=1 ZERO_ENABLED=yes salloc -n 1 --zero-stage=2 srun env
on "$scratch/h" 2 # a variable that is as it was for salloc does not override its flag

wait_for test -s "$scratch/none.status"
on "$scratch/none" 1

write_yaml <<YAML
enabled: on
defaults: {preload_path: $libzero, stage: 2}
YAML
one a srun -n 1 env
on "$scratch/a" 2
one b srun -n 1 --no-zero env
off "$scratch/b"
one c env ZERO_ENABLED=no srun -n 1 env
off "$scratch/c"
one d salloc -n 1 srun env
on "$scratch/d" 2
one e salloc -n 1 --no-zero srun env
off "$scratch/e"
one f env ZERO_ENABLED=no salloc -n 1 srun env
off "$scratch/f"
one g salloc -n 1 srun --no-zero env
off "$scratch/g"
none no ZERO_ENABLED=no
one h salloc -n 1 --no-zero srun --zero-stage=1 env
on "$scratch/h" 1
wait_for test -s "$scratch/no.status"
off "$scratch/no"

write_yaml <<<'enabled: off'
one a srun -n 1 env
off "$scratch/a"
one b srun -n 1 --no-zero env
off "$scratch/b"
one c srun -n 1 --zero env
refused c
one d salloc -n 1 --zero-stage=1 env
refused d
one f env ZERO_STAGE=1 srun -n 1 env
off "$scratch/f"
one e env ZERO_ENABLED=yes sbatch -n 1 --wrap env
refused e
# a job that was submitted before the file was changed, or to where salloc does not know it to be
# off
one g env SLURM_ZERO=on srun -n 1 env
refused g

# One node alone: the site's own default does without zero there, a user's wish does not.
write_yaml "" n1 n3 <<YAML
enabled: on
defaults: {preload_path: $libzero}
YAML
one a srun -w n2 -n 1 env
[[ $(<"$scratch/a.status") == 0 ]] ||
	wrong "$scratch/a" "what the site wants fails on a node without zero"
lines "$scratch/a" '^(ZERO_RESOLVED|LD_PRELOAD|RANK|MASTER_ADDR)=' &&
	wrong "$scratch/a" "zero is not off"
sbatch -Q --wait -w n2 -n 1 -o "$scratch/script" --wrap env ||
	fail "a batch script where zero is off"
lines "$scratch/script" '^SLURM_ZERO=' &&
	wrong "$scratch/script" "libzero would take zero to be on there"
one b srun -w n2 -n 1 --zero env
[[ $(<"$scratch/b.status") != 0 ]] || wrong "$scratch/b" "zero is off on n2, and was not refused"
grep -q "spank_zero: node n2: zero is switched off on this node ($scratch/n2/zero.yaml:2" \
	"$scratch/b.err" ||
	wrong "$scratch/b" "the line does not say why"

# Nor does a file that is broken on a node alone, or a library that is missing there.
# does_without NAME WORDS COMMAND...: well, and says so
does_without() {
	one "$1" "${@:3}"
	[[ $(<"$scratch/$1.status") == 0 ]] ||
		wrong "$scratch/$1" "a node that is broken fails what the site wants"
	lines "$scratch/$1" '^LD_PRELOAD=' && wrong "$scratch/$1" "the library is preloaded"
	[[ $(grep -cF "$2" "$scratch/$1.err") == 1 ]] || wrong "$scratch/$1" "it does not print: $2"
}
printf 'version: 1\nenabled: on\ndefaults: {stge: 1}\n' >"$scratch/n2/zero.yaml"
does_without a "spank_zero: node n2: zero is not on: $scratch/n2/zero.yaml:3:12: " srun -w n2 -n 2 \
	env
lines "$scratch/a" '^(ZERO_RESOLVED|RANK|MASTER_ADDR|SLURM_ZERO)=' &&
	wrong "$scratch/a" "zero is not off"
write_yaml n2 <<YAML
enabled: on
defaults: {preload_path: $scratch/gone.so}
YAML
does_without b "spank_zero: node n2: $scratch/gone.so cannot be preloaded: " srun -w n2 -n 2 env
lines "$scratch/b" '^ZERO_RESOLVED=' >/dev/null || wrong "$scratch/b" "zero is off"
one b srun -w n2 -n 1 --zero env
[[ $(<"$scratch/b.status") != 0 ]] ||
	wrong "$scratch/b" "n2 has no library, and the user's job was not refused"

# A program on a node without the plugin would have other settings than its peers.
plugin_on
: >"$scratch/n3/plugstack.conf"
one a srun -w n3 -n 1 --zero-stage=1 "$top_builddir/tests/slurm/report_task" stage
[[ $(<"$scratch/a.status") != 0 ]] ||
	wrong "$scratch/a" "zero_open works on a node without the plugin"
grep -q "zero is on for this job, but node 'n3' has set no ZERO_RESOLVED" "$scratch/a.err" ||
	wrong "$scratch/a" "the node is not named"
one b srun -w n3 -n 1 "$top_builddir/tests/slurm/report_task" stage
[[ $(<"$scratch/b.status") == 0 ]] || wrong "$scratch/b" "zero_open fails where zero is not on"
plugin_on

# ---- how often srun is executed

cat >"$scratch/times.py" <<'PYTHON'
import struct
import subprocess
import sys

task = ["sh", "-c", "echo ready; read line", "sh"]
arguments = sys.argv[1].split("PROGRAM")
srun = subprocess.Popen(["srun", "-n1", *arguments[0].split(), *task, *arguments[1].split()],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert srun.stdout.readline() == b"ready\n"
with open(f"/proc/{srun.pid}/auxv", "rb") as file:
    vector = dict(struct.iter_unpack("@LL", file.read()))
with open(f"/proc/{srun.pid}/mem", "rb", buffering=0) as file:
    file.seek(vector[31])  # AT_EXECFN: by what name it was executed
    name = file.read(16).split(b"\0")[0]
srun.communicate(b"\n")
assert srun.returncode == 0
print("twice" if name == b"/proc/self/exe" else "once")
PYTHON

# executed TIMES ARGUMENTS COMMAND...: by the command around this srun
executed() {
	run "${@:3}" python3 "$scratch/times.py" "$2"
	[[ $status == 0 && $(<"$scratch/out") == "$1" ]] ||
		fail "${*:3} srun $2 is not executed $1: $(<"$scratch/out") $(<"$scratch/err")"
}
executed once "PROGRAM"
executed once "--zero PROGRAM"
executed once "-N 1 --zero-stage 2 PROGRAM --no-zero"
executed once "-N 1 PROGRAM --zero"
executed once "PROGRAM" env ZERO_ENABLED=no
executed once "--no-zero PROGRAM" env ZERO_ENABLED=yes
executed once "PROGRAM" salloc -Q -n1 --zero
executed once "--no-zero PROGRAM" salloc -Q -n1 --zero
executed once "PROGRAM" salloc -Q -n1 --zero env ZERO_ENABLED=no
executed once "--zero PROGRAM" salloc -Q -n1 --no-zero
executed once "--no-z --zero PROGRAM" # Slurm takes prefixes

# A flag of another plugin, which has no value
for node in "" "${nodes[@]}"; do
	sed -i "1i required $scratch/container.so" "$scratch${node:+/$node}/plugstack.conf"
done
executed once "--container-mount-home --zero PROGRAM"
plugin_on

# Where the site wants zero, the guess is wrong for an srun that makes its own allocation, and in a
# job for one that finds zero off in its partition.
write_yaml <<YAML
enabled: on
defaults: {preload_path: $libzero}
partitions: {small: {enabled: opt-in}}
YAML
executed once "PROGRAM" salloc -Q -n1
executed once "--no-zero PROGRAM" salloc -Q -n1
executed twice "PROGRAM"
executed twice "PROGRAM" salloc -Q -n1 -p small

# A broken file of a site that wants zero for all jobs is reported by each, and stops none.
printf 'version: 1\nenabled: on\ndefaults: {stge: 1}\n' >"$scratch/zero.yaml"
one a srun -n 1 env
[[ $(<"$scratch/a.status") == 0 ]] || wrong "$scratch/a" "a broken file stops a job"
lines "$scratch/a" '^(SLURM_ZERO|ZERO_RESOLVED|LD_PRELOAD)' && wrong "$scratch/a" "zero is not off"
grep -q "^srun: error: spank_zero: zero is not on, .*$scratch/zero.yaml:3:12: " "$scratch/a.err" ||
	wrong "$scratch/a" "the broken file is not reported"
