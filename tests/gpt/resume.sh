#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A training that was stopped, or in which a rank was killed, goes on with the losses of one that
# was not, to the last bit at the same number of ranks, and within rounding at another one.
# shellcheck source=tests/gpt/gpt.sh
. "${top_srcdir:?run me by make check}/tests/gpt/gpt.sh"

need files
seed=${ZERO_TEST_SEED:-$RANDOM}
RANDOM=$seed
steps=40 saved=$scratch/saved
optimizers=(adamw adamw8bit muon)
optimizer=${ZERO_TEST_OPTIMIZER:-${optimizers[RANDOM % 3]}}
export OPENBLAS_NUM_THREADS=1 # a product's bits may depend on it
# A step is of 6 sequences at each number of ranks.
train=(--optimizer "$optimizer" --text "$text" --layers 2 --heads 2 --width 40 --context 48
	--steps "$steps" --warmup 4
	--lr 2e-3 --save-every 7)

bits() {
	sed 's/.*"loss_bits": "\([0-9a-f]*\)".*/\1/' "$1"
}

logged() {
	[[ ! -e $scratch/log ]] || cat "$scratch/log"
}

lines() {
	logged | wc -l
}

# The processes of this run: what mpirun was told is not at the beginning of a rank's.
ranks() {
	pgrep -f "^$GPT .*--checkpoint $saved"
}

# begin WORLD STAGE ARGUMENT...: trains in the background
begin() {
	local world=$1 stage=$2 launcher=()
	shift 2
	((world == 1)) || launcher=("$ZERORUN" -n "$world" "${restarts[@]}")
	set -m # else the ranks have SIGINT ignored
	ZERO_STAGE=$stage "${launcher[@]}" "$GPT" "${train[@]}" --batch $((6 / world)) \
		--checkpoint "$saved" --log "$scratch/log" "$@" >"$scratch/out" 2>"$scratch/err" \
		</dev/null &
	job=$!
	# shellcheck disable=SC2046 # these are several
	(sleep 120 && kill -KILL -- "-$job" $(ranks)) &>/dev/null &
	guard=$!
	set +m
}

ended() {
	wait "$job" 2>/dev/null
	status=$?
	kill -- "-$guard" 2>/dev/null
	wait "$guard" 2>/dev/null
}

# after COUNT: waits until the log has so many lines, or the run is over
after() {
	for ((i = 0; i < 3000; i++)); do
		(($(lines) >= $1)) && return
		kill -0 "$job" 2>/dev/null || return
		sleep 0.01
	done
}

wrong() {
	fail "$optimizer, $*; seed $seed; it said: $(<"$scratch/out") $(<"$scratch/err")"
}

# whole WHAT: the log has each step once, with the losses of the run that was not stopped
whole() {
	diff <(bits "$scratch/log-$world") <(bits "$scratch/log") >&2 ||
		wrong "$world ranks, $1: other losses"
	diff <(seq 0 $((steps - 1))) <(sed 's/{"step": \([0-9]*\),.*/\1/' "$scratch/log") >&2 ||
		wrong "$world ranks, $1: other steps"
}

# ---- stopped

