#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs that have never heard of slurm-zero, under zerorun.
. "${top_srcdir:?run me by make check}/tests/common.sh"
. "$top_srcdir/python/tests/torch.sh"
program=("$TORCH_PYTHON" "$top_srcdir/python/tests/unedited.py")
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME

# train NAME OPTION... -- WHAT: two ranks; the losses and the model's class are in $scratch/NAME
train() {
	local name=$1 options=()
	shift
	while [[ $1 != -- ]]; do
		options+=("$1")
		shift
	done
	# Before Python 3.14 a thread of torch that takes the interpreter's lock as that ends is
	# unwound, which C++ does not allow: once in some hundred runs.
	for _ in 1 2 3; do
		timeout 300 "$ZERORUN" -n 2 "${options[@]}" "${program[@]}" "${@:2}" \
			>"$scratch/$name" 2>"$scratch/err" && break
		grep -q "terminate called without an active exception" "$scratch/err" ||
			fail "$name: status $?: $(cat "$scratch/$name" "$scratch/err")"
	done
	[[ $(grep -c ^loss "$scratch/$name") == 20 ]] || fail "$name: $(<"$scratch/$name")"
}

# is NAME CLASS LINE: what shards the model at the end, and the one line of ours; none if empty
is() {
	[[ $(tail -n 1 "$scratch/$1") == "$2" ]] ||
		fail "$1: the model is sharded by $(tail -n 1 "$scratch/$1"), not $2"
	[[ $(grep "^slurm-zero: " "$scratch/err") == "${3:+slurm-zero: $3}" ]] ||
		fail "$1: $(<"$scratch/err")"
}

same() {
	paste <(grep ^loss "$scratch/$1") <(grep ^loss "$scratch/$2") | awk '
		($2 - $4) ^ 2 > (1e-5 * $2 + 1e-6) ^ 2 {exit 1}' ||
		fail "$1 and $2 have other losses: $(paste "$scratch/$1" "$scratch/$2")"
}

# What uses fully_shard runs on libzero, with the same losses, or keeps torch's before anything is
# sharded.
train own --zero-fsdp=keep -- fsdp2
is own FSDPModule
train ours --zero-fsdp=auto -- fsdp2
is ours FullyShardedModule "fully_shard is slurm_zero's (--zero-fsdp=auto)"
same own ours
train refused --zero-fsdp=replace -- refused
is refused FSDPModule \
	"fully_shard is torch's: mp_policy has torch.float64; float32, float16 and bfloat16 are \
supported (--zero-fsdp=replace)"
train stage2 --zero-fsdp=auto --zero-stage=2 "--zero-report=$scratch/report" -- fsdp2
same own stage2
grep -rqE '"stage": *"?2' "$scratch/report" ||
	fail "the report is not of stage 2: $(cat "$scratch"/report/*)"
for what in accelerate trainer; do
	imports "${what/trainer/transformers}" || continue
	train "$what" --zero-fsdp=auto -- "$what"
	is "$what" FullyShardedModule "fully_shard is slurm_zero's (--zero-fsdp=auto)"
	[[ ${ZERO_TEST_LONG-} ]] || continue
	train "$what.own" --zero-fsdp=keep -- "$what"
	same "$what" "$what.own"
done
[[ ! ${ZERO_TEST_LONG-} ]] || for what in deepspeed lightning; do
	imports "$what" || continue
	train "$what" -- "$what"
	same own "$what"
done

# _exit(0) of each rank in its own time is no fault.
train left -- ddp _exit 0 "$scratch"
! grep "^zero:" "$scratch/err" || fail "a rank that left by _exit is lost"

