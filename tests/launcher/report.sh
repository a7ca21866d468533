#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zerorun --report-page: which files it refuses, and that it makes a page of any JSON that is a report.
# Then a job that finds its zerorun in PATH.
# shellcheck source=tests/launcher/run.sh
. "${top_srcdir:?run me by make check}/tests/launcher/run.sh"

# refused STATUS SENTENCE ARGUMENT...
refused() {
	local want=$1 sentence=$2
	shift 2
	run "$ZERORUN" "$@"
	is "$status" "$want"
	has "$err" "zerorun: $sentence"
}

refused 2 '--report-page needs a value: the JSON file of a report' --report-page
refused 2 "--report-page runs no program: 'c' is one argument too many" --report-page a b c
if ! have files; then
	refused 1 'a cannot be read: zerorun was built without Jansson' --report-page a
	exit 0
fi

head='"format": "slurm-zero report", "version": 1'
refused 1 "unable to open $scratch/none.json" --report-page "$scratch/none.json"
echo '{"format":' >"$scratch/x.json"
refused 1 "$scratch/x.json:2: " --report-page "$scratch/x.json"
echo '[1]' >"$scratch/x.json"
refused 1 "$scratch/x.json is not a report of a job" --report-page="$scratch/x.json"
echo "{${head/1/2}, \"ranks\": [{}]}" >"$scratch/x.json"
refused 1 "$scratch/x.json was written by another version of the library" --report-page "$scratch/x.json"
for ranks in '' ', "ranks": []' ', "ranks": [1]' ', "ranks": {"0": {}}'; do
	echo "{$head$ranks}" >"$scratch/x.json"
	refused 1 "$scratch/x.json has no ranks" --report-page "$scratch/x.json"
done
echo "{$head, \"ranks\": [{}]}" >"$scratch/x.json"
refused 1 "$scratch/no/x.html cannot be written: No such file" --report-page "$scratch/x.json" \
	"$scratch/no/x.html"

# made NAME: of $scratch/NAME.json
made() {
	run "$ZERORUN" --report-page "$scratch/$1.json"
	is "$status" 0
	is "$out$err" ""
	[[ -s $scratch/$1.html ]] || fail "no $1.html"
}

# Members are missing, of another type or out of any range.
made x
(umask 027 && run "$ZERORUN" --report-page "$scratch/x.json" "$scratch/other")
cmp "$scratch/x.html" "$scratch/other" || fail "the pages differ"
is "$(stat -c %a "$scratch/x.html") $(stat -c %a "$scratch/other")" "644 640"
is "$(find "$scratch" -name 'x.html*' | wc -l)" 1
values='[1e300, 1.0000000000000002e300, -1e308, 1e308, "x", null, 5]'
cat >"$scratch/y.json" <<EOF
{$head, "job": {"id": "<&\"\u0001>", "seconds": -1, "world": 1e30, "steps": "x"}, "why": "<b>",
"ranks": [{"rank": 0, "node": 7, "steps": {"measured": 3, "median_seconds": 1e300}, "collectives": []},
{"rank": 1, "memory": {"total": {"peak": 1e308}}, "collectives": {"step": {"count": 18446744073709551615.0}}}],
"series": [{"rank": 0, "at_seconds": $values, "steps": $values, "step_seconds": $values},
{"rank": 1, "at_seconds": $values, "peak_bytes": {"shards": $values, "caller": $values, "pinned": [1]}}],
"spread": {"at_seconds": $values, "most_bytes": {}, "least_bytes": $values},
"collectives": [3, {"group": "<", "kind": 1, "count": -5}], "options": [{}, "x"]}
EOF
made y
has "$(<"$scratch/y.html")" 'job &lt;&amp;&quot;?&gt;</title>'
has_not "$(<"$scratch/y.html")" '<b>'
has_not "$(<"$scratch/y.html")" 'nan,'

