#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zerorun: what it would run, with stand-ins for mpirun and srun; then real ranks under mpirun.
# shellcheck source=tests/launcher/run.sh
. "${top_srcdir:?run me by make check}/tests/launcher/run.sh"
real_path=$PATH

# refused STATUS SENTENCE ARGUMENT...: one line on stderr that begins so, and nothing on stdout
refused() {
	local want=$1 sentence=$2
	shift 2
	run "$ZERORUN" "$@"
	is "$status" "$want"
	is "$out" ""
	is "${err:0:9+${#sentence}}" "zerorun: $sentence"
	has_not "$err" $'\n'
}

# stand_in NAME VERSION: a program that prints its arguments, and what the ranks would be told
stand_in() {
	mkdir -p "$scratch/bin"
	{
		printf '#!/bin/bash\n[[ $* == --version ]] && { echo %q; exit; }\n' "$2"
		printf '%s\n' 'printf "%s\n" "$@"' 'env | grep -E "^(ZERO|OMP|OMPI|LD)_" | sort' \
			'exit 33'
	} >"$scratch/bin/$1"
	chmod +x "$scratch/bin/$1"
}

# ---- the command line

run "$ZERORUN" --help
is "$status" 0
has "$out" 'Usage: zerorun [options] [--] program [arguments]'
has "$out" '--zero-stream-chunk=SIZE'
is "$err" ""
ZERO_STAGE=9 run "$ZERORUN" -n 2 --help
is "$status" 0
run "$ZERORUN" --version
has "$out" 'zerorun (slurm-zero) '

usage='no program was given. Usage: zerorun [options] [--] program [arguments]'
refused 2 "$usage"
refused 2 "$usage" -n 2 --
refused 2 'there is no option --foo: see zerorun --help' --foo=1 true
refused 2 'there is no option --zero-stge: did you mean --zero-stage?' --zero-stge=1 true
refused 2 'there is no option --zero-stage2: did you mean --zero-stage or --zero-states?' \
	--zero-stage2 true
refused 2 "--zero-stage: '4' is out of range: 0 to 3 is allowed" --zero-stage=4 true
refused 2 "--zero-stage: '' is not a whole number from 0 to 3" --zero-stage= true
refused 2 '--zero-stage needs a value: 0|1|2|3' --zero-stage
refused 2 "--zero-bucket: '1.5G' is not a whole number: write 1536M" --zero-bucket 1.5G true
for count in 0 -1 x 2x '' 99999999999; do
	refused 2 "-n: '$count' is not a whole number from 1 to 9999999" -n "$count" true
done
refused 2 "-n: '' is not a whole number from 1 to 9999999" -n
refused 2 '--launcher-arg needs a value: an argument for mpirun or srun' --launcher-arg
refused 2 '--no-zero: zerorun is for programs that use zero; start others with mpirun or srun' \
	--no-zero true
refused 2 "an argument ':' cannot be passed through mpirun or srun" echo a : b
refused 2 '-N needs Slurm: outside an allocation all ranks are on this machine' -N 2 true
refused 2 "--zero-config=x needs Slurm's plugin, which reads the file; without it, give flags" \
	--zero-config=x true
ZERO_STAGE=9 refused 2 "ZERO_STAGE: '9' is out of range: 0 to 3 is allowed" true
refused 127 'zero-no-such: there is no such program in PATH' -n 2 zero-no-such
refused 127 './zero-no-such: there is no such program' ./zero-no-such
refused 126 '/ is not a program that can be run' /
touch "$scratch/data"
refused 126 "$scratch/data is not a program that can be run" "$scratch/data"
refused 127 ': there is no such program in PATH' ''

# ---- mpirun, as a stand-in

PATH=$scratch/none refused 1 'mpirun was not found: install Open MPI (openmpi-bin on Debian' \
	/bin/true
stand_in mpirun 'HYDRA build details:'
PATH=$scratch/bin:$real_path
refused 1 "$scratch/bin/mpirun is not Open MPI's mpirun: its --version says "\
"\"HYDRA build details:\";" \
	true

stand_in mpirun 'mpirun (Open MPI) 5.0.3'
run "$ZERORUN" -n 3 --label --zero-preload=no --launcher-arg=--mca --launcher-arg 'a b' \
	-- echo 'x y' -n
