#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's program compiles as it stands there and runs on two ranks with a falling norm.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need mpi
need_command cc gcc
scratch

sed -n '/^```c$/,/^```$/p' "$top_srcdir/README.md" | sed '1d;/^```$/,$d' >"$scratch/quick.c"
cc -std=c11 -Wall -Wextra -Werror "-I$top_srcdir/lib" "$scratch/quick.c" -o "$scratch/quick" \
	"-L$top_builddir/lib/.libs" -lzero "-Wl,-rpath,$top_builddir/lib/.libs" ||
	fail "the README's program does not compile"
printed=$("$ZERORUN" -n 2 "$scratch/quick") || fail "the README's program ends with status $?"
norms=$(sed -n 's/.*norm //p' <<<"$printed")
[[ $(wc -l <<<"$norms") == 3 && $norms == "$(sort -gr <<<"$norms")" ]] ||
	fail "three falling norms were expected: $printed"
