# SPDX-License-Identifier: Apache-2.0
"""report.py DIR: the report in DIR, against what each rank wrote to DIR/known.<rank>."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys


def check(condition, *what):
    if not condition:
        sys.exit("report.py: " + " ".join(str(word) for word in what))


def drawn(markup, report):
    """The lines that the page prints for the report, by node; None without node."""
    if not shutil.which("node"):
        return None
    page = markup.replace(embedded(markup), json.dumps(report).replace("<", "\\u003c"))
    script = os.path.join(os.path.dirname(__file__), "page.js")
    ran = subprocess.run(["node", script], input=page, capture_output=True, encoding="utf-8")
    check(ran.returncode == 0, ran.stderr)
    return ran.stdout.splitlines()


def embedded(markup):
    return re.search('<script type="application/json" id="report">(.*?)</script>', markup,
                     re.S).group(1)


def only(pattern):
    found = glob.glob(pattern)
    check(len(found) == 1, pattern, found)
    return found[0]


def alike(rank):
    """Whether the same job without checkpoints, "x" for "x-saves", has as much of what is none."""
    plain = json.load(open(only(folder.rsplit("-", 1)[0] + "/zero-*.json")))["ranks"][rank["rank"]]
    kinds, mine, none = plain["collectives"], rank["collectives"], {"count": 0}
    return all(
        kinds.get(kind, none)["count"] == mine.get(kind, none)["count"]
        for kind in ("load", "other", "program", "flatten", "gather", "reduce", "step"))


folder = sys.argv[1]
name = os.path.basename(folder)
strange = "<b>&\"' \\ ??</svg>\u00e9\u20ac\U0001f600"
report = json.load(open(only(folder + "/zero-*.json"), encoding="utf-8"))
markup = open(only(folder + "/zero-*.html"), encoding="utf-8").read()
known = [json.load(open(f"{folder}/known.{r}")) for r in range(len(glob.glob(folder + "/known.*")))]
first = known[0]

check(report["format"] == "slurm-zero report" and report["version"] == 1, "format")
check(report["complete"] == first["together"], report["complete"], report["why"])
check(first["together"] or "did not close the job together" in report["why"], report["why"])
job = report["job"]
check(job["world"] == first["world"] == len(known), job)
check(job["steps"] == first["steps"] and job["stage"] == first["stage"], job)
check(0 < job["seconds"] < 600, job)
ways = {"copies on the device"} if job["world"] == 1 else {
    "copy engines, symmetric windows", "kernels, symmetric windows"}
check(job["gathers"] in ways if job["backend"] == "cuda" else job["gathers"] is None, job)

streamed, sliced = dict(job["streamed"]), name == "sliced" and len(known) > 1
cut = streamed.pop("slice_bytes")
check(streamed == ({"parameters": 2, "largest": "p0", "bytes": first["large"],
                    "slices": first["slices"]} if sliced else
                   {"parameters": 0, "largest": None, "bytes": 0, "slices": 0}), streamed)
check(cut <= 4096 and first["large"] <= cut * first["slices"] < first["large"] + 8192
      if sliced else cut == 0, cut)

options = {option["name"]: option for option in report["options"]}
check(options["stage"]["origin"] == "zero_open" and options["stage"]["default"] == "3",
      options["stage"])
check(options["stage"]["value"] == str(first["stage"]), options["stage"])
check(options["report"]["value"] == folder, options["report"])
check(options["check"]["origin"] == "default", options["check"])
check(options["stream_chunk"]["value"] == str(first["stream_chunk"]), options["stream_chunk"])

# times are exchanged after 101 steps
check(report["slow"] == [], report["slow"])
ranks = report["ranks"]
check([rank["rank"] for rank in ranks] == list(range(first["world"] if first["together"] else 1)),
      "ranks")
for rank, mine in zip(ranks, known):
    where = ("rank", rank["rank"])
    check(rank["traffic"]["bytes_sent"] == mine["bytes_sent"], *where, rank["traffic"], mine)
    check(rank["traffic"]["bytes_read"] == mine["bytes_read"], *where, rank["traffic"])
    check(rank["traffic"]["collectives"] == mine["collectives"], *where, rank["traffic"])
    for kind, bytes_ in mine["memory"].items():
        check(rank["memory"][kind] == bytes_, *where, kind, rank["memory"][kind], bytes_)
    kinds = rank["collectives"]
    check(sum(kind["bytes_sent"] for kind in kinds.values()) == mine["bytes_sent"], *where, kinds)
    if mine["steps"]:
        check(kinds["reduce"]["count"] == mine["steps"] * mine["groups"], *where, kinds)
        gathers = kinds["gather"]["count"]
        check(0 < gathers <= mine["steps"] * mine["groups"], *where, kinds)
        check(mine["stage"] < 3 or gathers == mine["steps"] * mine["groups"], *where, kinds)
        check(kinds["step"]["count"] == mine["agreements"], *where, kinds)
    check(kinds["load"]["count"] >= mine["groups"], *where, kinds)
    steps = rank["steps"]
    check(steps["measured"] == max(mine["steps"] - 1, 0), *where, steps)
    check(0 <= steps["median_seconds"] <= steps["p95_seconds"] <= steps["max_seconds"], *where,
          steps)
    check(steps["max_seconds"] <= steps["total_seconds"] < 600, *where, steps)
    spent = sum(k[t] for k in kinds.values()
                for t in ("own_seconds", "wait_seconds", "run_seconds"))
    check(spent > 0, *where, kinds)
    # rank 0's clock is the job's
    check(rank["rank"] or spent <= job["seconds"] * 1.01 + 0.001, *where, spent, job["seconds"])
    waited = sum(kinds[k]["wait_seconds"] for k in ("gather", "reduce", "update", "step")
                 if k in kinds)
    check(abs(waited - rank["waited_seconds"]) < 1e-6 + waited * 1e-6, *where, waited)
    for kind in "saved", "failed":
        check(rank["checkpoints"][kind] == mine[kind], *where, rank["checkpoints"])
    count = kinds.get("checkpoint", {"count": 0})["count"]
    check(mine["least"] <= count <= mine["most"], *where, "checkpoint", count, mine)
    check("-" not in name or (count and alike(rank)), *where, kinds)

rows = report["collectives"]
for name, total in ranks[0]["collectives"].items():
    for figure in ("count", "bytes_sent", "failed"):
        check(sum(row[figure] for row in rows if row["kind"] == name) == total[figure], name,
              figure)
if first["steps"]:
    for group in ("plain", strange, "half"):
        got = [row["count"] for row in rows if row["kind"] == "reduce" and row["group"] == group]
        check(got == [first["steps"]], group, got, rows)

check([series["rank"] for series in report["series"]] == [rank["rank"] for rank in ranks], "series")
for series, mine in zip(report["series"], known):
    count = len(series["at_seconds"])
    check(1 <= count <= 128, "samples", count)
    check(all(len(c) == count for c in [*series["peak_bytes"].values(), series["steps"]]),
          "columns")
    check(sum(series["steps"]) == max(mine["steps"] - 1, 0), series["steps"], mine["steps"])
    check(series["at_seconds"] == sorted(series["at_seconds"]), "time")
    device = ("shards", "gathered", "gradients", "optimizer", "staging", "caller")
    most = max(sum(series["peak_bytes"][kind][i] for kind in device) for i in range(count))
    peak = mine["memory"]["total"]["peak"]
    check(abs(most - peak) <= peak * 1e-6, "most memory", most, peak)

check("<" not in embedded(markup), "markup within the JSON")
check(json.loads(embedded(markup)) == report, "the page's JSON is another")
check(re.findall("[a-z]+://[^\"]*", markup) == ["http://www.w3.org/2000/svg"], "an address")
check(not re.search(r"url\(|@import|innerHTML| src=| href=", markup),
      "another file, or markup of the user's")
lines = drawn(markup, report)
if lines is None:
    sys.exit()
check(all(option["name"] in lines for option in report["options"]), "options")
check(first["together"] or any("figures are those of rank 0 alone" in line for line in lines),
      "notice")
words = (f"Streamed parameters: 2, the largest p0 of {first['large'] / 1024:.1f}K in "
         f"{first['slices']} slices of {cut / 1024:.1f}K.")
check(any(words in line for line in lines) == sliced, words)
check(len([line for line in lines if line.startswith("path area")]) >= 2, "areas")
check(not re.search("nan|null|undefined|Infinity", "\n".join(lines), re.I), "a value that is none")
if first["steps"]:
    # in rows of kinds, and maybe as what came after the longest time
    check(lines.count(strange) >= 2 + ("update" in ranks[0]["collectives"]), "the strange group")
if os.path.basename(folder) != "stage3":
    sys.exit()

# Which ranks a node has, the least of its ranks', the rank that waited least first, a sample's
# mean.
ranks = [{**ranks[0], "rank": r, "waited_seconds": (r * 7 + 3) % 200, "node": {
    **ranks[0]["node"], "name": f"n{r // 2 % 99}", "budget": 1024 * (r + 1)}} for r in range(200)]
series = {**report["series"][0], "rank": 0, "at_seconds": [4, 8], "steps": [2, 2],
          "step_seconds": [4, 4], "max_step_seconds": [3, 3], "end_bytes": [0, 0],
          "peak_bytes": {"shards": [2048, 2048], "caller": [1024, 0]}}
ranks[0]["steps"] = {**ranks[0]["steps"], "measured": 1234}
named = {"who": "rank 7 on node <n3>", "ranks": [7], "count": 1, "from_step": 1402,
         "from_seconds": 12.5, "until_step": 1702, "until_seconds": 20, "waited_seconds": 3.25}
named = [named, {**named, "until_step": None, "until_seconds": None}]
lines = drawn(markup, {**report, "ranks": ranks, "series": [series], "slow": named})
joined = "\n".join(lines)
slow = joined[joined.index("\nread from files\n"):joined.index("\nNodes\n")]
order = sorted(range(200), key=lambda r: ranks[r]["waited_seconds"])
check(re.findall(r"\n(\d+)\nn\d+\n", slow) == [str(r) for r in order], "order of ranks")
check("\nn0\n0-1, 198-199\n" in joined and "\nn98\n196-197\n" in joined, "ranks of nodes")
check("\n1.0K\n" in joined[joined.index("\nn0\n0-1"):joined.index("\nn1\n2-3")], "least of a node")
check("mean: 2 s" in lines and "longest: 3 s" in lines and "shards: 2.0K" in lines,
      "the first sample")
for until in "1\u202f702", "\u2013":
    check(f"\nrank 7 on node <n3>\n1\u202f402\n{until}\n12.5 s\n3.25 s\n" in joined, "named", until)
check("1\u202f234 were measured" in joined, "digits")
check("path area M70.0,25.5L377.5,25.5L377.5,100.3L685.0,100.3"
      "L685.0,100.3L377.5,100.3L377.5,100.3L70.0,100.3" in lines,
      "one kind of memory above the other")
