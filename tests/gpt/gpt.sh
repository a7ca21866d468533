# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the tests of examples/gpt share.
# shellcheck source=tests/common.sh
. "${top_srcdir:?run me by make check}/tests/common.sh"

need cblas
: "${ZERORUN:=$top_builddir/launcher/zerorun}" "${GPT:=$top_builddir/examples/gpt}"
unset ZERO_STAGE ZERO_ISA ZERO_RESOLVED
scratch
# shellcheck disable=SC2034 # for the tests
text=$top_srcdir/LICENSE

# gpt WORLD STAGE ARGUMENT...: leaves $status, $out and $err. One rank runs without a launcher.
gpt() {
	local world=$1 stage=$2 launcher=()
	shift 2
	((world == 1)) || launcher=("$ZERORUN" -n "$world")
	ZERO_STAGE=$stage timeout -k 5 "${limit:-60}" "${launcher[@]}" "$GPT" "$@" \
		>"$scratch/out" 2>"$scratch/err" </dev/null
	status=$?
	out=$(<"$scratch/out") err=$(<"$scratch/err")
}

# trains WORLD STAGE ARGUMENT...: the same, and it must end well.
trains() {
	limit=300 gpt "$@"
	((status == 0)) || fail "gpt, ranks and stage $1 $2, ended with status $status: $out $err"
}

# worlds N...: those of the numbers of ranks that this build can start.
worlds() {
	local world
	for world; do
		if ((world == 1)) || have mpi; then
			echo "$world"
		fi
	done
}
