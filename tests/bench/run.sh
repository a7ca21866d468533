#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make bench: measures every subject, prints a table, and writes bench.json into the build
# folder. No figure makes it fail; what each should be is beside it. To run it again:
#
#	make bench                                all of it, about 10 minutes on two idle cores
#	make bench BENCH_ONLY="gather reduce"     these subjects alone; others are "not measured"
#	make bench BENCH_SCALE=0.25               all sizes smaller; the default with little memory
#	make bench BENCH_MOST_RANKS=4             at most so many
#	make bench BENCH_TORCH=venv/bin/python    beside PyTorch's FSDP2 too, and slurm_zero there,
#						by a Python that has torch
#	SOURCE_DATE_EPOCH=...                     the date that bench.json bears
#	TMPDIR                                    where files of 4.3 GB have room
#
# "restore" reads what "save" wrote: name both.
#
# Subjects are in bench.c and the C files of their names, goals in goals.c, naive ways in naive.c.
# What a miss is due to stands in misses.txt, beside the name of its row.
#
# A machine that is busy with something else has figures of its own: nothing else should run.
. "${top_srcdir:?run me by make bench}/tests/common.sh"

have mpi || {
	echo "bench: this build has no MPI, whose operations are what figures are held against"
	exit 0
}
: "${ZERORUN:=$top_builddir/launcher/zerorun}"
: "${BENCH_OUT:=$top_builddir}" # where bench.json goes
bench=$top_builddir/tests/bench/bench
scratch
# Checkpoints go to memory, if there is room for two of 4 GB beside what is saved.
memory=$scratch
if (($(df --output=avail -B1G /dev/shm 2>/dev/null | tail -n 1) >= 12)); then
	memory=$(mktemp -d /dev/shm/zero-bench.XXXXXX) || fail "no folder in /dev/shm"
	trap 'rm -rf "$scratch" "$memory"' EXIT
fi
record=$scratch/record
: >"$record"
# What a user says in the environment is not to be measured.
for name in $(compgen -v ZERO_); do
	case $name in ZERO_HAVE | ZERO_REQUIRE) ;; *) unset "$name" ;; esac
done

available=$(awk '$1 == "MemAvailable:" { print int($2 / 1e6) }' /proc/meminfo)
if [[ -z ${BENCH_SCALE-} ]]; then
	BENCH_SCALE=1
	((available >= 16)) || BENCH_SCALE=0.25
fi
export BENCH_SCALE
note="Sizes: parameters of 2.03 GB, groups of 512 MiB, a checkpoint of 4.3 GB"
[[ $BENCH_SCALE == 1 ]] || note+=", all times $BENCH_SCALE ($available GB of memory are available)"
note+=". Medians; both sides of a ratio in one run, on $(nproc) cores."

# wanted SUBJECT
wanted() {
	[[ " ${BENCH_ONLY:-$1} " == *" $1 "* ]]
}

# measure SUBJECT RANKS...
measure() {
	local subject=$1 ranks
	shift
	wanted "$subject" || return 0
	for ranks; do
		((ranks <= ${BENCH_MOST_RANKS:-8})) || continue
		echo "bench: $subject," \
			"ranks: $ranks${ZERO_SHARE:+, each as if on a node of its own}" >&2
		"$ZERORUN" -n "$ranks" "$bench" "$subject" "$record" "${folder:-$scratch}" \
			</dev/null ||
			fail "$subject of $ranks ranks failed"
	done
}

# measure_both SUBJECT RANKS...: as if each rank were on a node of its own, and then as it is
measure_both() {
	ZERO_SHARE=1 measure "$@"
	measure "$@"
}

# train STAGE: adds to its log, but for the first step, which meets fresh pages everywhere
train() {
	"$ZERORUN" -n 2 --zero-stage="$1" "$gpt" --layers 6 --heads 6 --width 384 --context 256 \
		--vocab $vocab --tokens "$scratch/tokens" --batch 4 --seq 256 --steps 4 \
		--log "$scratch/log" </dev/null >"$scratch/out" ||
		fail "gpt failed: $(<"$scratch/out")"
	tail -n +2 "$scratch/log" >>"$scratch/log$1"
}

measure_gpt() {
	local gpt=$top_builddir/examples/gpt vocab=50304 turn
	wanted gpt && have cblas && [[ -x $gpt ]] || return 0
	echo "bench: gpt, ranks: 2" >&2
	"$bench" tokens "$scratch/tokens" 100000 $vocab
	for turn in 1 2 3; do
		train 0
		train 3
	done
	"$bench" gpt-logs "$record" "$scratch/log3" "$scratch/log0" 2
	torch fsdp2 "$scratch/tokens" "$scratch/log3"
}

# torch PROGRAM ARGUMENT...: a program beside this file, which runs torch's own way and ours in
# turns
torch() {
	local python=${BENCH_TORCH:-python3} program=$1
	local -x ZERO_FSDP=keep PYTHONDONTWRITEBYTECODE=1 \
		PYTHONPATH=$scratch/python:$top_srcdir/tests/bench:$top_srcdir/examples
	shift
	if [[ ! -e $scratch/python ]]; then
		mkdir -p "$scratch/python/slurm_zero"
		ln -s "$(cd "$top_srcdir" && pwd)"/python/slurm_zero/*.py \
			"$(cd "$top_builddir" && pwd)/python/slurm_zero/_zero.abi3.so" \
			"$scratch/python/slurm_zero"
	fi
	if ! { command -v "$python" && "$python" -c "import slurm_zero, $program"; } \
			>/dev/null 2>"$scratch/err"; then
		echo "bench: no rows of $program.py, which $python cannot import:" \
			"$(tail -n 1 "$scratch/err")" >&2
		return
	fi
	echo "bench: $program, ranks: 2" >&2
	"$python" "$top_srcdir/tests/bench/$program.py" "$ZERORUN" "$@" "$record" \
		2>"$scratch/err" ||
		fail "$program.py failed: $(tail -n 3 "$scratch/err")"
	grep "^bench:" "$scratch/err" >&2
}

measure_both partition 1 2 4 8
measure sources 2
measure load 4
measure_both flatten 1 2 4 8
measure_both gather 1 2 4 8
measure_both downcast 1 2 4 8
measure_both reduce 1 2 4 8
measure adamw 1
measure cores 1
measure step 2
! have cblas || ZERO_SHARE=1 measure copies 2
measure small 2 4
folder=$memory measure save 4
folder=$memory measure restore 4 3
if wanted protect; then
	mkdir -p "$memory/protected"
	ZERO_RUN=bench DOUBLE_RANKS_OF_NODE=1 LD_PRELOAD=$top_builddir/tests/double/.libs/nodes.so \
		folder=$memory/protected measure protect 2
fi
measure_gpt
if wanted torch_load; then
	mkdir "$scratch/checkpoint"
	layers=$(awk -v scale="$BENCH_SCALE" 'BEGIN { print int(29 * scale + 0.5) }')
	OMP_NUM_THREADS=1 torch torch_load "$layers" "$scratch/checkpoint"
	rm -rf "$scratch/checkpoint"
fi
! wanted torch_save || torch torch_save "$memory"
! wanted streamed || torch streamed
"$bench" table "$record" "$BENCH_OUT/bench.json" "$top_srcdir/tests/bench/misses.txt" "$note"
