#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zerorun --max-restarts: which ends of a job are followed by another run, how often, and what becomes
# of signals. With stand-ins for mpirun and srun, then real ranks under mpirun.
# shellcheck source=tests/launcher/run.sh
. "${top_srcdir:?run me by make check}/tests/launcher/run.sh"
real_path=$PATH
mkdir "$scratch/bin"

# A launcher that notes each run and ends as the next line of $scratch/ends says: with a status, by
# signal -N, or not at all ("wait"); it notes signals that it gets.
for name in mpirun srun; do
	cat >"$scratch/bin/$name" <<EOF
#!/bin/bash
[[ \$* == --version ]] && { echo 'mpirun (Open MPI) 4.1.4'; exit; }
[[ \$* == --help ]] && exit
echo "\$ZERO_RESTART" >>'$scratch/runs'
end=\$(sed -n "\$(wc -l <'$scratch/runs')p" '$scratch/ends')
case \$end in
-*) kill "\$end" \$\$ ;;
wait)
	for signal in INT TERM HUP USR1 USR2; do
		trap "echo \$signal >>'$scratch/got'" \$signal
	done
	echo \$\$ >'$scratch/pid'
	for ((i = 0; i < 300; i++)); do
		sleep 0.1
		# a second one would come at once
		[[ -s '$scratch/got' ]] && sleep 0.3 && exit 9
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
run "$ZERORUN" --help
has "$out" '--max-restarts=N'

# what is final
for status_ in 0 2 126 127; do
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

# what is not
ends 1 0
run "$ZERORUN" --max-restarts=3 true
ran 2 0
is "$err" "zerorun: the job ended with status 1: restart 1 of 3 in 1 s"
ends 137 -9 75 0
run "$ZERORUN" --max-restarts=3 true
ran 4 0
is "$err" "zerorun: the job was ended by signal 9, Killed (status 137): restart 1 of 3 in 1 s
zerorun: the job was ended by signal 9, Killed (status 137): restart 2 of 3 in 2 s
zerorun: the job has stopped and asks to be run again (status 75): restart 3 of 3 in 4 s"
ends 3 4 0
run "$ZERORUN" --max-restarts 1 true
ran 2 4
is "$err" "zerorun: the job ended with status 3: restart 1 of 1 in 1 s
zerorun: the job ended with status 4: --max-restarts=1 allows no more restarts"

# under Slurm the same, but that a job which was asked to stop is requeued by its script
ends 75 0
run "$ZERORUN" --slurm --max-restarts=1 true
ran 2 0
ends 75 0
SLURM_JOB_ID=7 run "$ZERORUN" --max-restarts=1 true
ran 1 75
ends 1 0
SLURM_JOB_ID=7 run "$ZERORUN" --max-restarts=1 true
ran 2 0

# ---- signals

wait_for_file() {
	for ((i = 0; i < 300; i++)); do
		[[ -s $1 ]] && return
		sleep 0.1
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
	ran 2 0
	is "$(<"$scratch/got")" "$signal"
done
# What nohup wants ignored is.
ends wait 0
start bash -c 'trap "" HUP; exec "$@"' - "$ZERORUN" --max-restarts=3 true
wait_for_file "$scratch/pid"
kill -HUP "$launcher"
kill -TERM "$launcher"
ended
is "$(<"$scratch/got")" TERM
# Between two runs a signal is the end, too; it does not take the whole pause.
ends 1 1 1 1 1 0
start "$ZERORUN" --max-restarts=9 true
for ((i = 0; i < 300; i++)); do
	grep -q 'restart 4 of 9 in 8 s' "$scratch/err" && break
	sleep 0.1
done
begin=$SECONDS
kill -TERM "$launcher"
ended
ran 4 143
((SECONDS - begin < 5)) || fail "a pause was not ended by SIGTERM"
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
	script -qec "'$ZERORUN' --max-restarts=3 true" /dev/null <"$scratch/keys" >"$scratch/out" 2>&1 &
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
# shellcheck disable=SC2016 # ranks expand it
run "$ZERORUN" -n 2 --max-restarts=2 bash -c \
	'echo "run $ZERO_RESTART"; ((ZERO_RESTART == 2)) || { ((OMPI_COMM_WORLD_RANK)) && kill -KILL $$; exec sleep 60; }'
is "$status" 0
is "$(grep -c '^run 0' "$scratch/out") $(grep -c '^run 2' "$scratch/out")" "2 2"
is "$(grep -c '^zerorun: the job was ended by signal 9, Killed' "$scratch/err")" 2
seq 30000 | "$ZERORUN" -n 2 --max-restarts=1 cat >"$scratch/out" || fail "cat failed"
seq 30000 | cmp - "$scratch/out" || fail "stdin did not arrive"
