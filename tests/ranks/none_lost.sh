#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job without tensors, whose ranks are in code of their own when one is lost: it ends on all
# ranks, one line names the rank, and the others say their last words. The launcher leaves the other
# ranks alone (orte_enable_recovery), so that the library has to end them.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi pmix
scratch
export OMPI_MCA_orte_enable_recovery=1 ZERO_WATCH_SECONDS=2
# shellcheck source=tests/ranks/lost_job.sh
. "$top_srcdir/tests/ranks/lost_job.sh" none_lost

# is_lost WORDS SPEAKERS RANKS RANK DEED: one line says so, and so many ranks say their last words
is_lost() {
	local count
	names "$1" "${@:3}"
	count=$(grep -c 'last words of rank' "$scratch/out")
	((count == $2)) || broken "$*: last words of $count"
}

is_lost "was killed by SIGKILL, .*the others are in the program's own code" 2 3 1 kill
is_lost "is stopped \(SIGSTOP\)" 1 2 0 stop
is_lost "died of signal 11" 2 3 2 segv
is_lost "has ended with exit status 3" 1 2 1 exit3
# They fail because that rank is gone, and yet it is the one that is named.
is_lost "was killed by SIGKILL" 2 3 0 follow
is_lost "has ended with exit status 0, and others wait for it.* in a barrier of the program" 2 3 1 \
	wait
ZERO_END_SECONDS=1 is_lost "has not ended within 1 s of the end of its work \(ZERO_END_SECONDS\)" \
	1 3 2 finish
ZERO_END_SECONDS=1 is_lost "has not ended within 1 s of its exit \(ZERO_END_SECONDS\)" 1 2 0 hang

# The cause of an error may be that another rank had ended.
job 3 1 fail
first='rank 1 .* had ended with exit status 0;'
grep -qE "zero: rank 0 .* has ended with exit status 5.* [0-9]* s before, $first" \
	"$scratch/out" || broken "fail: no cause"

# Ranks end when they like.
for world in 1 2 3; do
	job $world 0 work
	((status == 0)) && ! grep 'zero:' "$scratch/out" || broken "work: $world"
done
