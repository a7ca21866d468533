# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the tests of zerorun share: it is run in a clean environment, and what it says is looked at.
# shellcheck source=tests/common.sh
. "${top_srcdir:?run me by make check}/tests/common.sh"

: "${ZERORUN:?}"
scratch
umask 022
for name in $(compgen -v ZERO_) $(compgen -v SLURM_) $(compgen -v OMPI_); do
	case $name in ZERO_HAVE | ZERO_REQUIRE) ;; *) unset "$name" ;; esac
done
unset LD_PRELOAD OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS

# run COMMAND...: leaves $status, $out and $err
run() {
	"$@" >"$scratch/out" 2>"$scratch/err" </dev/null
	status=$?
	out=$(<"$scratch/out") err=$(<"$scratch/err")
}

shown() {
	echo "status $status, out: $out, err: $err"
}

is() {
	[[ $1 == "$2" ]] || fail "line ${BASH_LINENO[0]}: '$1' is not '$2'; $(shown)"
}

has() {
	[[ $1 == *"$2"* ]] || fail "line ${BASH_LINENO[0]}: no '$2' in '$1'; $(shown)"
}

has_not() {
	[[ $1 != *"$2"* ]] || fail "line ${BASH_LINENO[0]}: '$2' in '$1'; $(shown)"
}
