#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's programs run as they stand there on two ranks: that of C with a falling norm, and,
# where TORCH_PYTHON names a Python with torch, that of PyTorch with a falling loss and a
# checkpoint.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need mpi
need_command cc gcc
scratch

# program LANGUAGE: the README's program in it
program() {
	sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" "$top_srcdir/README.md" | sed '1d;/^```$/,$d'
}

program c >"$scratch/quick.c"
cc -std=c11 -Wall -Wextra -Werror "-I$top_srcdir/lib" "$scratch/quick.c" -o "$scratch/quick" \
	"-L$top_builddir/lib/.libs" -lzero "-Wl,-rpath,$top_builddir/lib/.libs" ||
	fail "the README's program does not compile"
printed=$("$ZERORUN" -n 2 "$scratch/quick") || fail "the README's program ends with status $?"
norms=$(sed -n 's/.*norm //p' <<<"$printed")
[[ $(wc -l <<<"$norms") == 3 && $norms == "$(sort -gr <<<"$norms")" ]] ||
	fail "three falling norms were expected: $printed"

need_torch
. "$top_srcdir/python/tests/torch.sh"
program python >"$scratch/train.py"
printed=$(cd "$scratch" && "$ZERORUN" -n 2 "$TORCH_PYTHON" train.py) ||
	fail "the README's program for PyTorch ends with status $?"
losses=$(sed -n 's/.*loss //p' <<<"$printed")
[[ $(wc -l <<<"$losses") == 5 && $losses == "$(sort -gr <<<"$losses")" ]] ||
	fail "five falling losses were expected: $printed"
[[ -e $scratch/saved/step-000000005 ]] || fail "no checkpoint: $(ls "$scratch")"
