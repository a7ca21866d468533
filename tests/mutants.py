#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well the tests bite: random small faults, one at a time, and the tests that would see them.

`make mutants N=100 SEED=1 ROOM=lib/train` runs this in two copies of the sources. In the first,
which is compiled with gcov, each test is run once, and a map says which tests run which line
(`map`). In the second a fault is put in, the copy is built, the tests that run its line are run,
the fastest first, until one fails, and the fault is taken out again (`run`). A fault that changes
no object file is no fault. What survives is printed with its line: it is equivalent to the
original, or a hole in the tests.
"""
import argparse
import ast
import collections
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

PRODUCT = ("lib", "kernels", "spank", "launcher", "python/slurm_zero")
LIMIT = 180  # seconds of tests for each fault, by the times of the map
# Ranks and tasks that are killed leave no map, so these tests count for all of a room.
KILLS = {
    "lib/watch": ("tests/ranks/lost.sh", "tests/ranks/none_lost.sh", "tests/slurm/lost.sh"),
    "lib/net": ("tests/ranks/lost.sh", "tests/ranks/none_lost.sh"),
    "lib/checkpoint": ("tests/gpt/resume.sh",),
    "spank": sorted(glob.glob("tests/slurm/*.sh")),  # slurmstepd leaves none either
    "launcher/launch": ("tests/launcher/restart.sh", "tests/launcher/zerorun.sh"),
    "launcher/recover": ("tests/slurm/recover.sh",),
}
# gcov knows nothing of Python.
PYTHON = (*sorted(glob.glob("python/tests/*.sh")), "tests/wheel.sh", "tests/slurm/torch.sh",
          "tests/slurm/unedited.sh")

C_FAULTS = [
    (r"(?<![=!<>])==(?!=)", ["!="]), (r"!=", ["=="]),
    (r" < ", [" <= ", " >= "]), (r" <= ", [" < ", " > "]),
    (r" > ", [" >= ", " <= "]), (r" >= ", [" > ", " < "]),
    (r"&&", ["||"]), (r"\|\|", ["&&"]),
    (r"(?<=[\w)\]]) \+ ", [" - "]), (r"(?<=[\w)\]]) - ", [" + "]),
    (r"(?<=[\w)\]]) \* ", [" + "]), (r"(?<=[\w)\]]) / ", [" * "]), (r"(?<=[\w)\]]) % ", [" / "]),
    (r"\+=", ["-="]), (r"-=", ["+="]), (r"(?<=\w)\+\+", ["--"]),
    (r"(?<=[\w)\]]) & ", [" | "]), (r"(?<=[\w)\]]) \| ", [" & "]), (r"<<", [">>"]),
    (r"(?<![\w.])0(?![\w.])", ["1"]), (r"(?<![\w.])1(?![\w.])", ["0", "2"]),
    (r"(?<![\w.])([2-9]|[1-9]\d+)(?![\w.])", [lambda m: str(int(m[0]) + 1)]),
    (r"\btrue\b", ["false"]), (r"\bfalse\b", ["true"]), (r"(?<![\w)])!(?=[\w(])", [""]),
    (r"^(\t+)(?:[a-z_]\w*\(.*\);|[a-z_][\w>.\-\[\]]* [-+|&]?= .*;)$", [r"\1;"]),
    (r"^(\t+return) (?!0;|ZERO_OK;|NULL;).+;$", [r"\1 0;"]),
    (r"^(\t+)continue;$", [r"\1break;"]), (r"^(\t+)break;$", [r"\1;"]),
    (r"\bif \((.+)\)(?= \{$|$)", [r"if (!(\1))"]),
    (r"\((\w+), (\w+)(?=[,)])", [r"(\2, \1"]),
]
PYTHON_FAULTS = [
    (r"==", ["!="]), (r"!=", ["=="]), (r" < ", [" <= "]), (r" > ", [" >= "]),
    (r" and ", [" or "]), (r" or ", [" and "]), (r"\bnot (?!in)", [""]), (r" is not ", [" is "]),
    (r" not in ", [" in "]), (r" \+ ", [" - "]), (r" - ", [" + "]), (r"\+=", ["-="]),
    (r"\bTrue\b", ["False"]), (r"\bFalse\b", ["True"]),
    (r"(?<![\w.])0(?![\w.])", ["1"]), (r"(?<![\w.])1(?![\w.])", ["0", "2"]),
    (r"^( +)(?:[a-z_][\w.]*\(.*\)|[a-z_][\w.\[\]]* [-+|]?= .*[^\[({,])$", [r"\1pass"]),
    (r"^( +return) (?!None).+[^\[({,]$", [r"\1 None"]),
    (r"^( *(?:el)?if) (.+):$", [r"\1 not (\2):"]),
]


def code_of(line):
    """The line with blanks instead of comments and the insides of strings, so that places agree."""
    blank = lambda match: match[0][0] + " " * (len(match[0]) - 2) + match[0][-1]
    line = re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', blank, line)
    return re.sub(r"/\*.*?(\*/|$)|//.*$|(?<=\s)#(?= ).*$", lambda match: " " * len(match[0]), line)


def faults_of(line, table):
    """All ways to put one fault into the line."""
    code = code_of(line)
    for pattern, replacements in table:
        pattern = re.compile(pattern)
        for place in pattern.finditer(code):
            match = pattern.match(line, place.start())
            for replacement in replacements if match else ():
                text = replacement(match) if callable(replacement) else match.expand(replacement)
                yield line[:match.start()] + text + line[match.end():]


def room_of(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] in ("lib", "launcher") else parts[0]


def python_lines(path):
    """The lines at which a statement of a function or class begins, but for what documents it."""
    with open(path) as file:
        tree = ast.parse(file.read())
    return {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)
            and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            and not isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))}


def run_test(test, seconds, variables=()):
    """The result that automake writes of a test: PASS, FAIL, SKIP; FAIL for one that hangs."""
    result = os.path.splitext(test)[0] + ".trs"
    if os.path.exists(result):
        os.unlink(result)
    process = subprocess.Popen(["make", "-s", "check-TESTS", f"TESTS={test}"],
                               start_new_session=True, env={**os.environ, **dict(variables)},
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "FAIL"
    try:
        with open(result) as file:
            return re.search(r":global-test-result: (\w+)", file.read())[1]
    except (OSError, TypeError):
        return "FAIL"


def lines_of(folder, top):
    """What gcov says of a test: for each file of the product, lines and branches: taken or not."""
    data = glob.glob(folder + "/**/*.gcda", recursive=True, include_hidden=True)
    for name in data:
        notes = name[len(folder):-5] + ".gcno"
        if os.path.exists(notes):
            os.symlink(notes, name[:-5] + ".gcno")
    text = subprocess.run(["gcov", "-j", "-b", "-t", *data], capture_output=True, text=True,
                          cwd=top).stdout if data else ""
    files = collections.defaultdict(dict)
    for document in filter(None, text.split("\n")):
        for file in json.loads(document)["files"]:
            path = os.path.relpath(os.path.join(top, file["file"]), top)
            if not path.startswith(PRODUCT):
                continue
            for line in file["lines"]:
                at = line["line_number"]
                places = {str(at): line["count"]}
                places |= {f"{at}.{i}": way["count"] for i, way in enumerate(line["branches"])}
                for place, count in places.items():
                    files[path][place] = files[path].get(place, False) or count > 0
    return files


def make_map(tests, out):
    """Runs each test by itself, and writes which of the product's lines it runs, and its time.

    Each test is a line of the file, so that a run that was ended goes on.
    """
    top, part = os.getcwd(), out + ".part"
    known = {}
    if os.path.exists(part):
        with open(part) as file:
            known = {entry["test"]: entry for entry in map(json.loads, file)}
    with open(part, "a") as file:
        for at, test in enumerate(tests):
            if test in known:
                continue
            folder = f"{top}/mutants.gcov"
            subprocess.run(["rm", "-rf", folder], check=True)
            os.makedirs(folder, 0o777)
            os.chmod(folder, 0o777)
            began = time.monotonic()
            result = run_test(test, 1800, {"GCOV_PREFIX": folder}.items())
            took = time.monotonic() - began
            print(f"{at + 1}/{len(tests)} {test}: {result}, {took:.0f} s", flush=True)
            known[test] = {"test": test, "seconds": took, "files": lines_of(folder, top)}
            print(json.dumps(known[test]), file=file, flush=True)
    os.rename(part, out)
    rooms = collections.defaultdict(dict)
    for entry in known.values():
        for path, places in entry["files"].items():
            room = rooms[room_of(path)]
            for place, taken in places.items():
                room[path, place] = room.get((path, place), False) or taken
    for name, room in sorted(rooms.items()):
        lines = [taken for (_, place), taken in room.items() if "." not in place]
        ways = [taken for (_, place), taken in room.items() if "." in place]
        print(f"{name:20} {sum(lines):6} of {len(lines):6} lines, {sum(lines) / len(lines):.2f}, "
              f"{sum(ways):6} of {len(ways):6} branches, {sum(ways) / max(len(ways), 1):.2f}")


def read_map(path):
    """The times of the tests, the lines of each file, and for each line the tests that run it."""
    times, lines, covered = {}, collections.defaultdict(set), collections.defaultdict(set)
    with open(path) as file:
        for entry in map(json.loads, file):
            times[entry["test"]] = entry["seconds"]
            for name, places in entry["files"].items():
                for place, taken in places.items():
                    if "." in place:
                        continue
                    lines[name].add(int(place))
                    if taken:
                        covered[name, int(place)].add(entry["test"])
    return {"times": times, "lines": lines, "covered": covered}


def tests_of(path, lines, known):
    """The tests that run one of the lines, the fastest first."""
    if path.endswith(".py"):
        names = set(PYTHON)
    else:
        names = {name for line in lines for name in known["covered"].get((path, line), ())}
        for room, tests in KILLS.items():
            if path.startswith(room + "/"):
                names.update(tests)
    return sorted((name for name in names if name in known["times"]), key=known["times"].get)


def build(*targets):
    return subprocess.run(["make", "-s", "-j2", *targets], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def build_test(test):
    """What the test runs: a program and the stand-ins, or for a script all of them."""
    if test.endswith(".sh"):
        return build("check", "TESTS=")
    return build(test, *glob.glob("tests/double/*.la"))


def fails(test, known):
    """Whether the test fails with the fault, as it is built now."""
    return build_test(test) and run_test(test, 60 + 8 * known["times"][test]) == "FAIL"


def objects_of(path):
    """The objects that are compiled from a file, to see whether a fault changes any."""
    base = re.escape(os.path.splitext(os.path.basename(path))[0])
    if path.endswith(".cu"):
        base = "kernels_emulated"
    return {name: open(name, "rb").read()
            for folder in (*PRODUCT, "tests/double")
            for name in glob.glob(f"{folder}/**/*.o", recursive=True, include_hidden=True)
            if re.search(rf"(/|-){base}\.o$", name)}


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def try_fault(path, numbers, faulty, known, trusted):
    """('caught', test), ('survived', tests) or ('equivalent' or 'refused', '').

    `faulty` is the text of the file with the fault, of which the lines `numbers` differ. Before a
    test is trusted to have caught a fault, it has passed once without one.
    """
    with open(path) as file:
        original = file.read()
    made = ("all", "tests/double/kernels_emulated.o") if path.endswith(".cu") else ("all",)
    build(*made)
    before = objects_of(path)
    try:
        write(path, faulty)
        if not build(*made):
            return "refused", ""
        if before and objects_of(path) == before:
            return "equivalent", ""
        left, tried = float(LIMIT), []
        for test in tests_of(path, numbers, known):
            if left <= 0:
                break
            failed = trusted.get(test, True) and fails(test, known)
            if failed and test not in trusted:
                write(path, original)
                build(*made)
                trusted[test] = not fails(test, known)
                write(path, faulty)
                build(*made)
            if failed and trusted[test]:
                return "caught", test
            if trusted.get(test, True):
                tried.append(test)
            left -= known["times"][test]
        return "survived", " ".join(tried) or "no test runs it"
    finally:
        write(path, original)


def read_log(log):
    """What became of the faults that were tried before: a run that was ended goes on."""
    known = {}
    entry = re.compile(r"^(\w+): (.+):(\d+)\n  - .*\n  \+ (.*)\n  (.*)$", re.M)
    if os.path.exists(log):
        with open(log) as file:
            for part in entry.finditer(file.read()):
                known[part[2], int(part[3]), part[4]] = part[1], part[5]
    return known


def run(known, count, seed, room, log):
    """Tries `count` random faults that change an object, and prints how many the tests catch."""
    chance = random.Random(seed)
    places = [(path, line) for path, lines in known["lines"].items() for line in lines
              if path.endswith((".c", ".cu"))]
    for path in glob.glob("python/slurm_zero/*.py") if set(PYTHON) & set(known["times"]) else ():
        places += [(path, line) for line in python_lines(path)]
    places = sorted(place for place in places if place[0].startswith(room))
    chance.shuffle(places)
    scores = collections.defaultdict(lambda: [0, 0])
    before, trusted = read_log(log), {}
    with open(log, "a") as out:
        for path, number in places:
            if sum(total for _, total in scores.values()) >= count:
                break
            with open(path) as file:
                lines = file.read().split("\n")
            line = lines[number - 1]
            table = PYTHON_FAULTS if path.endswith(".py") else C_FAULTS
            faults = sorted(set(faults_of(line, table)) - {line})
            if not faults:
                continue
            fault = chance.choice(faults)
            change = f"  - {line.strip()}\n  + {fault.strip()}"
            if (path, number, fault.strip()) in before:
                verdict, why = before[path, number, fault.strip()]
            else:
                lines[number - 1] = fault
                verdict, why = try_fault(path, [number], "\n".join(lines), known, trusted)
                print(f"{verdict}: {path}:{number}\n{change}\n  {why}", file=out, flush=True)
            if verdict not in ("caught", "survived"):
                continue
            score = scores[room_of(path)]
            score[0] += verdict == "caught"
            score[1] += 1
            if verdict == "survived":
                print(f"{path}:{number} ({why})\n{change}", flush=True)
    for test in (test for test, passed in trusted.items() if not passed):
        print(f"{test} fails without a fault, and was left out")
    for name, (caught, total) in sorted(scores.items()):
        print(f"{name:20} {caught:4} of {total:4}")
    caught, total = (sum(column) for column in zip(*scores.values()))
    print(f"{'all':20} {caught:4} of {total:4}, {caught / total:.2f}")


def try_patches(known, patches):
    """What becomes of the bugs in these files, each a patch of one file of the product."""
    caught, trusted = 0, {}
    for patch in patches:
        with open(patch) as file:
            text = file.read()
        path = re.search(r"^\+\+\+ b/(\S+)", text, re.M)[1]
        numbers = []
        for hunk in re.finditer(r"^@@ -(\d+).*\n((?:[ +\-\\].*\n?|\n)*)", text, re.M):
            at = int(hunk[1])
            for line in hunk[2].split("\n"):
                # What is added is run where the line before it is.
                if line.startswith(("+", "-")):
                    numbers += [at - 1, at]
                at += line.startswith((" ", "-"))
        faulty = subprocess.run(["patch", "-s", "-o", "-", path], input=text, text=True,
                                capture_output=True)
        if faulty.returncode:
            print(f"{patch}: does not apply", flush=True)
            continue
        verdict, why = try_fault(path, numbers, faulty.stdout, known, trusted)
        caught += verdict == "caught"
        print(f"{verdict}: {patch} ({why})", flush=True)
    print(f"{caught} of {len(patches)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("map", "run", "patches"))
    parser.add_argument("--map", required=True, help="the file of the map")
    parser.add_argument("--tests", default="", help="for map: the tests")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--room", default="", help="the beginning of the paths of files")
    parser.add_argument("--log", default="mutants.log", help="what became of each fault")
    parser.add_argument("patches", nargs="*", help="for patches: their files")
    options = parser.parse_intermixed_args()
    if options.verb == "map":
        return make_map(options.tests.split(), options.map)
    if options.verb == "patches":
        return try_patches(read_map(options.map), options.patches)
    print(f"seed {options.seed}")
    return run(read_map(options.map), options.count, options.seed, options.room, options.log)


if __name__ == "__main__":
    sys.exit(main())
