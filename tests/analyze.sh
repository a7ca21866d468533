#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cppcheck finds nothing in the sources, nor does clang's analyser, which takes minutes. Each
# release of both finds other things, so that only these judge. What they are wrong about is in
# tests/analyze.known, with the reason.
clang_version=14 cppcheck_version=2.10
. "${top_srcdir:?run me by make check}/tests/common.sh"

scratch
cd "$top_srcdir" || fail "no folder $top_srcdir"
folders=(lib kernels spank launcher)
include=(-I. -Ilib -Ikernels -D_GNU_SOURCE -DZERO_ISA=scalar)
cores=$(nproc 2>/dev/null || echo 2)

# check_findings FILE: fails if there is a line of the form "PATH:LINE: text [KIND]" in it that is
# not known
check_findings() {
	local path kind bad=0
	while IFS= read -r line; do
		path=${line%%:*} path=${path##*/} kind=${line##*\[} kind=${kind%\]}
		grep -qF "$path $kind " tests/analyze.known && continue
		echo "$line"
		bad=1
	done < <(sort -u "$1")
	((!bad)) || fail "put it right, or say in tests/analyze.known why it is none"
}

[[ $(cppcheck --version 2>/dev/null) == *" $cppcheck_version"* ]] ||
	skip cppcheck "there is no cppcheck $cppcheck_version"
cppcheck -j "$cores" --enable=warning,portability,performance --quiet --std=c11 \
	--suppress=unknownMacro --suppress=internalAstError \
	--template='{file}:{line}: {message} [{id}]' --template-location='' "${include[@]}" \
	"${folders[@]}" 2>"$scratch/cppcheck" || fail "cppcheck: $(tail -n 3 "$scratch/cppcheck")"
check_findings "$scratch/cppcheck"
for clang in "clang-$clang_version" clang ''; do
	[[ $clang ]] || skip clang "there is no clang $clang_version"
	[[ $("$clang" --version 2>/dev/null) == *"version $clang_version."* ]] && break
done
read -ra more <<<"${ZERO_COMPILE_FLAGS:?run me by make analyze}"
flags=(--analyze --analyzer-output text -w -std=gnu11 -DHAVE_CONFIG_H "-I$top_builddir"
	"${include[@]}" '-DZERO_LIBDIR="lib"' '-DZERO_LIBRARY="x"' '-DZERO_SITE_CONFIG="x"'
	-mavx2 -mfma -mf16c -Wno-everything -include tests/analyze.h "${more[@]}")

# What a source is told of others, but for those that have these functions: the header's guard.
model() {
	case $1 in
	lib/core/error.c | */submit.c | lib/files/input.c) echo -DZERO_ANALYZE_H ;;
	lib/files/*) echo -DANALYZE_FILES ;;
	lib/backend/*) echo -DANALYZE_MODULE ;;
	lib/*) echo -DANALYZE_LIBRARY ;;
	*) echo -DZERO_ANALYZE_H ;;
	esac
}

analyze() {
	local source=$1 out=$scratch/out${1//\//_}
	"$clang" "${flags[@]}" "$(model "$source")" "$source" >"$out" 2>&1
	# of a package that this machine has not
	! grep -q 'file not found' "$out" || rm "$out"
}
for source in $(find "${folders[@]}" -name '*.c' | sort); do
	analyze "$source" &
	while (($(jobs -rp | wc -l) >= cores)); do
		wait -n
	done
done
wait
cat "$scratch"/out* | grep -E '^[^ ]*: (warning|error): .*\]$' |
	sed -E 's/^([^:]*:[0-9]+):[0-9]+: (warning|error): /\1: /' >"$scratch/clang"
wrong=$(grep -hE 'fatal error|: error: ' "$scratch"/out* | grep -v '\]$' | head -n 5)
[[ ! $wrong ]] || fail "a source cannot be analysed: $wrong"
check_findings "$scratch/clang"
