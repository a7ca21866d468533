#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make demo` shows what it is to show, and takes its Slurm down, also after Ctrl-C.
# shellcheck source=tests/common.sh
. "${top_srcdir:?run me by make check}/tests/common.sh"
need slurm yaml mpi files cblas
scratch
cd "$scratch" || exit
export TEXT=$top_srcdir/LICENSE STEPS=20 TMPDIR=$scratch

demo() {
	timeout 300 bash "$top_srcdir/examples/demo_slurm.sh" >"$scratch/out" 2>&1 </dev/null
	status=$?
	((status != 77)) || skip slurm "$(<"$scratch/out")"
}

# is_gone: no daemon of its Slurm is left, nor its folder
is_gone() {
	! pgrep -f "slurm(ctl|step)?d.*$scratch" && [[ ! $(compgen -G "$scratch/zero-test.*") ]] &&
		return
	fail "the demo's Slurm is left: $(<"$scratch/out")"
}

demo
((status == 0)) || fail "status $status: $(<"$scratch/out")"
is_gone
while read -r line; do
	grep -qxE -- "$line" "$scratch/out" || fail "there is no '$line' in $(<"$scratch/out")"
done <<END
sbatch: error: .* --zero-stream-chunk: 1G is not allowed: .* at most 64M by /etc/slurm/zero.yaml:7
node n3: stage=3 from --zero-stage, .* vram_reserve=10% from /etc/slurm/zero.yaml:9.*
# n2 +1 +38.0G +36.0G +nvml .* 1 x NVIDIA A100
# all 3 ranks: budget .*
step 20/20  loss [0-9.]+  =+
rank 2 .*
zero: rank [0-2] on node n2 .* was killed by SIGKILL.*
$scratch/demo-report/zero-.*.html
END
[[ -s $(tail -n 1 "$scratch/out") ]] || fail "there is no page"

# As from a terminal, to all of its processes.
set -m
demo &
until grep -q '^step 20/20' "$scratch/out" || ! kill -0 $!; do
	sleep 0.1
done
kill -INT -- -$!
wait $!
is_gone
