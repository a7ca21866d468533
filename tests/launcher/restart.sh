#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zerorun --max-restarts: another run follows, and what becomes of signals. With stand-ins for
# mpirun and srun, then real ranks under mpirun.
# shellcheck source=tests/launcher/run.sh
. "${top_srcdir:?run me by make check}/tests/launcher/run.sh"
real_path=$PATH
mkdir "$scratch/bin"

# A launcher that notes each run and ends as the next line of $scratch/ends says: with a status, by
# signal -N, with 3 once it has hung up zerorun, or at the signals that end a job with 9, at others
# with 0 ("wait"). It notes what it gets.
for name in mpirun srun; do
	cat >"$scratch/bin/$name" <<EOF
#!/bin/bash
[[ \$* == --version ]] && { echo 'mpirun (Open MPI) 4.1.4'; exit; }
[[ \$* == --help ]] && exit
echo "\$ZERO_RESTART" >>'$scratch/runs'
end=\$(sed -n "\$(wc -l <'$scratch/runs')p" '$scratch/ends')
case \$end in
-*) kill "\$end" \$\$ ;;
cat) exec cat ;;
hangup)
	kill -HUP \$PPID
	exit 3
	;;
wait)
	for signal in INT TERM HUP USR1 USR2; do
		trap "echo \$signal >>'$scratch/got'" \$signal
	done
	echo \$\$ >'$scratch/pid'
	for ((i = 0; i < 6000; i++)); do
		sleep 0.02
		[[ -s '$scratch/got' ]] || continue
		# a second one would come at once
		sleep 0.1
		grep -q USR '$scratch/got' && exit 0
		exit 9
	done
	;;
*) exit "\$end" ;;
esac
EOF
	chmod +x "$scratch/bin/$name"
done
PATH=$scratch/bin:$real_path

# ends END...: of the runs to come
ends() {
	rm -f "$scratch/runs" "$scratch/got" "$scratch/pid"
	touch "$scratch/runs" "$scratch/got"
	printf '%s\n' "$@" >"$scratch/ends"
}

# ran COUNT STATUS: so many runs were made, numbered from 0, and zerorun ended so
ran() {
	is "$status" "$2"
	is "$(<"$scratch/runs")" "$(seq 0 $(($1 - 1)))"
}

# refused VALUE
refused() {
	run "$ZERORUN" --max-restarts "$1" true
	is "$status" 2
	is "$err" "zerorun: --max-restarts: '$1' is not a whole number from 1 to 9999999"
}
refused 0
refused -1
refused x
refused ''
for flag in --spare-nodes --min-ranks; do
	run "$ZERORUN" "$flag=1" true
	is "$status" 2
	is "$err" "zerorun: $flag can be given with --max-restarts alone, which starts a job \
again that has lost nodes"
	run "$ZERORUN" --max-restarts=1 "$flag" 0 true
	is "$status" 2
	is "$err" "zerorun: $flag: '0' is not a whole number from 1 to 9999999"
	run "$ZERORUN" --max-restarts=1 "$flag" 1 true
	is "$status" 2
	is "$err" "zerorun: $flag needs an allocation of Slurm, which is not a heterogeneous \
job, and whose nodes scontrol shows"
done
run "$ZERORUN" --help
has "$out" '--max-restarts=N'

# tests/unit/test_restart.c has all ends and pauses; here zerorun does as they say
for status_ in 0 127; do
	ends "$status_" 0
	run "$ZERORUN" --max-restarts=3 true
	ran 1 "$status_"
	is "$err" ""
done
run "$ZERORUN" --max-restarts=3 zero-no-such
is "$status" 127
rm -f "$scratch/runs"
ends 0
run "$ZERORUN" true
is "$(<"$scratch/runs")" ""
ends 3 -9 0
run "$ZERORUN" --slurm --max-restarts 1 true
ran 2 137
no_more="--max-restarts=1 allows no more restarts"
is "$err" "zerorun: the job ended with status 3: restart 1 of 1 in 1 s
zerorun: the job was ended by signal 9, Killed (status 137): $no_more"

# stdin is that of the job
ends cat
seq 30000 | "$ZERORUN" --max-restarts=1 true >"$scratch/out" || fail "cat failed"
seq 30000 | cmp - "$scratch/out" || fail "stdin did not arrive"

