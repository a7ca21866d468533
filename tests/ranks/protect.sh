#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job that protects itself in the memory of its nodes goes on with the same values after a rank
# was killed at a random moment, with its node's memory or without, at most one step that was
# complete is lost, and what is damaged is never taken. Each rank is on a node of its own, whose
# memory is a folder (tests/double/nodes.c). ZERO_TEST_KILLS (3) is the number of kills; check-soak
# has 100.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi
scratch
RANDOM=${ZERO_TEST_SEED:=$RANDOM}
echo "ZERO_TEST_SEED=$ZERO_TEST_SEED"
export ZERO_BACKEND=host program=$top_builddir/tests/ranks/protect nodes=$scratch/nodes
export OMPI_MCA_rmaps_base_oversubscribe=1 places="0 1 2" each=1 ranks=3
kills=${ZERO_TEST_KILLS:-3} steps=8 runs=0

broken() {
	cat "$scratch/out" >&2
	fail "$*; ZERO_TEST_SEED=$ZERO_TEST_SEED"
}

# run RANKS STEPS K [RANK STEP MICROSECONDS]: in $run, on the nodes of $places
run() {
	local ranks=$1 began=$SECONDS
	shift
	# shellcheck disable=SC2016 # expanded by the ranks
	ZERO_RUN=$run timeout -k 5 120 "$ZERORUN" --zero-preload=no -n "$ranks" bash -c '
		from="protect_dir=/dev/shm" places=($places)
		to=protect_dir=$nodes/${places[PMIX_RANK / each]}
		export ZERO_RESOLVED=${ZERO_RESOLVED/$from/$to}
		export LD_PRELOAD=$top_builddir/tests/double/.libs/nodes.so
		export DOUBLE_RANKS_OF_NODE=$each
		exec "$program" "$@"' sh "$@" >"$scratch/out" 2>&1 </dev/null
	status=$?
	# its status is 137 too where a rank was killed
	((SECONDS - began < 120)) || broken "$ranks ranks, $*: it hangs"
}

# A zerorun keeps the name that another one's ranks have protected by.
new_run() {
	printf -v run '%032x' $((++runs))
}

new_nodes() {
	rm -rf "$nodes" && mkdir -p "$nodes"/{0,1,2}
	new_run
}

