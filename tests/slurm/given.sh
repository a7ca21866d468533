# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests of the environment of tasks of a real cluster: $given is a task that prints it, and
# these functions read what it printed.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"

# expect WHAT WANTED GOT
expect() {
	[[ $3 == "$2" ]] && return
	cluster_logs
	fail "$1: expected '$2', got '$3'; the output was: $(<"$scratch/out")"
}

# has_lines WHAT COUNT PATTERN: checks how many lines of the output match.
has_lines() {
	expect "$1: lines like '$3'" "$2" "$(grep -cE -e "$3" "$scratch/out")"
}

# batch NAME ARGUMENT...: submits a job and sets $job to its number; its output will be
# $scratch/NAME.
batch() {
	local name=$1
	shift
	# shellcheck disable=SC2034 # for the test
	job=$(timeout 60 sbatch --parsable -o "$scratch/$name" "$@") || fail "sbatch $* failed"
}

# Prints the environment of a task as one line. LOCAL_WORLD_SIZE is checked against the lines of its
# node.
cat >"$scratch/given" <<'TASK'
#!/bin/bash
library='none'
grep -q '/libzero\.so' /proc/$$/maps && library=mapped
zero=${ZERO_RESOLVED-none}
echo "procid=$SLURM_PROCID rank=${RANK-none} ntasks=$SLURM_NTASKS world=${WORLD_SIZE-none}" \
	"localid=$SLURM_LOCALID local_rank=${LOCAL_RANK-none} node=$SLURMD_NODENAME" \
	"local_world=${LOCAL_WORLD_SIZE-none} addr=${MASTER_ADDR-none} port=${MASTER_PORT-none}" \
	"preload=${LD_PRELOAD-none} library=$library zero=${zero%% *} extra=${ZZ_EXTRA-none}" \
	"kept=${ZZ_KEPT-none} python=${PYTHONPATH-none} step=$1"
TASK
chmod +x "$scratch/given"
# shellcheck disable=SC2034 # for the test
given=$scratch/given

# field NAME: the values of a field in the output, each once.
field() {
	sed -n "s/^procid=.* $1=\([^ ]*\).*/\1/p" "$scratch/out" | sort -u | tr "\n" " "
}

# The node of rank 0.
first_node() {
	sed -n 's/^procid=0 .* node=\([^ ]*\) .*/\1/p' "$scratch/out"
}

# numbered WHAT COUNT: the output's tasks are numbered as Slurm numbers them, and there are so many.
numbered() {
	local wrong
	wrong=$(awk -v count="$2" '
		/^procid=/ {
			for (i = 1; i <= NF; i++) {
				split($i, part, "=")
				value[part[1]] = part[2]
			}
			if (value["rank"] != value["procid"] || value["world"] != value["ntasks"] ||
			    value["world"] != count || value["local_rank"] != value["localid"])
				print
			seen[value["rank"]]++
			on[value["node"]]++
			told[value["node"]] = told[value["node"]] " " value["local_world"]
		}
		END {
			for (rank = 0; rank < count; rank++)
				if (seen[rank] != 1)
					print "rank " rank ": " seen[rank] + 0 " times"
			for (node in told) {
				tasks = split(told[node], size, " ")
				for (i = 1; i <= tasks; i++)
					if (size[i] != on[node])
						print node ": LOCAL_WORLD_SIZE " size[i] \
							" of " on[node]
			}
		}' "$scratch/out")
	expect "$1: how the tasks are numbered" "" "$wrong"
}
