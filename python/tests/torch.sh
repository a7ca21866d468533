# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests that run torch, after tests/common.sh: a Python that has it, and the package of this
# build. With ZERO_TEST_LONG, as make check-torch sets it, they do all that they can. A folder of
# `pip install --target` in ZERO_TEST_PACKAGES comes before that Python's own packages: with another
# version of DeepSpeed, say.
[[ ${TORCH_PYTHON-} ]] || skip torch "TORCH_PYTHON names no Python that has it"
[[ -e $top_builddir/python/slurm_zero/_zero.abi3.so ]] ||
	fail "this build has no Python package: Python's headers were not found"
[[ ${scratch-} ]] || scratch
# It is in two folders if the build is not in the sources.
mkdir -p "$scratch/python/slurm_zero"
ln -s "$(cd "$top_srcdir" && pwd)"/python/slurm_zero/*.py \
	"$(cd "$top_srcdir" && pwd)/python/slurm_zero/deepspeed" \
	"$(cd "$top_builddir" && pwd)/python/slurm_zero/_zero.abi3.so" "$scratch/python/slurm_zero"
ln -s "$(cd "$top_builddir" && pwd)/python/slurm_zero.dist-info" "$scratch/python"
# What is called stock is to be torch's own.
export ZERO_FSDP=${ZERO_FSDP-keep} ZERO_DEEPSPEED=${ZERO_DEEPSPEED-keep}
PYTHONPATH=$scratch/python${ZERO_TEST_PACKAGES:+:$ZERO_TEST_PACKAGES}
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1

# run_ranks WORLD PROGRAM ARGUMENTS...: a program of this folder with so many ranks, or alone
run_ranks() {
	local launch=("$ZERORUN" -n "$1")
	[[ $1 != alone ]] || launch=()
	timeout 600 "${launch[@]}" "$TORCH_PYTHON" "$top_srcdir/python/tests/$2.py" "${@:3}" \
		>"$scratch/out" 2>&1 ||
		fail "$* at stage ${ZERO_STAGE-3}: status $?: $(<"$scratch/out")"
	echo "$* at stage ${ZERO_STAGE-3}: $(tail -1 "$scratch/out")"
}

# The same, if there is time.
long() {
	[[ ! ${ZERO_TEST_LONG-} ]] || run_ranks "$@"
}

# imports PACKAGE...: whether Python has them all
imports() {
	local IFS=,
	"$TORCH_PYTHON" -c "import $*" 2>/dev/null
}