is "$status" 33
has "$out" $'-n\n3\n--map-by\n:OVERSUBSCRIBE\n--bind-to\nnone\n--output\ntag\n--mca\na b\necho\n'\
'x y'$'\n-n\n'
has "$out" " preload=no "
stand_in mpirun 'mpirun (Open MPI) 4.1.4'
run "$ZERORUN" --label --zero-preload no true
has "$out" $'-n\n1\n--map-by\n:OVERSUBSCRIBE\n--bind-to\nnone\n--tag-output\ntrue\n'
stand_in other 'mpirun (Open MPI) 5.0.3'
ZERO_MPIRUN=other run "$ZERORUN" --plan true
has "$out" "$scratch/bin/other -n 1"
ZERO_MPIRUN=$scratch/bin/other run "$ZERORUN" --plan true
has "$out" "$scratch/bin/other -n 1"

# options and where they come from; nothing runs
ZERO_STAGE=1 ZERO_BUCKET=2M run "$ZERORUN" --zero --zero-bucket=3M --zero-stage 2 --zero-stage=0 \
	--zero-report=$'/a b\n/x' -n2 --plan true "it's" '' 'a b'
is "$status" 0
has "$out" $'\n# stage             0             --zero-stage\n'
has "$out" $'\n# bucket            3145728       --zero-bucket\n'
has "$out" $'\n# offload           none          default\n'
has "$out" $'\n# report            /a b?/x       --zero-report\n'
has "$out" $'\n# tasks             2             -n\n'
has "$out" "ZERO_RESOLVED='stage=0 "
has "$out" " bucket=3145728 "
has "$out" $'\nexport OMP_NUM_THREADS=1\n'
has "$out" "report=/a%20b%0A/x "
has "$out" "tasks=2 "
has "${out##*$'\n'}" "true 'it'\\''s' '' 'a b'"
ZERO_STAGE=1 run "$ZERORUN" --plan true
has "$out" $'\n# stage             1             ZERO_STAGE\n'
OMP_NUM_THREADS=4 run "$ZERORUN" --plan true
has_not "$out" OMP_NUM_THREADS

# the library is the one beside this zerorun, if LD_PRELOAD can hold its path
mkdir -p "$scratch/tree/launcher" "$scratch/tree/lib/.libs"
cp "$ZERORUN" "$scratch/tree/launcher/zerorun"
touch "$scratch/tree/lib/.libs/libzero.so"
tree=$(realpath "$scratch/tree")
run "$tree/launcher/zerorun" true
has "$out" $'none\n/usr/bin/env\nLD_PRELOAD='"$tree/lib/.libs/libzero.so"$'\ntrue\n'
LD_PRELOAD='' run "$tree/launcher/zerorun" true
has "$out" "LD_PRELOAD=$tree/lib/.libs/libzero.so"$'\ntrue\n'
run "$tree/launcher/zerorun" --plan --zero-preload=no true
has "$out" '# nothing is preloaded: --zero-preload is no'
mkdir -p "$scratch/a=b"
cp /bin/true "$scratch/a=b/true"
run "$tree/launcher/zerorun" "$scratch/a=b/true" x
has "$out" $'/libzero.so\nnice\n-n\n0\n'"$scratch/a=b/true"$'\nx\n'
mv "$tree" "$tree two"
run "$tree two/launcher/zerorun" --plan true
is "$status" 0
has "$out" \
	"# nothing is preloaded: LD_PRELOAD cannot hold the path '$tree two/lib/.libs/libzero.so'"
has_not "$out" LD_PRELOAD=
run "$tree two/launcher/zerorun" --zero-preload=yes --plan true
is "$status" 1
has "$err" "zerorun: --zero-preload: the library cannot be preloaded: "\
"LD_PRELOAD cannot hold the path '$tree two/"
mv "$tree two" "$tree"

# so is the package slurm_zero, before the user's folders
(unset PYTHONPATH && run "$tree/launcher/zerorun" --plan true && has_not "$out" PYTHONPATH) ||
	exit 1
