#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh SECONDS 'TARGET SOURCE... FLAG...'...: compiles the targets with libFuzzer and sanitizers
# and runs each for so long, as many at once as there are cores. What it tries grows in
# build-fuzz/work from one run to the next; what it finds goes to build-fuzz/found.
. "${top_srcdir:?run me by make fuzz}/tests/common.sh"

seconds=$1
shift
(($# && seconds > 0)) || fail "for how many seconds, and which targets?"
: "${FUZZ_CC:=clang}"
cores=$(nproc 2>/dev/null || echo 2)
folder=$top_builddir/build-fuzz
mkdir -p "$folder/found" || fail "no folder $folder"
[[ -w /dev/shm ]] && TMPDIR=/dev/shm
scratch
# the sanitizers report leaks of what is tested, not of the tests' own end
export TMPDIR=$scratch UBSAN_OPTIONS=print_stacktrace=1 \
	ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1

flags=(-std=gnu11 -O1 -g -fno-omit-frame-pointer '-fsanitize=fuzzer,address,undefined'
	-fno-sanitize-recover=all -D_GNU_SOURCE -DHAVE_CONFIG_H
	"-I$top_builddir" -I. -Ilib -Itests/fuzz -pthread)
cd "$top_srcdir" || fail "no folder $top_srcdir"
echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d == (char *)n; }' |
	"$FUZZ_CC" "${flags[@]}" -x c - -o "$scratch/try" 2>"$scratch/out" ||
	skip fuzzer "$FUZZ_CC has no -fsanitize=fuzzer: $(tail -n 1 "$scratch/out")"

# build TARGET WORD...
build() {
	local target=$1 sources=() word
	shift
	for word; do
		[[ $word == *.h ]] || sources+=("$word")
	done
	"$FUZZ_CC" "${flags[@]}" "tests/fuzz/$target.c" "${sources[@]}" -o "$folder/$target" \
		>"$scratch/$target.build" 2>&1 || : >"$scratch/$target.failed"
}

# Whether a machine that is busy with other things may look as if a target hung.
limit=1
((seconds >= 10)) || limit=20

# fuzz TARGET
fuzz() {
	local target=$1 work=$folder/work/$1 dict=() status runs speed
	mkdir -p "$work"
	[[ -e tests/fuzz/$target.dict ]] && dict=("-dict=tests/fuzz/$target.dict")
	timeout -k 5 $((seconds + 120)) "$folder/$target" -max_total_time="$seconds" \
		-timeout=$limit \
		-rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 "${dict[@]}" \
		-artifact_prefix="$folder/found/$target-" "$work" "tests/fuzz/corpus/$target" \
		>"$scratch/$target.log" 2>&1 </dev/null
	status=$?
	runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$scratch/$target.log")
	speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$scratch/$target.log")
	if ((status == 0)); then
		printf '%-12s %10s runs %8s a second  no crash, leak or hang\n' "$target" "$runs" \
			"$speed"
		return
	fi
	printf '%-12s %10s runs %8s a second  FOUND, status %s\n' "$target" "${runs:-?}" \
		"${speed:-?}" $status
	cp "$scratch/$target.log" "$folder/found/$target.log"
	grep -aE '^(SUMMARY|[^ ]*fuzz/[^ ]*:[0-9]+: |[^ ]*runtime error|.*Test unit written)' \
		"$scratch/$target.log" |
		tail -n 5
	echo "all of it: $folder/found/$target.log"
	: >"$scratch/$target.failed"
}

# each COMMAND: for all targets, as many at once as there are cores
each() {
	local one running=0
	for one in "${list[@]}"; do
		# shellcheck disable=SC2086 # its words are the target, its sources and flags
		"$1" $one &
		((++running < cores)) || wait -n
	done
	wait
}

list=("$@")
each build
for one in "${list[@]}"; do
	target=${one%% *}
	[[ ! -e $scratch/$target.failed ]] || {
		tail -n 20 "$scratch/$target.build"
		fail "$target cannot be compiled"
	}
done
list=("${list[@]%% *}")
each fuzz
if compgen -G "$scratch/*.failed" >/dev/null; then
	fail "what was found is in $folder/found; add it to tests/fuzz/corpus once it is put right"
fi
