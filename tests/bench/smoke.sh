#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make bench at very small sizes: its JSON is well formed, and says something of every goal.
# Some subjects on few ranks suffice for that; make check-long has all of them.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi
scratch
mkdir "$scratch/out"
subjects="gather step" most=2
if [[ ${ZERO_TEST_LONG-} ]]; then
	most=4
	subjects="partition sources load flatten gather downcast reduce adamw cores"
	subjects+=" step copies save restore protect"
fi
BENCH_SCALE=0.002 BENCH_MOST_RANKS=$most BENCH_ONLY=$subjects \
	BENCH_OUT=$scratch/out SOURCE_DATE_EPOCH=0 timeout 300 \
	bash "$top_srcdir/tests/bench/run.sh" \
	>"$scratch/table" 2>"$scratch/err" || fail "make bench: $(tail -n 5 "$scratch/err")"
json=$scratch/out/bench.json

grep -q '"date": "1970-01-01 00:00 UTC"' "$json" ||
	fail "bench.json does not bear the date of SOURCE_DATE_EPOCH"
what=("gather between nodes: bytes sent in all")
[[ $subjects != *partition* ]] || what+=("partition from rank 0 within a node: time"
	"reduce between nodes: staging, accounted" "load of a checkpoint: bytes read in all")
for what in "${what[@]}"; do
	grep -qF "$what" "$scratch/table" || fail "\"$what\" was not measured"
done

# Goals stand in goals.c as {operation, "name", ranks, "goal"}: each is a row, or was not measured.
need_command python3 interop
python3 - "$json" "$top_srcdir/tests/bench/goals.c" <<'END' || fail "bench.json is wrong"
import json, re, sys

bench = json.load(open(sys.argv[1]))
goals = re.findall(r'^\t\{[a-z_]*, "([^"]*)", ([0-9]*), "', open(sys.argv[2]).read(), re.M)
assert len(goals) > 30, "the goals cannot be read from goals.c"
said = {(row["what"], row["ranks"]) for row in bench["rows"] + bench["not_measured"]}
for what, ranks in goals:
    assert (what, int(ranks)) in said, (what, ranks)
for series in bench["series"]:
    assert series["points"] == sorted(series["points"]), series
assert len(bench["series"]) >= 4
END
