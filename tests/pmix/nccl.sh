# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests that make ids with the real NCCL, which needs no GPU for that.

# shellcheck disable=SC2034 # for the test
nccl=libnccl.so.2
for path in /usr/local/cuda*/lib*/libnccl.so.2; do
	# Whoever runs the test may name another by LD_LIBRARY_PATH.
	[[ -e $path ]] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${path%/*}
done
# It is to look at no network but this one.
export NCCL_SOCKET_IFNAME=lo

# passed_over: whether the ranks found no NCCL, which is a failure where CUDA is required.
passed_over() {
	grep '^SKIP' "${scratch:?}/out" || return 1
	[[ ",${ZERO_REQUIRE// /,}," != *",cuda-build,"* ]] || fail "no $nccl, but ZERO_REQUIRE has CUDA"
}