mkdir -p "$tree/python/slurm_zero"
touch "$tree/python/slurm_zero/__init__.py"
PYTHONPATH=/own:/x run "$tree/launcher/zerorun" --plan true
has "$out" $'\nexport PYTHONPATH='"$tree/python:/own:/x"$'\n'
PYTHONPATH='' run "$tree/launcher/zerorun" --plan true
has "$out" $'\nexport PYTHONPATH='"$tree/python"$'\n'
PYTHONPATH=/own run "$tree/launcher/zerorun" --zero-python=no --plan true
has_not "$out" PYTHONPATH

# ---- srun, as a stand-in

PATH=$scratch/none refused 1 "srun was not found in PATH: install Slurm's commands" --slurm true
stand_in srun 'slurm 22.05.8'
run "$tree/launcher/zerorun" --slurm -n 6 -N3 --label --launcher-arg=--mpi=none \
	zero-in-container 'x y'
is "$status" 33
has "$out" \
	$'--mpi=pmix\n--ntasks=6\n--nodes=3\n--kill-on-bad-exit=1\n--export=ALL,LD_PRELOAD='"$tree"
has "$out" $'/libzero.so\n--label\n--mpi=none\nzero-in-container\nx y\n'
has "$out" 'tasks=6 '
has_not "$out" $'\nLD_PRELOAD='
# srun prefers an LD_PRELOAD of its own environment to that of --export
LD_PRELOAD=libm.so.6 run "$tree/launcher/zerorun" --slurm true
has "$out" "LD_PRELOAD=$tree/lib/.libs/libzero.so:libm.so.6"$'\ntrue\n'
has_not "$out" $'\nLD_PRELOAD='
LD_PRELOAD=libm.so.6 run "$tree/launcher/zerorun" --slurm --plan true
has "$out" $'\nunset LD_PRELOAD\n'
SLURM_JOB_ID=7 SLURM_MPI_TYPE=pmix_v4 SLURM_KILL_BAD_EXIT=0 SLURM_CPUS_PER_TASK=8 run \
	"$tree/launcher/zerorun" --zero-preload=no --zero-stage=2 true
is "${out%%$'\nOMP'*}" $'--export=ALL\ntrue'
has "$out" $'\nOMP_NUM_THREADS=8\n'
has "$out" $'\nZERO_RESOLVED=stage=2 '
has "$out" 'tasks=0 '
SLURM_JOB_ID=7 ZERO_CONFIG=/x run "$tree/launcher/zerorun" true
is "$status" 2
is "$err" \
	"zerorun: ZERO_CONFIG=/x needs Slurm's plugin, which reads the file; without it, give flags"
# ... but cannot pass on one that --export would split
LD_PRELOAD=libm.so.6,x.so run "$tree/launcher/zerorun" --slurm --plan true
has "$out" "# nothing is preloaded: srun cannot pass on LD_PRELOAD='libm.so.6,x.so'"
has_not "$out" LD_PRELOAD=/
has_not "$out" 'unset LD_PRELOAD'
SLURM_JOB_ID='' run "$ZERORUN" --plan true
has "$out" "/mpirun -n 1"
mv "$tree" "$tree,x"
SLURM_JOB_ID=7 run "$tree,x/launcher/zerorun" true
has_not "$out" LD_PRELOAD

# ---- real ranks

PATH=$real_path
need_command mpirun mpi

# what mpirun says of a failing rank is not ours to check
run "$ZERORUN" -n 2 sh -c 'exit 7'
is "$status" 7
# shellcheck disable=SC2016 # ranks expand it
run "$ZERORUN" -n 2 \
	sh -c 'test "$OMPI_COMM_WORLD_RANK" = 0 && exec sleep 60; sleep 0.3; kill -KILL $$'
is "$status" 137

# more ranks than cores, their environment and their labels
# shellcheck disable=SC2016
ZERO_STAGE=1 run "$ZERORUN" -n 5 --label --zero-report=/a sh -c \
	'echo "$OMPI_COMM_WORLD_SIZE $OMP_NUM_THREADS $ZERO_RESOLVED"'
is "$status" 0
is "$err" ""
for rank in 0 1 2 3 4; do
	is "$(grep -Ec "^\\[1,$rank\\]<stdout>: ?5 1 stage=1 .* report=/a " "$scratch/out")" 1