# The values after each step of three ranks that nothing happens to.
declare -A digest
reference() {
	local step value
	new_nodes
	run $ranks $steps 1
	((status == 0)) || broken "nothing happens: status $status"
	! grep -v '^step ' "$scratch/out" || broken "nothing happens: something is printed"
	digest=()
	while read -r _ step value; do
		digest[$step]=$value
	done <"$scratch/out"
	((${#digest[@]} == steps)) || broken "nothing happens: ${#digest[@]} steps"
	! find "$nodes" -mindepth 2 | grep . || fail "what was protected is left after a good end"
}
ZERO_REPORT=$scratch/report reference
# Each step is protected, as 12 bytes of an f32 element and 14 of a bf16 one.
python3 - "$scratch"/report/zero-*.json $steps <<'EOF' || broken "nothing happens: the report"
import json, sys
ranks, steps = json.load(open(sys.argv[1]))["ranks"], int(sys.argv[2])
all = [rank["protections"] for rank in ranks]
assert all[0]["saved"] == steps and not any(p["failed"] for p in all), all
sent = sum(p["bytes"] for p in all) / steps
formula = 12 * (300007 + 5) + 14 * 70001
assert formula <= sent < 1.02 * formula, (sent, formula)
print(f"{sent / 3:.0f} bytes a step and rank, {formula / 3:.0f} by the formula")
EOF

# Each line has the values of that step; sets `last`, the last step that was complete.
same_values() {
	local what step value
	while read -r what step value; do
		[[ $what == step || $what == from ]] || continue
		[[ ${digest[$step]} == "$value" ]] || broken "$*: other values of step $step"
		last=$step
	done <"$scratch/out"
}

# goes_on WORDS RANKS LEAST: it restores step LEAST or a later one
goes_on() {
	local from
	run "$2" $steps 1
	((status == 0)) || broken "$1: status $status"
	from=$(sed -n 's/^from \([0-9]*\) .*/\1/p' "$scratch/out")
	((${from:-0} >= $3)) || broken "$1: it goes on from step ${from:-0}, not from $3 or later"
	[[ ! $from || ${digest[$from]} == "$(sed -n "s/^from $from //p" "$scratch/out")" ]] ||
		broken "$1: other values are restored"
	(($2 != ranks)) || same_values "$1"
}

# A rank is killed; sets `last`.
kill_one() {
	last=0
	run $ranks $steps 1 "$@"
	same_values "killed at $*"
}

# At stages 1 to 3 the values are the same.
for ((i = 0; i < kills; i++)); do
	new_nodes
	export ZERO_TEST_STAGE=$((RANDOM % 3 + 1))
	rank=$((RANDOM % 3)) step=$((RANDOM % (steps - 3) + 3))
	kill_one $rank $step $((RANDOM % 6000))
	((status == 0)) && continue # it was over sooner
	what="rank $rank killed after $last steps"
	if ((RANDOM % 3)); then
		rm -rf "${nodes:?}/$rank" && mkdir "$nodes/$rank"
		what+=", with its node"
	fi
	least=$((last - 1)) before=$last
	if ((RANDOM % 2)); then # a second one, while what the first left is read, or soon after
		kill_one $((RANDOM % 3)) $((least + 1 + RANDOM % 2)) $((RANDOM % 3000))
		what+=", and another"
		((status)) || continue
		((last > before)) || last=$before
		least=$((last > before ? last - 1 : least))
	fi
	((least > 0)) || least=0
	if ((RANDOM % 4)); then
		goes_on "$what" 3 $least
	else # on the other two nodes
		places=${places/$rank /} places=${places% "$rank"} goes_on "$what" 2 $least
	fi
done

export ZERO_TEST_STAGE=3

# Two nodes of two ranks each.
(
	export places="0 1" each=2 ranks=4
	reference
	kill_one $((RANDOM % 4)) 4 $((RANDOM % 3000))
	((status)) || exit 0
	rm -rf "$nodes/1" && mkdir "$nodes/1"
	goes_on "two ranks of a node" 4 $((last > 1 ? last - 1 : 0))
) || exit

# Each stores a copy of its own at stage 3, with moments of 8 bits.
(
	export ZERO_STATES=8bit ZERO_SHARD=1
	reference
	kill_one 1 4 $((RANDOM % 3000))
	((status)) || exit 0
	rm -rf "$nodes/1" && mkdir "$nodes/1"
	goes_on "8 bits" 3 $((last > 1 ? last - 1 : 0))
) || exit

flip_a_bit() {
	local at=$((RANDOM * 32768 + RANDOM)) byte
	at=$((at % $(stat -c %s "$1"))) byte=$(od -An -tu1 -j$at -N1 "$1")
	printf '%b' "\\x$(printf %x $((byte ^ 64)))" | dd of="$1" bs=1 seek=$at conv=notrunc 2>&-
}

# A program that fails after it has closed its job leaves the last two steps, both complete. The
# newer is taken, also where each rank's own file of it and of the other is damaged.
new_nodes
FAILS=1 run 3 $steps 1
((status == 3)) || broken "a program that fails: status $status"
mapfile -t files < <(find "$nodes" -name '*-own.shard')
((${#files[@]} == 6)) || broken "a program that fails leaves ${#files[@]} shards"
for file in "${files[@]}"; do
	flip_a_bit "$file"
done
goes_on "damaged shards" 3 $steps

# Bits that flip anywhere are noticed, and another copy is read, or the step before.
new_nodes
kill_one 1 6 100
mapfile -t files < <(find "$nodes" -name '*.shard' -o -name '*.record')
((${#files[@]} >= 12)) || broken "${#files[@]} files"
for file in "${files[@]:0:2}" "${files[RANDOM % ${#files[@]}]}"; do
	flip_a_bit "$file"
done
goes_on "flipped bits" 3 0

# Both partners are lost: it says so.
new_nodes
kill_one 2 5 100
rm -rf "$nodes"/{1,2}/*
ZERO_RESTART=1 goes_on "two nodes lost" 3 0
grep -q '^zero: no step in the memory of the nodes is complete' "$scratch/out" ||
	broken "two nodes lost: nothing is said"

# Another model, and another run, find nothing.
new_nodes
kill_one 2 5 100
new_run
goes_on "another run" 3 0
! grep -q '^from' "$scratch/out" || broken "another run restores"

# A program goes back to an earlier step, and protects it.
new_nodes
BACK=3 run 3 $steps 1
((status == 0)) && ! grep '^zero: ' "$scratch/out" || broken "a step back: status $status"
# It is the newest then, though the number of the other is higher.
new_nodes
BACK=$((steps - 1)) FAILS=1 run 3 $steps 1
((status == 3)) || broken "a step back: status $status"
goes_on "a step back" 3 $steps

# What cannot be protected costs no more than that.
unprotected() {
	((status == 0)) || broken "$1: status $status"
	(($(grep -cE "$2" "$scratch/out") == 1)) || broken "$1: it is not said once"
	(($(grep -c '^step ' "$scratch/out") == steps)) || broken "$1: not all steps"
}
new_nodes
ZERO_PROTECT_MAX=100K run 3 $steps 1
unprotected "no room" '^zero: step 1 is not protected: .* protect_max allows 102400; '
new_nodes
mkdir "$nodes/1/other" && ln -s "$nodes/1/other" "$nodes/1/zero-$(id -u)"
run 3 $steps 1
unprotected "a link" "^zero: nothing is protected: .*/nodes/1/zero-$(id -u): "
[[ ! $(ls "$nodes/1/other") ]] || fail "a link was followed"
new_nodes
mkdir -m 755 "$nodes/2/zero-$(id -u)"
run 3 $steps 1
unprotected "an open folder" '^zero: nothing is protected: .* has the mode 755; '
new_nodes
ZERO_PROTECT=no run 3 $steps 1
((status == 0)) && [[ ! $(find "$nodes" -type f) ]] || broken "protect=no"
