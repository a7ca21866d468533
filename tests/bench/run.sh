#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make bench: runs every subject, then prints one table and writes bench.json in the build folder.
# No figure makes it fail; what each should be is printed beside it.
#
#	BENCH_SCALE=0.25            all sizes smaller; the default where memory is small
#	BENCH_ONLY="reduce step"    these subjects alone
#	TMPDIR                      where a file of 2.03 GB has room
. "${top_srcdir:?run me by make bench}/tests/common.sh"

have mpi || {
	echo "bench: this build has no MPI, whose operations are what figures are held against"
	exit 0
}
: "${ZERORUN:=$top_builddir/launcher/zerorun}"
bench=$top_builddir/tests/bench/bench
scratch
rows=$scratch/rows
: >"$rows"
# What a user says in the environment is not to be measured.
for name in $(compgen -v ZERO_); do
	case $name in ZERO_HAVE | ZERO_REQUIRE) ;; *) unset "$name" ;; esac
done

available=$(awk '$1 == "MemAvailable:" { print int($2 / 1e6) }' /proc/meminfo)
if [[ -z ${BENCH_SCALE-} ]]; then
	BENCH_SCALE=1
	((available >= 12)) || BENCH_SCALE=0.25
fi
export BENCH_SCALE
note="Sizes: parameters of 2.03 GB, groups of 512 MiB"
[[ $BENCH_SCALE == 1 ]] || note+=", times $BENCH_SCALE ($available GB of memory are available)"
note+=". Medians; both sides of a ratio in one run, on $(nproc) cores."

# wanted SUBJECT
wanted() {
	[[ " ${BENCH_ONLY:-$1} " == *" $1 "* ]]
}

# measure RANKS SUBJECT; one rank needs no launcher
measure() {
	local launcher=()
	wanted "$2" || return 0
	echo "bench: $2, ranks: $1" >&2
	(($1 == 1)) || launcher=("$ZERORUN" -n "$1")
	"${launcher[@]}" "$bench" "$2" "$rows" "$scratch" </dev/null || fail "$2 of $1 ranks failed"
}

measure_gpt() {
	local gpt=$top_builddir/examples/gpt vocab=50304
	wanted gpt && have cblas && [[ -x $gpt ]] || return 0
	echo "bench: gpt, ranks: 2" >&2
	"$bench" tokens "$scratch/tokens" 100000 $vocab
	"$ZERORUN" -n 2 "$gpt" --layers 6 --heads 6 --width 384 --context 256 --vocab $vocab \
		--tokens "$scratch/tokens" --batch 4 --seq 256 --steps 4 --log "$scratch/log" \
		</dev/null >"$scratch/out" || fail "gpt failed: $(<"$scratch/out")"
	"$bench" gpt-log "$rows" "$scratch/log" 2
}

measure 2 partition
measure 2 gather
measure 4 gather
measure 2 reduce
measure 4 reduce
measure 1 adamw
measure 2 step
measure 2 small
measure 4 small
measure_gpt
"$bench" table "$rows" "$top_builddir/bench.json" "$note"
