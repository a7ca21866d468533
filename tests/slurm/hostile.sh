#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a hostile user can send, forge and leave in files, tried by one who is not root: it is
# refused as that user, soon, with at most one plain line. Nothing of theirs runs as root, root
# reads nothing for them, root's log stays one line an event, no node is drained, and somebody
# else's job goes on. doc/threats.md names these tests.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
umask 022
cluster_start
user=nobody
chmod 755 "$scratch"
cp "$libzero" "$scratch/libzero.so"
libzero=$scratch/libzero.so
plugin_mode=required # where an error that is returned drains the node
plugin_on
as_user=(runuser -u "$user" -- env -C "$scratch")
"${as_user[@]}" test -r "$SLURM_CONF" || skip slurm "$user cannot reach $scratch"
export SLURM_MEM_PER_NODE=100 SBATCH_MEM_PER_NODE=100
seed=${HOSTILE_SEED:-$RANDOM}
echo "HOSTILE_SEED=$seed"

# A client without the plugin, which sets the plugin's variables itself.
mkdir "$scratch/forged"
: >"$scratch/forged/plugstack.conf"
sed "s|^PlugStackConfig=.*|PlugStackConfig=$scratch/forged/plugstack.conf|" "$SLURM_CONF" \
	>"$scratch/forged/slurm.conf"
forged=("${as_user[@]}" "SLURM_CONF=$scratch/forged/slurm.conf" SLURM_ZERO=on)

# Somebody else's job, from the first minute to the last.
neighbour=$(sbatch --parsable -w n2 -o /dev/null --wrap "sleep 3000")
neighbour_runs() {
	local job
	job=$(scontrol -o show job "$neighbour")
	[[ $job == *" JobState=RUNNING "* && $job == *" Restarts=0 "* ]]
}
wait_for neighbour_runs

# ---- what a command did --------------------------------------------------------------------------

wrong() {
	echo "---- $*: status $status, and it printed" >&2
	head -c 4000 "$scratch/out" | cat -v >&2
	fail "$*"
}

# is_plain FILE: nothing in it that a terminal obeys.
is_plain() {
	! LC_ALL=C grep -aqP '[\x01-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' "$1"
}

# What is tried runs beside what follows, until `judge`: survives WHAT COMMAND... ends, well or not;
# works WHAT COMMAND... ends well; refuses WHAT TEXT COMMAND... fails with a line that has the text.
tried=() wanted=() texts=()
try() {
	begin "${#tried[@]}" "${@:4}"
	tried+=("$1") wanted+=("$2") texts+=("$3")
}

survives() {
	try "$1" any "" "${@:2}"
}

works() {
	try "$1" good "" "${@:2}"
}

refuses() {
	try "$1" bad "$2" "${@:3}"
}

# judge: waits for all that was tried. Of each the plugin printed one plain line at most.
judge() {
	local i what
	for i in "${!tried[@]}"; do
		what=${tried[i]}
		ended "$i"
		cat "$scratch/err" >>"$scratch/out"
		((status != 124)) || wrong "$what: it should end"
		(($(grep -ac spank_zero: "$scratch/out") <= 1)) ||
			wrong "$what: the plugin should print one line"
		is_plain "$scratch/out" || wrong "$what: that is no plain line"
		grep -aq confidential "$scratch/out" && wrong "$what: root read a file for the user"
		[[ ${wanted[i]} != good ]] || ((status == 0)) || wrong "$what: it should go well"
		[[ ${wanted[i]} != bad ]] || ((status != 0)) || wrong "$what: it should fail"
		[[ ! ${texts[i]} ]] ||
			grep -a spank_zero: "$scratch/out" | grep -qF -- "${texts[i]}" ||
			wrong "$what: the plugin should print: ${texts[i]}"
	done
	[[ ! -e $scratch/owned ]] || wrong "a shell read a string"
	tried=() wanted=() texts=()
}

# ---- strings -------------------------------------------------------------------------------------

# noise BYTES: random ones but NUL.
noise() {
	LC_ALL=C awk -v seed="$((seed++))" -v bytes="$1" \
		'BEGIN {srand(seed); for (i = 0; i < bytes; i++)
			printf "%c", 1 + int(rand() * 255)}'
}