done

# every argument arrives as it is
cat >"$scratch/show" <<'EOF'
#!/bin/bash
printf '<%s>' "$@"
EOF
chmod +x "$scratch/show"
arguments=('a b' '' '"' "'" $'\n' "\$HOME" '*' $'\\' --zero-stage=9 -n -- '%s' ';' '&' '|' A=b
	$'\xc3\xa4'
	--mca x -np 3 --help)
run "$ZERORUN" -n 1 -- "$scratch/show" "${arguments[@]}"
is "$out" "$(printf '<%s>' "${arguments[@]}")"

# the plan is a script that does the same
"$ZERORUN" --plan -n 1 "$scratch/show" "${arguments[@]}" >"$scratch/plan"
run sh "$scratch/plan"
is "$out" "$(printf '<%s>' "${arguments[@]}")"

# stdin goes to rank 0, all of it
seq 30000 | "$ZERORUN" -n 2 cat >"$scratch/out" || fail "cat failed"
seq 30000 | cmp - "$scratch/out" || fail "stdin did not arrive"

# the library is in the ranks, and not in mpirun
if [[ -e $top_builddir/lib/.libs/libzero.so ]]; then
	library=$(realpath "$top_builddir/lib/.libs/libzero.so")
	# shellcheck disable=SC2016
	LD_PRELOAD=libm.so.6 run "$ZERORUN" -n 1 bash -c \
		'echo "$LD_PRELOAD"; cat /proc/$PPID/comm
		grep -c libzero.so /proc/$PPID/maps /proc/$$/maps'
	is "$(sed 's/:0$/:none/; s/:[0-9]*$/:some/; s/.*maps//' <<<"$out")" \
		"$library:libm.so.6"$'\nmpirun\n:none\n:some'
fi

# ---- signals

# start: runs zerorun with two ranks that note the signals that they get, and waits until both are
# there
cat >"$scratch/rank" <<'EOF'
#!/bin/bash
for signal in INT TERM HUP USR1 USR2 QUIT; do
	# shellcheck disable=SC2064
	trap "echo $signal >>'$1/got'; [[ $signal == USR1 ]] || exit 9" "$signal"
done
echo $$ >>"$1/started"
for ((i = 0; i < 1200; i++)); do sleep 0.05; done
EOF
chmod +x "$scratch/rank"
start() {
	rm -f "$scratch/got" "$scratch/started"
	touch "$scratch/got" "$scratch/started"
	# with job control, background jobs do not ignore SIGINT and SIGQUIT
	set -m
	"$ZERORUN" -n 2 "$scratch/rank" "$scratch" >"$scratch/out" 2>&1 </dev/null &
	launcher=$!
	set +m
	wait_for_lines "$scratch/started" 2
}

# wait_for_lines FILE COUNT
wait_for_lines() {
	local lines
	for ((i = 0; i < 3000; i++)); do
		mapfile -t lines <"$1"
		((${#lines[@]} >= $2)) && return
		[[ -e /proc/$launcher/exe ]] || fail "mpirun has ended"
		sleep 0.02
	done
	fail "$1 is '$(<"$1")': $(<"$scratch/out")"
}

# mpirun may be gone a moment before its ranks
gone() {
	local pid
	for pid in $(<"$scratch/started"); do
		for ((i = 0; i < 3000; i++)); do
			kill -0 "$pid" 2>/dev/null || continue 2
			sleep 0.02
		done
		fail "rank $pid is still there after $1"
	done
}

# SIGQUIT, which would end mpirun and leave the ranks, ends nothing; the ranks get what is theirs
start
kill -QUIT "$launcher"
kill -USR1 "$launcher"
wait_for_lines "$scratch/got" 2
kill -USR2 "$launcher"
wait "$launcher"
is $? 9
is "$(sort -u "$scratch/got")" $'USR1\nUSR2'
gone USR2
# these end the job: mpirun gives the ranks SIGTERM and a moment to react
for signal in TERM INT HUP; do
	start
	kill -"$signal" "$launcher"
	wait "$launcher" && fail "status 0 after $signal"
	has "$(<"$scratch/got")" TERM
	gone "$signal"
done
