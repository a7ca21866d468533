# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the test scripts share; they begin with
# . "${top_srcdir:?run me by make check}/tests/common.sh"
#
# The environment has top_srcdir, top_builddir, ZERORUN (the launcher), ZERO_HAVE (what configure
# found, such as " mpi jansson") and ZERO_REQUIRE (what must not be skipped, such as "mpi,slurm").

# A shell cannot trap a signal that was ignored when it began, as SIGHUP is under nohup, and ranks
# would inherit that.
[[ $(trap -p) != *"''"* ]] || exec env --default-signal "$BASH" "$0" "$@"

set -u
: "${top_srcdir:?}" "${top_builddir:?}" "${ZERO_HAVE=}" "${ZERO_REQUIRE:=}"
# PMIx would wait two seconds at each start for a munge that has left its socket and does not run.
export PMIX_MCA_psec=${PMIX_MCA_psec-^munge}
# A line of Python would be several writes, and those of two ranks would mix.
unset PYTHONUNBUFFERED

fail() {
	echo "FAIL: $*" >&2
	exit 1
}

# The shell would go on after a command that is not there, such as a function of another name.
command_not_found_handle() {
	echo "FAIL: ${BASH_SOURCE[1]-}:${BASH_LINENO[0]}: there is no command $1" >&2
	kill "$$"
}
trap 'exit 1' TERM

have() {
	[[ " $ZERO_HAVE " == *" $1 "* ]]
}

# skip NAME WHY: ends the test as skipped for want of NAME, or as failed if NAME is required.
skip() {
	if [[ ",${ZERO_REQUIRE// /,}," == *",$1,"* ]]; then
		fail "$1 is required by ZERO_REQUIRE=$ZERO_REQUIRE: $2"
	fi
	echo "SKIP: $1: $2"
	exit 77
}

# need NAME...: skips unless configure found each of them.
need() {
	local name
	for name; do
		have "$name" || skip "$name" "this build has it not"
	done
}

# need_command COMMAND [NAME]: skips for want of NAME unless the command is there.
need_command() {
	command -v "$1" >/dev/null || skip "${2:-$1}" "there is no command $1"
}

# Tests change their folder.
[[ ${TORCH_PYTHON-} != [!/]*/* ]] || TORCH_PYTHON=$PWD/$TORCH_PYTHON

# need_torch: ends the test unless TORCH_PYTHON names a Python with torch. What came before has
# passed.
need_torch() {
	[[ ! ${TORCH_PYTHON-} ]] || return 0
	[[ ",${ZERO_REQUIRE// /,}," != *,torch,* ]] ||
		skip torch "TORCH_PYTHON names no Python that has it"
	exit 0
}

# scratch: makes the folder $scratch, which is gone when the test ends.
scratch() {
	scratch=$(mktemp -d "${TMPDIR:-/tmp}/zero-test.XXXXXX") || fail "no temporary folder"
	trap 'rm -rf "$scratch"' EXIT
}

# need_python PACKAGE...: leaves in $python a Python that has the packages. They come from the
# package index, once for each build folder; without a network the test is skipped for want of
# "interop".
need_python() {
	local venv=$top_builddir/tests/venv IFS=, said lock
	need_command python3 interop
	mkdir -p "$top_builddir/tests" # as a lock too: tests may run at the same time
	python=$venv/bin/python
	exec {lock}<"$top_builddir/tests" && flock "$lock"
	if ! "$python" -c "import $*" 2>/dev/null; then
		said=$({
			python3 -m venv "$venv" &&
				timeout 300 "$python" -m pip install -q --retries 1 "$@"
		} 2>&1) ||
			skip interop "python3 -m venv, pip install ${*}: ${said##*$'\n'}"
	fi
	exec {lock}<&-
}

# has_gpu_doubles: whether the CUDA backend was built, and with it what stands in for a GPU.
has_gpu_doubles() {
	if ! { have cuda && have nccl && have pmix; }; then
		[[ ",${ZERO_REQUIRE// /,}," != *",cuda-build,"* ]] ||
			fail "cuda-build is required by ZERO_REQUIRE: cuda, nccl or pmix is missing"
		return 1
	fi
}

# gpu_doubles FOLDER: makes it, with the doubles by the names that they are looked for.
gpu_doubles() {
	mkdir -p "$1" || fail "no folder for the doubles"
	ln -sf "$top_builddir/tests/double/.libs/cuda.so" "$1/libcuda.so.1"
	ln -sf "$top_builddir/tests/double/.libs/nccl.so" "$1/libnccl.so.2"
	ln -sf "$top_builddir/tests/double/.libs/cublas.so" "$1/libcublas.so.13"
}

# dist_tarball FOLDER: leaves in $tarball the path of what make dist makes, moved there. One at a
# time: tests may run at the same time.
dist_tarball() {
	local lock
	exec {lock}<"$top_builddir" && flock "$lock"
	make -s --no-print-directory -C "$top_builddir" dist >"$1/dist.log" 2>&1 ||
		fail "make dist: $(tail -5 "$1/dist.log")"
	tarball=$(compgen -G "$top_builddir/slurm-zero-*.tar.xz") ||
		fail "make dist makes no tarball"
	[[ $tarball != *$'\n'* ]] || fail "several tarballs: $tarball"
	mv "$tarball" "$1/" && tarball=$1/${tarball##*/}
	exec {lock}<&-
}

# readme_commands HEADING: prints the README's shell commands of that section ("": those before the
# first), without comments, one on each line
readme_commands() {
	awk -v heading="$1" '
		BEGIN {inside = heading == ""}
		/^## / {inside = $0 == "## " heading}
		/^```/ {shell = $0 == "```sh"; next}
		inside && shell {
			sub(/ +# .*/, "")
			sub(/^\t/, " ")
			printf "%s%s", $0, /\|\|$/ ? "" : "\n"
		}' "$top_srcdir/README.md"
}