long=$(printf '%0100000d' 1)
# shellcheck disable=SC2016 # nothing of it is to be expanded
strings=(
	'%n%n%s%s%99999999s%1$n'
	$'\e[31mred\e]0;title\a'
	$'one\n[2026-01-01T00:00:00.000] error: forged'
	$'\xc2\x9b31m\xc2\x85'
	"$long"
	"; touch $scratch/owned; \$(touch $scratch/owned) \`touch $scratch/owned\`"
	"$(noise 300)"
)
options=(stage stream_chunk flatten vram_reserve config)
upper=(STAGE STREAM_CHUNK FLATTEN VRAM_RESERVE CONFIG)
for i in "${!strings[@]}"; do
	string=${strings[i]}
	option=$((i % ${#options[@]}))
	refuses "string $i as a flag" "--zero-${options[option]//_/-}: " \
		"${as_user[@]}" srun "--zero-${options[option]//_/-}=$string" true
	refuses "string $i as a variable on the node" "ZERO_${upper[option]}: " \
		"${forged[@]}" "ZERO_${upper[option]}=$string" srun -w n2 true
	refuses "string $i in a forged request" "SLURM_ZERO_STEP: " "${forged[@]}" \
		"SLURM_ZERO_STEP=${options[option]}=$string" srun -w n2 true
	refuses "string $i as ZERO_ENABLED" "ZERO_ENABLED: " \
		"${as_user[@]}" "ZERO_ENABLED=$string" srun true
	# What is no option of theirs does not count, whatever it is.
	works "string $i everywhere else" "${forged[@]}" "SLURM_ZERO=on:$string" \
		"ZERO_RESOLVED=$string" "LD_PRELOAD=" "SLURM_JOB_PARTITION=$string" \
		"CUDA_VISIBLE_DEVICES=0,$string" "MASTER_ADDR=$string" "MASTER_PORT=$string" \
		"PMIX_$i=$string" srun -w n2 -J "${string:0:100}" true
	works "string $i without zero" "${forged[@]}" "SLURM_ZERO=off" "ZERO_RESOLVED=$string" \
		"PMIX_$i=$string" srun -w n2 true
	judge
done
for file in stage config; do
	{
		printf '#!/bin/bash\n#SBATCH --zero-%s=' "$file"
		head -c 1048576 /dev/zero | tr '\0' 7
		printf '\ntrue\n'
	} >"$scratch/long.sh"
	refuses "a line of 1M in a script" "" "${as_user[@]}" sbatch -o /dev/null "$scratch/long.sh"
	judge
done

# ---- a file of the user's ------------------------------------------------------------------------

mkdir -m 777 "$scratch/lair"
lair=$scratch/lair
echo "confidential: 1" >"$scratch/secret.yaml"
cp "$scratch/secret.yaml" "$scratch/other.yaml"
chown daemon "$scratch/other.yaml"
chmod 600 "$scratch/secret.yaml" "$scratch/other.yaml"
ln -s "$scratch/secret.yaml" "$lair/link"
ln -s loop "$lair/loop"
mkdir "$lair/folder"
mkfifo "$lair/pipe"
mknod "$lair/device" c 1 5 # an endless one
chmod 666 "$lair/pipe" "$lair/device"
{
	echo "version: 1"
	head -c 2097152 /dev/zero | tr '\0' '#'
} >"$lair/huge"
head -c 1000000 /dev/zero | tr '\0' '[' >"$lair/deep"
{
	echo 'a: &a [x, x, x, x, x, x, x, x, x]'
	for letter in {b..k}; do
		echo "$letter: &$letter [*a, *a, *a, *a, *a, *a, *a, *a, *a]"
	done
} >"$lair/bomb"
{
	printf 'version: 1\ndefaults:\n'
	seq -f '  k%.0f: 1' 60000
} >"$lair/keys"
head -c 1000000 /dev/zero | tr '\0' 'k' >"$lair/line"
printf 'version: 1\ndefaults:\n  stage: "1\0"\n' >"$lair/nul"
noise 5000 >"$lair/noise"
printf 'version: 1\ndefaults: {"\\e[31m\\n[2026] forged": 1}\n' >"$lair/escape"
denied="cannot be opened: Permission denied"
for trap in "/dev/zero:is not a regular file" "/etc/shadow:$denied" "$scratch/secret.yaml:$denied" \
	"$scratch/other.yaml:$denied" "$lair/link:$denied" \
	"$lair/loop:cannot be opened: Too many levels" \
	"$lair/folder:is not a regular file" "$lair/pipe:is not a regular file" \
	"$lair/device:is not a regular file" "$lair/huge:is too large" "$lair/deep:1:1: " \
	"$lair/bomb:1:" "$lair/keys:3:3: there is no option" "$lair/line:1:1: " "$lair/nul:" \
	"$lair/noise:" "$lair/escape:there is no option '?[31m" \
	"/proc/self/status:is a file of /proc" "/proc/self/maps:is a file of /proc" \
	"/proc/self/fd/3:$denied" "/proc/1/environ:$denied" "/dev/stdin:is not a regular file"; do
	((${#tried[@]} < 8)) || judge
	[[ $trap == /dev/stdin* || $trap == */fd/3* ]] && continue # another file there
	refuses "${trap%%:*}" "${trap#*:}" "${as_user[@]}" srun "--zero-config=${trap%%:*}" true
done
# A node opens no file of theirs.
refuses "a file on the node" "ZERO_CONFIG: '$lair/pipe' is not read here" \
	"${forged[@]}" "ZERO_CONFIG=$lair/pipe" srun -w n2 true
works "a file on the node, forged" \
	"${forged[@]}" "SLURM_ZERO_STEP=config=$lair/pipe" srun -w n2 true
strange=$lair/$'\e[31m\n[2026-01-01T00:00:00.000] error: forged'
mkdir -m 777 "$strange"
refuses "a folder with a strange name" "hm: cannot be opened" \
	"${as_user[@]}" env -C "$strange" srun --zero-config=hm true
judge

# Nor is a program taken for a script of scrontab's because of its name.
printf '#!/bin/sh\n#SCRON --zero-stage=2\nenv\n' >"$lair/orted"
chmod 755 "$lair/orted"
run_all "${as_user[@]}" SLURM_GET_USER_ENV=1 srun -w n2 "$lair/orted"
((status == 0)) || wrong "a program with the name of a daemon"
grep -q '^SLURM_SPANK__SLURM_SPANK_OPTION_zero' "$scratch/out" && wrong "its lines are flags"

# ---- code of the user's --------------------------------------------------------------------------

# opened FLAG...: the open files of a task, each with its kind.
opened() {
	run "${as_user[@]}" srun "$@" --gres=gpu:1 -w n2 ls -l /proc/self/fd
	((status == 0)) || wrong "open files of srun $*"
	sed -n 's/.* \([0-9]* -> [a-z/]*\).*/\1/p' "$scratch/out"
}
opened --mpi=pmix >"$scratch/opened"
opened --zero >"$scratch/opened-zero"
diff "$scratch/opened" "$scratch/opened-zero" >&2 || wrong "a zero task has other files open"

# Where a program has more rights than the user, the loader does not heed the variable.
cp "$(command -v cat)" "$scratch/cat"
cp "$scratch/cat" "$scratch/setuid-cat"
chmod 4755 "$scratch/setuid-cat"
works "a program" "${as_user[@]}" srun --zero -w n2 "$scratch/cat" /proc/self/maps
judge
grep -qF "$libzero" "$scratch/out" || wrong "a program should have the library"
works "a setuid program" "${as_user[@]}" srun --zero -w n2 "$scratch/setuid-cat" /proc/self/status \
	/proc/self/maps
judge
if grep -qx "Uid:"$'\t'"[0-9]*"$'\t'"0"$'\t'"0"$'\t'"0" "$scratch/out"; then
	grep -qF "$libzero" "$scratch/out" && wrong "a setuid program has the library"
	grep -q 'ERROR: ld\.so' "$scratch/err" &&
		wrong "a setuid program: the loader should not complain"
else
	echo "setuid programs have no rights here: not tried"
fi

# A library tells who loads it, by whatever name it is found.
if command -v cc >/dev/null; then
	cat >"$scratch/mark.c" <<'C'
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void mark(void)
{
	FILE *marks = fopen(MARKS, "a");

	if (marks) {
		fprintf(marks, "%d %d\n", (int)getuid(), (int)geteuid());
		fclose(marks);
	}
}
C
	cc -shared -fPIC -o "$lair/mark.so" "$scratch/mark.c" -DMARKS="\"$scratch/marks\"" ||
		fail "cc failed"
	for name in libnvidia-ml.so.1 libyaml-0.so.2 libzero.so.2 libpmix.so.2 libslurmfull.so; do
		ln -s mark.so "$lair/$name"
	done
	: >"$scratch/marks"
	chmod 666 "$scratch/marks"
	sed -i 's/ nvml=.*//' "$scratch/n2/plugstack.conf" # NVIDIA's own is looked for
	run_all "${as_user[@]}" "LD_PRELOAD=$lair/mark.so" srun --zero --gres=gpu:1 -w n2 true
	((status == 0)) || wrong "a preloaded library of the user's: the step should run"
	uid=$(id -u "$user")
	grep -qx "$uid $uid" "$scratch/marks" || wrong "the library should tell who loads it"
	run_all "${forged[@]}" "LD_PRELOAD=$lair/mark.so" "LD_LIBRARY_PATH=$lair" \
		"LD_AUDIT=$lair/mark.so" \
		ZERO_BACKEND=cuda "ZERO_NCCL=$lair/mark.so" \
		"ZERO_RESOLVED=preload_path=$lair/mark.so" \
		"ZERO_PRELOAD_PATH=$lair/mark.so" "SLURM_ZERO=on:LD_PRELOAD" \
		"PATH=$lair:$PATH" srun -w n2 --gres=gpu:1 true
	grep -vx "$uid $uid" "$scratch/marks" >&2 && wrong "another user loaded the user's library"
fi

# ---- what is left --------------------------------------------------------------------------------

neighbour_runs || wrong "somebody else's job did not go on"
scancel "$neighbour"
wait_for are_over "$neighbour"
wait_for all_idle
run_all sinfo -h -R
[[ ! -s $scratch/out ]] || wrong "nodes are down for a reason"
for log in "$scratch"/slurmd-n*.log; do
	grep -av '^\[20[0-9][0-9]-' "$log" >"$scratch/out" && wrong "a line of $log was forged"
	grep -a spank_zero "$log" >"$scratch/out"
	is_plain "$scratch/out" || wrong "$log is not plain"
	grep -aq 'forged' <(grep -av spank_zero "$log") && wrong "a line of $log was forged"
done
grep -q spank_zero "$scratch/slurmd-n2.log" || wrong "the log should have the plugin's lines"
