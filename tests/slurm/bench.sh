#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions are called by their names
# make bench-slurm: what the plugin costs a step, on a real Slurm of three nodes on this machine.
# No figure makes it fail; what each should be is printed beside it.
#
#	BENCH_RUNS=100   pairs of steps; the preload runs ten times as many
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make bench-slurm}/tests/slurm/cluster.sh"
: "${BENCH_RUNS:=100}"
report_task=$top_builddir/tests/slurm/report_task
cluster_start
plugin_on
export -f plugin_on plugin_off write_yaml
export scratch libzero report_task BENCH_RUNS nodes_list="${nodes[*]}"

# Runs within one allocation of three nodes and six tasks.
measure() {
	read -ra nodes <<<"$nodes_list"

	# seconds COMMAND...: into $seconds
	seconds() {
		local begin=${EPOCHREALTIME/./} end
		"$@" >/dev/null 2>&1 || echo "failed: $*" >&2
		end=${EPOCHREALTIME/./}
		seconds=$((end - begin))
	}

	# row NAME GOAL: of the pairs "first second" on stdin, in microseconds
	row() {
		awk -v name="$1" -v goal="$2" '
			{ a[NR] = $1; b[NR] = $2 }
			function median(x, n,    i, j, t) {
				for (i = 2; i <= n; i++)
					for (j = i; j > 1 && x[j - 1] > x[j]; j--) {
						t = x[j]; x[j] = x[j - 1]; x[j - 1] = t
					}
				return (x[int((n + 1) / 2)] + x[int(n / 2) + 1]) / 2
			}
			END {
				first = median(a, NR); second = median(b, NR)
				printf "%-58s %8.2f ms %8.2f ms %+7.2f ms  %5.3f  %s\n", name,
					first / 1e3, second / 1e3, (second - first) / 1e3,
					second / first, goal
			}'
	}

	# pairs FIRST SECOND: the two functions in turn
	pairs() {
		for ((i = 0; i < BENCH_RUNS; i++)); do
			"$1"
			printf '%s ' "$seconds"
			"$2"
			echo "$seconds"
		done
	}

	without() {
		plugin_off
		seconds srun -N3 -n6 true
	}
	unused() {
		plugin_on
		seconds srun -N3 -n6 true
	}
	without_pmix() {
		plugin_off
		seconds srun --mpi=pmix -N3 -n6 true
	}
	with_zero() {
		plugin_on
		seconds srun --zero -N3 -n6 true
	}
	bare_true() {
		seconds /bin/true
	}
	preloaded_true() {
		seconds env LD_PRELOAD="$libzero" /bin/true
	}
	env_true() {
		seconds env LD_NOTHING="$libzero" /bin/true
	}

	printf '%-58s %11s %11s %10s  %5s  %s\n' what first second more ratio goal
	pairs without without | row 'srun -N3 -n6 true without the plugin, twice' ''
	pairs without unused | row 'srun -N3 -n6 true: without the plugin, with it' '<= 1.02'
	pairs without_pmix without_pmix | row 'srun --mpi=pmix without the plugin, twice' ''
	pairs without_pmix with_zero |
		row 'srun --mpi=pmix without the plugin, srun --zero' '<= 1.05'
	BENCH_RUNS=$((BENCH_RUNS * 10))
	pairs env_true env_true | row '/bin/true, twice' ''
	pairs env_true preloaded_true |
		row '/bin/true: plain, with libzero.so preloaded' '<= 0.1 ms more'
	plugin_on
	for _ in 1 2 3 4 5 6 7; do
		begin=$EPOCHREALTIME
		end=$(srun --zero -N3 -n6 "$report_task" time | sed -n 's/^rank=0 .*time=//p')
		awk -v begin="$begin" -v end="$end" 'BEGIN { print end - begin }'
	done | sort -n | awk '{ a[NR] = $1 }
		END { printf "%-58s %8.2f s %*s %s\n",
			"from srun to the first gather of 6 ranks on 3 nodes",
			a[int((NR + 1) / 2)], 34, "", "<= 1 s" }'
}
export -f measure
salloc -Q -N3 -n6 bash -c measure
