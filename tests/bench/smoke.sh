#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make bench at very small sizes: its JSON and its page are well formed, and say something of every goal.
# Some subjects on few ranks suffice for that; smoke_all.sh, for check-long, has all of them.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi
scratch
mkdir "$scratch/out"
: "${subjects=gather step}" "${most=2}"
BENCH_SCALE=0.002 BENCH_MOST_RANKS=$most BENCH_ONLY=$subjects \
	BENCH_OUT=$scratch/out SOURCE_DATE_EPOCH=0 timeout 300 bash "$top_srcdir/tests/bench/run.sh" \
	>"$scratch/table" 2>"$scratch/err" || fail "make bench: $(tail -n 5 "$scratch/err")"
page=$scratch/out/bench.html

grep -q '1970-01-01 00:00 UTC' "$page" || fail "the page does not bear the date of SOURCE_DATE_EPOCH"
! grep -Eqi '<script|<link|<img|url\(|@import|src=' "$page" || fail "the page is not of itself alone"

# Every goal's name is a cell of the page. Goals stand in goals.c as {operation, "name", ranks, "goal"}.
goals=$(sed -n 's/^\t{[a-z_]*, "\([^"]*\)", \([0-9]*\), ".*/\1|\2/p' "$top_srcdir/tests/bench/goals.c")
(($(wc -l <<<"$goals") > 30)) || fail "the goals cannot be read from goals.c"
while IFS='|' read -r what ranks; do
	grep -qF "<td class=\"\">$what</td><td class=\"n\">$ranks</td>" "$page" ||
		fail "the page has no row \"$what\" of $ranks ranks"
done <<<"$goals"
for section in partition flatten gather downcast reduce step save; do
	grep -q "<h2 id=\"$section\">" "$page" || fail "the page has no section $section"
done
plots=$(grep -c '<svg ' "$page")
((plots >= 4)) || fail "the page has only $plots plots"
grep -qF "gather between nodes: bytes sent in all" "$scratch/table" || fail "nothing was measured"
if [[ $subjects == *partition* ]]; then
	((plots >= 15)) || fail "the page has only $plots plots"
	for what in "partition from rank 0 within a node: time" "reduce between nodes: staging, accounted" \
		"load of a checkpoint: bytes read in all"; do
		grep -qF "$what" "$scratch/table" || fail "\"$what\" was not measured"
	done
fi

need_command python3 interop
python3 -m json.tool "$scratch/out/bench.json" >/dev/null || fail "bench.json is not JSON"
python3 - "$page" <<'END' || fail "the page is not well formed"
import sys
import xml.dom.minidom

page = xml.dom.minidom.parse(sys.argv[1])
for line in page.getElementsByTagName("polyline"):
    for point in line.getAttribute("points").split():
        x, y = map(float, point.split(","))
        if not (0 <= x <= 560 and 0 <= y <= 600):
            sys.exit(f"a point at {x}, {y} is outside of its plot")
END