# ---- signals

wait_for_file() {
	for ((i = 0; i < 3000; i++)); do
		[[ -s $1 ]] && return
		sleep 0.02
	done
	fail "no $1: $(<"$scratch/out")"
}

# start COMMAND...: in the background, in a group of its own and with no signal ignored
start() {
	set -m
	"$@" >"$scratch/out" 2>"$scratch/err" </dev/null &
	launcher=$!
	set +m
}

# ended: waits for it
ended() {
	wait "$launcher"
	status=$?
	out=$(<"$scratch/out") err=$(<"$scratch/err")
}

# These end the job, and no other run begins. What it got, it got once.
for signal in INT TERM HUP; do
	ends wait 0
	start "$ZERORUN" --max-restarts=3 true
	wait_for_file "$scratch/pid"
	kill -"$signal" "$launcher"
	ended
	ran 1 9
	is "$(<"$scratch/got")" "$signal"
done
# These are the job's own.
for signal in USR1 USR2; do
	ends wait 0
	start "$ZERORUN" --max-restarts=3 true
	wait_for_file "$scratch/pid"
	kill -"$signal" "$launcher"
	ended
	ran 1 0
	is "$(<"$scratch/got")" "$signal"
done
# What nohup wants ignored is: it keeps no other run from beginning.
ends hangup 0
start bash -c 'trap "" HUP; exec "$@"' - "$ZERORUN" --max-restarts=3 true
ended
ran 2 0
# The launcher does not outlive a zerorun that is killed.
ends wait
start "$ZERORUN" --max-restarts=3 true
wait_for_file "$scratch/pid"
kill -KILL "$launcher"
wait_for_file "$scratch/got"
is "$(<"$scratch/got")" TERM

# At a terminal, Ctrl-C comes to all, and is not passed on once more.
if command -v script >/dev/null; then
	ends wait 0
	mkfifo "$scratch/keys"
	set -m # else it would have SIGINT ignored
	script -qec "'$ZERORUN' --max-restarts=3 true" /dev/null \
		<"$scratch/keys" >"$scratch/out" 2>&1 &
	set +m
	exec 7>"$scratch/keys"
	wait_for_file "$scratch/pid"
	printf '\003' >&7
	wait_for_file "$scratch/got"
	exec 7>&-
	wait $!
	is "$(<"$scratch/got")" INT
	is "$(<"$scratch/runs")" 0
fi

# ---- real ranks

PATH=$real_path
need_command mpirun mpi
# mpirun may not notice the end of a rank that dies while it still starts ranks
# shellcheck disable=SC2016 # ranks expand it
run "$ZERORUN" -n 2 --max-restarts=1 bash -c \
	'((ZERO_RESTART)) && exit; ((OMPI_COMM_WORLD_RANK)) && sleep 0.3 && kill -KILL $$
	exec sleep 60'
is "$status" 0
is "$(grep -c '^zerorun: the job was ended by signal 9, Killed' "$scratch/err")" 1

# What ranks have protected in the memory of this machine goes with zerorun, which gives up here;
# but not if another is to go on with it.
# gives_up: kills a rank at step 5, and after that at step 7
gives_up() {
	# shellcheck disable=SC2016 # ranks expand it
	run env ZERO_PROTECT_DIR="$scratch/memory" "$@" "$ZERORUN" -n 2 --max-restarts=1 bash -c \
		'exec "$top_builddir/tests/ranks/protect" 9 1 1 $((5 + 2 * ZERO_RESTART)) 0'
	has "$err" 'allows no more restarts'
	grep -q '^from [1-9] ' "$scratch/out" || fail "nothing is restored: $(<"$scratch/err")"
}
mkdir "$scratch/memory"
export top_builddir
gives_up ZERO_BACKEND=host
[[ ! $(ls "$scratch/memory") ]] || fail "zerorun leaves $(find "$scratch/memory")"
gives_up ZERO_BACKEND=host ZERO_RUN=0123456789abcdef0123456789abcdef
[[ $(find "$scratch/memory" -name '*.record') ]] || fail "zerorun removes what another needs"
