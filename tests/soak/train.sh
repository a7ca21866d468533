#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A training of 2,000 steps that loses a random rank 50 times, at random moments, and goes on from
# memory each time: it takes no step with another value, ends with the bits of a run that loses
# nothing, holds no more memory and descriptors in the end, and leaves nothing. ZERO_TEST_STEPS,
# ZERO_TEST_KILLS and ZERO_TEST_SEED are others.
. "${top_srcdir:?run me by make check-soak}/tests/common.sh"
# shellcheck source=tests/soak/soak.sh
. "$top_srcdir/tests/soak/soak.sh"
need mpi files
: "${ZERORUN:?}" "${ZERO_TEST_STEPS:=2000}" "${ZERO_TEST_KILLS:=50}" "${ZERO_TEST_SEED:=$RANDOM}"

if [[ ! ${SOAK_ALONE-} ]]; then
	alone=(unshare --pid --mount --ipc --fork --kill-child --mount-proc)
	((EUID == 0)) || alone+=(--map-current-user --keep-caps)
	"${alone[@]}" true || skip soak "no namespaces can be made"
	export SOAK_ALONE=yes ZERO_TEST_SEED
	exec "${alone[@]}" bash "$0" "$@"
fi
own_folders
# shellcheck source=python/tests/torch.sh
. "$top_srcdir/python/tests/torch.sh"
imports transformers || skip transformers "TORCH_PYTHON has it not"
RANDOM=$ZERO_TEST_SEED
echo "ZERO_TEST_SEED=$ZERO_TEST_SEED"
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
cd "$scratch" || fail "no folder"

"$TORCH_PYTHON" - <<'PYTHON' || fail "no model"
from transformers import AutoModelForCausalLM, LlamaConfig

AutoModelForCausalLM.from_config(LlamaConfig(
    vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, bos_token_id=None, eos_token_id=None)).save_pretrained("model")
PYTHON

broken() {
	tail -n 30 "$run.out" >&2
	fail "$run: $*; ZERO_TEST_SEED=$ZERO_TEST_SEED"
}

# begun STEP: an attempt's first. The step in progress was lost, and at most one that was complete;
# or it was complete too, and its line alone is missing. The ranks are what mpirun has started; what
# they start has their environment too.
begun() {
	local gone=$((last - $1 + 2)) pid rank
	((gone >= 0 && gone <= 2)) || broken "step $1 comes after step $last"
	lost[gone]=$((lost[gone] + 1))
	first=$1
	ranks=()
	for pid in $(pgrep -P "$(pgrep -P "$job")"); do
		rank=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
		[[ ! $rank ]] || ranks[rank]=$pid
	done
	((${#ranks[@]} == 2)) || broken "${#ranks[@]} ranks"
}

# measure: this zerorun and its ranks
measure() {
	local rank
	for rank in 0 1; do
		sample "$run.$rank" "${ranks[rank]}" || broken "a rank has ended by itself"
	done
	sample "$run.zerorun" "$job" || broken "zerorun has ended"
}

# lose_rank: a random one, at a random moment of the next steps. SIGTERM looks as if mpirun ended
# the job, and then no line names the rank.
lose_rank() {
	local signal=KILL
	((RANDOM % 5)) || signal=TERM
	sleep "0.0$((RANDOM % 10))$((RANDOM % 10))"
	kill -$signal "${ranks[RANDOM % 2]}" || broken "the rank had ended by itself"
	kills=$((kills + 1))
}

# at STEP VALUES
at() {
	((first)) || begun "$1"
	(($1 == first || $1 == last + 1)) || broken "step $1 comes after step $last"
	last=$1
	[[ ${values[last]-$2} == "$2" ]] || broken "step $1 has '$2', and had '${values[last]}'"
	values[last]=$2
	if ((losses)); then
		# as old in each attempt
		((last != first + 2)) || measure
		((last != kills * window + moment)) || lose_rank
	elif ((last % (ZERO_TEST_STEPS / 50) == 0)); then
		measure
	fi
}

# train NAME LOSSES: checks each line as it comes, and leaves $NAME.values
train() {
	local run=$1 losses=$2 job lines line step first=0 last=0 kills=0
	local values=() lost=(0 -1 0) ranks=() window moment ended began=$SECONDS
	window=$((ZERO_TEST_STEPS / (losses ? losses : 1)))
	moment=$((4 + RANDOM % (window / 2)))
	: >"$run.out"
	exec {lines}< <(exec "$ZERORUN" -n 2 --max-restarts=$((losses + 1)) "$TORCH_PYTHON" \
		"$top_srcdir/examples/finetune.py" model "$run" "$top_srcdir/README.md" \
		--steps "$ZERO_TEST_STEPS" --batch 1 --length 16 --protect --print-every 1 2>&1)
	job=$!
	while IFS= read -r -t 600 line <&"$lines" || { ended=$?; false; }; do
		echo "$line" >>"$run.out"
		if [[ $line =~ ^step\ ([0-9]+):\ (.*),\ [0-9.]+\ s\ a\ step$ ]]; then
			at "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
		elif [[ $line == "zerorun: "*": restart $kills of "* ]]; then
			first=0 moment=$((4 + RANDOM % (window / 2)))
		fi
	done
	((ended == 1)) || broken "nothing comes for ten minutes"
	wait "$job" || broken "status $?"
	((kills == losses && last == ZERO_TEST_STEPS && ${#values[@]} == last - lost[0])) ||
		broken "$kills losses, ${#values[@]} steps to $last"
	for step in "${!values[@]}"; do
		echo "$step ${values[step]}"
	done >"$run.values"
	echo "$run: $((SECONDS - began)) s, $kills losses; lost were: nothing but a line" \
		"${lost[0]} times, the step in progress ${lost[1]} times, one more ${lost[2]} times"
	flat "$run: rank 0" "$run.0" 4096
	flat "$run: rank 1" "$run.1" 4096
	flat "$run: zerorun" "$run.zerorun" 64
}
# The pauses before restarts are long enough for both.
train whole 0 &
train torn "$ZERO_TEST_KILLS" || exit
wait $! || exit
! grep -vxF -f whole.values torn.values || fail "other losses; ZERO_TEST_SEED=$ZERO_TEST_SEED"
cmp whole/model.safetensors torn/model.safetensors || fail "another model"

# This shell is the first process of its namespace.
for ((i = 0; i < 600; i++)); do
	processes=(/proc/[0-9]*)
	((${#processes[@]} == 1)) && break
	sleep 0.1
done
((${#processes[@]} == 1)) || fail "processes are left: $(ps -ef)"
left=$(left_in_memory; left_in_tmp)
[[ ! $left ]] || fail "left: $left"
