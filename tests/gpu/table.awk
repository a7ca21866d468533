# SPDX-License-Identifier: Apache-2.0
# From the records of one run (lines of JSON, see record.h) and lines "about KEY VALUE" the table: as
# text, as JSON or as Markdown, by -v form=text|json|markdown. A row that has no record is "not run
# yet", or why it was not run.

# goal NAME RANKS WHAT HOW BOUND: a row that must be reached; RANKS "" is any
function goal(name, ranks, what, how, bound)
{
	order[++rows] = name
	goal_of[name] = how " " bound
	wanted_ranks[name] = ranks
	title[name] = what
	bound_of[name] = bound
	less[name] = how == "<="
}

BEGIN {
	copy = "of the copy's bandwidth"
	n = split("f32 to bf16,f32 to f16,bf16 to f32,f16 to f32,f16 to bf16,bf16 to f16", pairs, ",")
	for (i = 1; i <= n; i++)
		goal("cast " pairs[i], "", "cast " pairs[i] ", 1 GB, " copy, ">=", 0.90)
	goal("adamw", "", "AdamW, 1 GB, " copy, ">=", 0.90)
	goal("adamw with bf16", "", "AdamW that writes bf16 too, " copy, ">=", 0.90)
	for (i = 2; i <= 8; i *= 2)
		goal("sum of " i, "", "sum of " i " arrays of 1 GB, " copy, ">=", 0.90)
	goal("norm2", "", "squared norm of 1 GB, " copy, ">=", 0.90)
	goal("fill", "", "fill of 1 GB, " copy, ">=", 0.90)
	goal("flatten of 64 large tensors", "", "flatten of 64 tensors, 1 GB in all, " copy, ">=", 0.90)
	goal("flatten of 10,000 small tensors", "", "flatten of 10,000 small tensors, over one copy",
	     "<=", 1.2)
	goal("downcast with the gather", "", "gather as bf16, over gather in f32 then cast", "<=", 0.55)
	goal("stream from pinned memory", "", "stream from pinned memory, of the bare copy's bandwidth",
	     ">=", 0.95)
	goal("stream from a file in memory", "", "the same from a file in memory", ">=", 0.95)
	goal("step at stage 3 over stage 0", 2, "step at stage 3 over stage 0, same GPU, 2 ranks",
	     "<=", 1.10)
	goal("step that agrees once", "", "step at stage 3, over the same that agrees on each call", "<=", 0.95)
	goal("step as a graph", "", "step at stage 3 as a CUDA graph, over the same by calls", "<=", 1.02)
	goal("product beside the library's gathers", "", "matrix product beside the library's gathers, over alone",
	     "<=", 1.02)
	goal("product beside ordinary gathers", "", "the same beside ordinary gathers of NCCL", "", "")
	goal("zero_open to the first gather", 6, "zero_open to the first gather, 6 ranks, over ncclCommInitRank",
	     "<=", 1.1)
	goal("loss of gpt", "", "loss of gpt on the device against the host, largest relative difference",
	     "<=", 0.001)
	goal("PyTorch losses", "",
	     "PyTorch: losses of slurm_zero against FSDP2, largest relative difference", "<=", 0.01)
	goal("PyTorch step", "", "PyTorch: step over FSDP2's, the same AdamW", "<=", 1)
	goal("PyTorch memory", "", "PyTorch: most memory of the GPU over FSDP2's", "<=", 1.05)
	for (i = 1; i <= rows; i++)
		known[order[i]] = 1
}

# The value behind "key" in a line of JSON whose strings have no quotes in them.
function value_of(line, key,    at, rest)
{
	at = index(line, "\"" key "\": ")
	if (!at)
		return ""
	rest = substr(line, at + length(key) + 4)
	if (substr(rest, 1, 1) == "\"") {
		rest = substr(rest, 2)
		return substr(rest, 1, index(rest, "\"") - 1)
	}
	sub(/[,}].*/, "", rest)
	return rest
}

$1 == "about" {
	key = $2
	sub(/^about +[^ ]+ +/, "")
	about_order[++abouts] = key
	about[key] = $0
}

/^\{"row": / {
	name = value_of($0, "row")
	if (!(name in known)) {
		print "table.awk: no row " name >"/dev/stderr"
		next
	}
	# the ranks that the goal names, or else the most
	ranks = value_of($0, "ranks") + 0
	better = wanted_ranks[name] != "" && ranks == wanted_ranks[name]
	if (value_of($0, "missing") != "" && name in figure)
		next
	if (value_of($0, "missing") != "") {
		missing[name] = value_of($0, "missing")
		next
	}
	if (name in figure && best[name] && !better)
		next
	if (name in figure && !better && ranks < of_ranks[name])
		next
	best[name] = better
	of_ranks[name] = ranks
	figure[name] = value_of($0, "figure")
	sides[name] = value_of($0, "ours") " / " value_of($0, "bare") " " value_of($0, "unit")
	line_of[name] = $0
}

function verdict(name)
{
	if (!(name in figure))
		return (name in missing) ? "not run: " missing[name] : "not run yet"
	if (bound_of[name] == "")
		return "for comparison"
	if (wanted_ranks[name] != "" && of_ranks[name] != wanted_ranks[name])
		return "of " of_ranks[name] " ranks"
	if (less[name] ? figure[name] <= bound_of[name] : figure[name] >= bound_of[name])
		return "met"
	return "missed"
}

function figure_or(name, none)
{
	return (name in figure) ? figure[name] : none
}

function sides_or(name, none)
{
	return (name in figure) ? sides[name] : none
}

function text(    i, name)
{
	for (i = 1; i <= abouts; i++)
		print about_order[i] ": " about[about_order[i]]
	printf("%-72s %-8s %9s  %s\n", "what", "goal", "figure", "ours / bare")
	for (i = 1; i <= rows; i++) {
		name = order[i]
		printf("%-72s %-8s %9s  %-34s %s\n", title[name], goal_of[name],
			figure_or(name, "-"), sides_or(name, "-"), verdict(name))
	}
}

function json(    i, name)
{
	printf "{\n\t\"machine\": {"
	for (i = 1; i <= abouts; i++)
		printf("%s\"%s\": \"%s\"", (i > 1) ? ", " : "", about_order[i], about[about_order[i]])
	printf "},\n\t\"rows\": [\n"
	for (i = 1; i <= rows; i++) {
		name = order[i]
		printf("\t\t{\"what\": \"%s\", \"goal\": \"%s\", \"verdict\": \"%s\", \"record\": %s}%s\n",
			title[name], goal_of[name], verdict(name),
			(name in line_of) ? line_of[name] : "null", i < rows ? "," : "")
	}
	printf "\t]\n}\n"
}

function markdown(    i, name)
{
	if (!abouts)
		print "- machine, driver, nvcc, NCCL, commit, date: not run yet"
	for (i = 1; i <= abouts; i++)
		printf "- %s: %s\n", about_order[i], about[about_order[i]]
	printf("\n| what | goal | figure | ours / bare | |\n|---|---|---|---|---|\n")
	for (i = 1; i <= rows; i++) {
		name = order[i]
		printf("| %s | %s | %s | %s | %s |\n", title[name], goal_of[name],
			figure_or(name, ""), sides_or(name, ""), verdict(name))
	}
}

END {
	if (form == "json")
		json()
	else if (form == "markdown")
		markdown()
	else
		text()
}