# Of many ranks and nodes, the page shows some, and how many more there are.
{
	printf '{%s, "ranks": [' "$head"
	comma=
	for ((i = 0; i < 200; i++)); do
		printf '%s{"rank": %d, "node": {"name": "n%d"}}' "$comma" $i $((i / 2))
		comma=,
	done
	echo ']}'
} >"$scratch/z.json"
made z
page=$(<"$scratch/z.html")
has "$page" '184 more ranks are in the JSON file.'
has "$page" '36 more nodes are in the JSON file.'
has "$page" '<td class="name">n1</td><td>2-3</td>'

# What is said of nodes, ranks and steps: which ranks a node has, the least of its ranks', the rank that
# waited least first, and the mean of a sample's steps.
cat >"$scratch/w.json" <<EOF
{$head, "job": {"program": "a & b"}, "ranks": [
{"rank": 0, "node": {"name": "n1", "budget": 3072}, "waited_seconds": 3, "steps": {"measured": 4}},
{"rank": 1, "node": {"name": "n1", "budget": 2048}, "waited_seconds": 1},
{"rank": 2, "node": {"name": "n2", "budget": 1024}, "waited_seconds": 0.5},
{"rank": 3, "node": {"name": "n1", "budget": 4096}, "waited_seconds": 2}],
"series": [{"rank": 0, "at_seconds": [4, 8], "steps": [2, 2], "step_seconds": [4, 4],
"max_step_seconds": [3, 3], "peak_bytes": {"shards": [2048, 2048], "gathered": [2048, 2048]}}]}
EOF
made w
page=$(<"$scratch/w.html")
has "$page" '<h1>a &amp; b, job </h1>'
has "$page" '<td class="name">n1</td><td>0-1, 3</td>'
is "$(grep -o '<td class="n">[1-4].0K</td>' <<<"${page#*id=\"nodes\"}" | tr -dc '1-4')" 21
is "$(sed -n 's/^<tr><td class="n">\([0-3]\)<.*/\1/p' <<<"$page" | tr -d '\n')" 2130
has "$page" '"end">3 s</text>'
has_not "$page" '"end">4 s</text>'
# One kind of memory is drawn above the other, and the axis reaches to the upper one.
has "$page" '"end">4.0K</text>'

if command -v python3 >/dev/null; then
	python3 -c 'import sys, xml.dom.minidom as x; [x.parse(page) for page in sys.argv[1:]]' \
		"$scratch"/[w-z].html || fail "a page is not well formed"
fi

# ---- a job that finds no zerorun beside its library, but what PATH has

need mpi
libraries=$top_builddir/lib/.libs
[[ -e $libraries/libzero.so.2 ]] || exit 0
export ZERO_TEST_SEED=1 ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
mkdir -p "$scratch/a/b/lib" "$scratch/bin"
cp "$libraries"/*.so* "$scratch/a/b/lib"

# tests/unit/test_spawn_page.c has those that fail or hang.
# It gets the path of the JSON, and nothing that is for ranks.
cat >"$scratch/bin/zerorun" <<EOF
#!/bin/bash
echo "\$*" >'$scratch/arguments'
env >'$scratch/environment'
readlink /proc/\$\$/fd/{0,1} >'$scratch/files'
exec '$ZERORUN' "\$@"
EOF
chmod +x "$scratch/bin/zerorun"
LD_PRELOAD=libm.so.6 PATH=$scratch/bin:$PATH LD_LIBRARY_PATH=$scratch/a/b/lib ZERO_BACKEND=host \
	ZERO_REPORT=$scratch/found run "$top_builddir/tests/ranks/restore.ranks" save "$scratch/saved"
is "$status" 0
is "$(find "$scratch/found" -name 'zero-*.json' | wc -l)" 1
is "$(<"$scratch/arguments")" "--report-page $(realpath "$scratch"/found/*.json)"
is "$(grep -E '^(ZERO_|LD_PRELOAD=)' "$scratch/environment")" ""
is "$(sort -u "$scratch/files")" /dev/null
is "$(find "$scratch/found" -name 'zero-*.html' | wc -l)" 1