# What a program has at the start, one line a rank.
# shellcheck disable=SC2016
look=(-c 'if True:
	import os, sys, torch, torch.distributed as dist, torch.distributed.rendezvous
	env = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers["env"]
	if "meet" in sys.argv:
		dist.init_process_group("gloo", init_method=os.environ.get("METHOD"))
		env = dist.get_world_size()
	else:
		env = env.__module__
	said = env, "slurm_zero._api" in sys.modules, os.environ.get("GLOO_SOCKET_IFNAME")
	os.write(1, b"%s %s %s\n" % tuple(str(word).encode() for word in said))')
# sees WANTED ARGUMENT...: both ranks print that
sees() {
	"$ZERORUN" -n 2 "${@:2}" >"$scratch/out" 2>"$scratch/err" ||
		fail "${*:2:3}: $(<"$scratch/err")"
	[[ $(sort -u "$scratch/out") == "$1" && ! -s $scratch/err ]] ||
		fail "${*:2:3}: $(cat "$scratch/out" "$scratch/err")"
}
sees "2 False lo" "$TORCH_PYTHON" "${look[@]}" meet
METHOD=pmix:// sees "2 False lo" "$TORCH_PYTHON" "${look[@]}" meet
# A port of the user's own is used, which nothing of ours is on the way to.
port=$("$TORCH_PYTHON" -c \
	'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
MASTER_ADDR=127.0.0.1 MASTER_PORT=$port sees "2 False None" "$TORCH_PYTHON" "${look[@]}" meet
sees "torch.distributed.rendezvous False None" --zero-python=no "$TORCH_PYTHON" "${look[@]}"
sees "torch.distributed.rendezvous False None" "$TORCH_PYTHON" -I "${look[@]}"
TORCH_DEVICE_BACKEND_AUTOLOAD=0 sees "torch.distributed.rendezvous False None" "$TORCH_PYTHON" \
	"${look[@]}"
sees "torch.distributed.rendezvous False None" env -u ZERO_RESOLVED "$TORCH_PYTHON" "${look[@]}"

# A package that cannot be loaded costs one line.
mkdir -p "$scratch/broken/slurm_zero"
cp "$top_srcdir"/python/slurm_zero/*.py "$scratch/broken/slurm_zero"
cp -r "$scratch/python/slurm_zero.dist-info" "$scratch/broken"
PYTHONPATH=$scratch/broken "$ZERORUN" -n 1 --zero-python=no env ZERO_RESOLVED="python=yes tasks=1" \
	"$TORCH_PYTHON" -c 'import torch; print(torch.ones(1).item())' \
	>"$scratch/out" 2>"$scratch/err" ||
	fail "a broken package: $(<"$scratch/err")"
words="torch.distributed.rendezvous is left as it is: cannot import name '_zero'"
[[ $(<"$scratch/out") == 1.0 && $(grep -c . "$scratch/err") == 1 ]] &&
	grep -q "^slurm-zero: $words" \
		"$scratch/err" ||
	fail "a broken package: $(cat "$scratch/out" "$scratch/err")"

# lost WHAT DEED RANK LINE STACKS: the rank is named, and so many ranks write where they wait
lost() {
	local count
	timeout 300 "$ZERORUN" -n 3 --zero-fsdp=auto "${program[@]}" "$1" "$2" "$3" "$scratch" \
		>"$scratch/out" 2>&1 &&
		fail "$*: the job ended well"
	awk -v at="$(<"$scratch/at")" -v end="$EPOCHREALTIME" -v what="$1 $2" 'BEGIN {
		printf "%s: ended after %.1f s\n", what, end - at}'
	grep -qE "$4" "$scratch/out" || fail "$*: not named: $(<"$scratch/out")"
	count=$(grep -cE '^zero: .*; ending the job$' "$scratch/out")
	((count < 2)) || fail "$*: lines: $(grep ^zero: "$scratch/out")"
	count=$(grep -A 1 "^zero: rank . was here:" "$scratch/out" |
		grep -c "^Thread .*most recent call first")
	((count >= $5)) || fail "$*: $count stacks: $(<"$scratch/out")"
}
rank1="^zero: rank 1 on node [^ ]+ \(pid [0-9]+\)"
lost ddp stop 1 "$rank1 is stopped" 2
lost ddp exit0 1 "had ended with exit status 0" 0
ZERO_END_SECONDS=6 lost fsdp2 teardown 1 "$rank1 has not ended within 6 s of its exit" 0
[[ ${ZERO_TEST_LONG-} ]] || exit 0
ZERO_END_SECONDS=3 lost fsdp2 atexit 1 "$rank1 has not ended within 3 s of the end of its work" 0
for what in ddp fsdp2 deepspeed; do
	imports "${what/[df][ds][dp]*/torch}" || continue
	lost "$what" kill 1 "$rank1 was killed by SIGKILL" 0
	lost "$what" segv 1 "$rank1 died of signal 11" 2
	lost "$what" raise 1 "$rank1 (has ended with exit status 1|called exit\(1\))" 2
	ZERO_END_SECONDS=6 lost "$what" teardown 1 "$rank1 has not ended within 6 s of its exit" 0
done
lost ddp exit3 1 "$rank1 has ended with exit status 3" 1
lost fsdp2 exit0 1 "rank 1 began 'zero_close'" 0
