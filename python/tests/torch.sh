# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests that run torch, after tests/common.sh: a Python that has it, and the package of this
# build.
[[ -e $top_builddir/python/slurm_zero/_zero.abi3.so ]] ||
	fail "this build has no Python package: Python's headers were not found"
TORCH_PYTHON=${TORCH_PYTHON-python3}
"$TORCH_PYTHON" -c 'import torch' ||
	fail "$TORCH_PYTHON has no torch: name another by TORCH_PYTHON=venv/bin/python"
[[ ${scratch-} ]] || scratch
# It is in two folders if the build is not in the sources.
mkdir -p "$scratch/python/slurm_zero"
ln -s "$(cd "$top_srcdir" && pwd)"/python/slurm_zero/*.py \
	"$(cd "$top_builddir" && pwd)/python/slurm_zero/_zero.abi3.so" "$scratch/python/slurm_zero"
ln -s "$(cd "$top_builddir" && pwd)/python/slurm_zero.dist-info" "$scratch/python"
# What is called stock is to be torch's own.
export ZERO_FSDP=${ZERO_FSDP-keep}
export PYTHONPATH=$scratch/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
