#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check-torch: the cases of cases.py alone and at several numbers of ranks.
. "${top_srcdir:?run me by make check-torch}/tests/common.sh"

builddir=$PWD
[[ -e python/slurm_zero/_zero.abi3.so ]] || fail "this build has no Python package: Python's headers were not found"
TORCH_PYTHON=${TORCH_PYTHON-python3}
"$TORCH_PYTHON" -c 'import torch' || fail "$TORCH_PYTHON has no torch: name another by TORCH_PYTHON=venv/bin/python"
# The package is in two folders if the build is not in the sources.
scratch
mkdir "$scratch/slurm_zero"
ln -s "$(cd "$top_srcdir" && pwd)"/python/slurm_zero/*.py "$builddir/python/slurm_zero/_zero.abi3.so" "$scratch/slurm_zero"
export PYTHONPATH=$scratch PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
failed=0
for world in ${TORCH_WORLDS-alone 2 3}; do
	launch=("$builddir/launcher/zerorun" -n "$world")
	[[ $world != alone ]] || launch=()
	# shellcheck disable=SC2086
	timeout 600 "${launch[@]}" "$TORCH_PYTHON" "$top_srcdir/python/tests/cases.py" ${TORCH_CASES-} >"$scratch/out" 2>&1
	status=$?
	((status == 0)) || { failed=1; cat "$scratch/out"; }
	echo "$world: $(tail -1 "$scratch/out"), status $status"
done
exit $failed