restarts=()
stops=0
for world in $(worlds 1 2); do
	stage=$((RANDOM % 4))
	trains "$world" "$stage" "${train[@]}" --batch $((6 / world)) --log "$scratch/log-$world"
	(($(bits "$scratch/log-$world" | sort -u | wc -l) > steps - 2)) ||
		fail "the losses do not change"
	rm -rf "$saved" "$scratch/log"
	for signal in USR1 TERM; do
		for _ in 1 2 3 4 5 6 7 8; do
			begin "$world" $((RANDOM % 4)) # also at another stage
			after $(($(lines) + 1 + RANDOM % (steps / 4)))
			# The launcher gives one to all ranks; the other comes to one of them.
			mapfile -t pids < <(ranks)
			[[ $signal == USR1 ]] && pids=("$job")
			((${#pids[@]} == 0)) ||
				kill -"$signal" "${pids[RANDOM % ${#pids[@]}]}" 2>/dev/null
			ended
			((status == 0)) || break
			rm -rf "$saved" "$scratch/log" # it was too late: from the beginning
		done
		((status == 0)) && break
		((status == 75)) || wrong "$world ranks: status $status after SIG$signal"
		step=$(sed -n 's/^stopped by a signal after step \([0-9]*\)\/.*/\1/p' \
			"$scratch/out")
		[[ $step && $(readlink "$saved/latest") == $(printf step-%09d "$step") ]] ||
			wrong "$world ranks: $(readlink "$saved/latest") is not of step '$step'"
		(($(lines) == step)) || wrong "$world ranks: $(lines) lines after step $step"
		(($(find "$saved" -maxdepth 1 -name 'step-*' | wc -l) <= 2)) ||
			wrong "more than two checkpoints: $(ls "$saved")"
		stops=$((stops + 1))
		# What a run that was killed leaves, and the next one does over again.
		head -n 2 "$scratch/log-$world" | sed "s/\"step\": [01]/\"step\": $((step + 1))/" \
			>>"$scratch/log"
		printf '{"step": ' >>"$scratch/log"
		# For the other number of ranks.
		rm -rf "$scratch/kept"
		cp -a "$saved" "$scratch/kept" && kept_step=$step kept_world=$world
	done
	trains "$world" "$stage" "${train[@]}" --batch $((6 / world)) --checkpoint "$saved" \
		--log "$scratch/log"
	whole "stopped"
done
((stops > 1)) || fail "only $stops runs could be stopped; seed $seed"
echo "$stops runs were stopped and went on to the same bits"

# ---- at another number of ranks

# loss FILE: of the first steps after the checkpoint; later on, training makes much of a rounding
loss() {
	sed 's/.*"loss": \([^,]*\),.*/\1/' "$1" | sed -n "$((kept_step + 1)),$((kept_step + 8))p"
}

for world in $(worlds 1 2 3); do
	((world != kept_world)) || continue
	rm -rf "$saved"
	cp -a "$scratch/kept" "$saved"
	head -n "$kept_step" "$scratch/log-$kept_world" >"$scratch/log"
	trains "$world" 3 "${train[@]}" --batch $((6 / world)) --checkpoint "$saved" \
		--log "$scratch/log"
	(($(lines) == steps)) || fail "$world ranks: $(lines) losses"
	worst=$(paste <(loss "$scratch/log-$kept_world") <(loss "$scratch/log") |
		awk '{d = $1 - $2; d = d < 0 ? -d : d; if (d > worst) worst = d}
			END {print worst + 0}')
	echo "from step $kept_step of $kept_world ranks on $world ranks: within $worst"
	awk -v worst="$worst" 'BEGIN {exit !(worst < 1e-4)}' || fail "that is more than 1e-4"
done

# ---- what cannot go on

# refused WORDS ARGUMENT...
refused() {
	local words=$1
	shift
	gpt 1 3 "${train[@]}" --batch 6 --checkpoint "$saved" "$@"
	((status == 1)) || wrong "gpt $*: status $status"
	[[ $(<"$scratch/err") == *"$words"* ]] || wrong "gpt $*: no '$words'"
}
refused 'was saved with "--lr: 0.002' --lr 3e-3
refused 'was saved with "sequences of a step: 6", but now it is "sequences of a step: 5"' --batch 5
refused 'was saved with "tokens of a sequence: 48"' --seq 40
refused 'was saved with "tokens of the text: ' --text "$text" "$text"
refused "$saved/" --width 60
# Evaluation takes the model alone, and saves nothing.
before=$(ls -l "$saved")
trains 1 3 --text "$text" --layers 2 --heads 2 --width 40 --context 48 --steps 2 --seq 16 --eval \
	--optimizer "$optimizer" --checkpoint "$saved"
[[ $(ls -l "$saved") == "$before" ]] || fail "an evaluation changed the checkpoints"

# ---- killed

have mpi || exit 0
restarts=(--max-restarts=3)
world=2
rm -rf "$saved" "$scratch/log"
begin "$world" $((RANDOM % 4))
after $((1 + RANDOM % (steps / 2)))
mapfile -t pids < <(ranks)
((${#pids[@]} == world)) || wrong "$world ranks: ${#pids[@]} are to be seen"
kill -KILL "${pids[RANDOM % world]}"
ended
((status == 0)) || wrong "$world ranks: status $status after a rank was killed"
grep -q '^zerorun: .*: restart 1 of 3' "$scratch/err" || wrong "$world ranks: no restart"
whole "killed"
from=$(sed -n 's/^going on from .*\///p' "$scratch/out" | tr '\n' ' ')
echo "$world ranks: ${from}after one was killed"
