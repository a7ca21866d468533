#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job that loses a rank ends on all ranks, prints one line that names the rank, and leaves no
# processes or files behind, however the rank was lost and whatever the job did. The launcher leaves
# the other ranks alone (orte_enable_recovery), so that the library has to end them; a few times it
# does not, and either may be first: its status says only then what became of the job.
# ZERO_TEST_KILLS (2) is the number of these, at random moments.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need mpi
scratch
RANDOM=${ZERO_TEST_SEED:=$RANDOM}
echo "ZERO_TEST_SEED=$ZERO_TEST_SEED"
export ZERO_BACKEND=host ZERO_OPEN_SECONDS=60
# shellcheck source=tests/ranks/lost_job.sh
. "$top_srcdir/tests/ranks/lost_job.sh" lost

# is_lost WORDS RANKS RANK ACTION MILLISECONDS [ONLY]: one line says so
is_lost() {
	OMPI_MCA_orte_enable_recovery=1 names "$@"
}

job 3 0 none 0
((status == 0)) || broken "no action"
! grep . "$scratch/out" || broken "no action: something is printed"

is_lost "was killed by SIGKILL" 2 1 kill 100 gather
is_lost "died of signal 11" 3 2 segv 100 gather
is_lost "died of signal 6" 3 1 memory 100 load
is_lost "called exit\(0\) without zero_close" 3 0 exit0 100 step
# The line says more as long as nobody has waited for the process.
is_lost "(was killed by SIGKILL, perhaps .* or )?called _exit" 3 1 _exit3 100
ZERO_WATCH_SECONDS=1 is_lost "is stopped .* 1 s" 4 2 stop 100 save

# Each rank is on a node of its own, and no address there is allowed: none waits for another.
LD_PRELOAD=$top_builddir/tests/double/.libs/nodes.so DOUBLE_RANKS_OF_NODE=1 \
	NCCL_SOCKET_IFNAME=none \
	job 3 0 none 0
grep -q 'rank 0 (node node0) has no address on a network that' "$scratch/out" ||
	broken "no addresses"

# Where the ranks are to go on they know at once that no other job can be opened.
is_refused() {
	ZERO_ON_FAULT=return OMPI_MCA_orte_enable_recovery=1 job 3 1 kill 1 reopen
	[[ $(grep -c '^refused$' "$scratch/out") == 2 ]] || broken "a new job"
}
is_refused
if has_gpu_doubles; then
	gpu_doubles "$scratch/gpu"
	ZERO_BACKEND=cuda LD_LIBRARY_PATH=$scratch/gpu:$LD_LIBRARY_PATH is_refused
fi

# A rank is stopped while the others wait for it in zero_open.
ZERO_OPEN_SECONDS=2 job 3 1 stop -1
((status != 0)) || broken "stopped in zero_open"
read -r _ moment _ <"$scratch/files/at"
grep -q '^zero: rank 0 .* in zero_open' "$scratch/out" || [[ $moment == open ]] ||
	broken "stopped in zero_open: no line"

# A rank that waits for too long prints which rank keeps it waiting, and what all do.
ZERO_STALL_SECONDS=4 job 3 1 slow 120000
((status != 0)) || broken "a stall"
(($(lines 'rank 1 on node .* keeps the others waiting for more than 4 s') == 1)) ||
	broken "a stall: no line"
grep -qE "^zero:   ranks 0, 2: in .* \(operation [0-9]+\) for [0-9]" "$scratch/out" ||
	broken "a stall: no line about the ranks that wait"

# The launcher ends the other ranks. A rank that it ended may be found before the one that was lost.
for ((i = 0; i < ${ZERO_TEST_KILLS:-2}; i++)); do
	ranks=$((RANDOM % 3 + 2)) rank=$((RANDOM % ranks))
	job $ranks $rank kill $((i % 2 ? RANDOM % 1000 : -RANDOM % 1000))
	((status != 0)) || broken "killed"
	allowed='rank .* (was killed by SIGKILL|died of signal 15|has waited)'
	[[ $(lines .) == "$(lines "$allowed")" ]] ||
		broken "rank $rank of $ranks is killed: other lines"
done

! find "$scratch/tmp" "$scratch/shm" -mindepth 1 ! -name 'ompi.*.[0-9]*' | grep . ||
	fail "these files are left behind; ZERO_TEST_SEED=$ZERO_TEST_SEED"
