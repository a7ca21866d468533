#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job that is closed at any moment frees all of its memory, and reads no uninitialised memory.
. "${top_srcdir:?run me by make check}/tests/common.sh"

need_command valgrind
program=$top_builddir/tests/ranks/close.ranks
if grep -q '__asan_init\|__tsan_init' "$program"; then
	skip valgrind "it cannot run a program with a sanitizer"
fi
scratch
export ZERO_BACKEND=host
for kind in Leak Cond Value8 Addr8; do
	for library in libmpi libopen- libpmix libhwloc libevent; do
		printf '{\n%s\nMemcheck:%s\n...\nobj:*/%s*\n}\n' "$library" "$kind" "$library"
	done
done >"${scratch:?}/suppressions"

timeout -k 5 300 valgrind --quiet --error-exitcode=99 --leak-check=full \
	--errors-for-leak-kinds=definite,possible --suppressions="$scratch/suppressions" \
	--log-file="$scratch/log" "$program" >"$scratch/out" 2>&1
status=$?
((status == 0)) && exit 0
head -n 80 "$scratch/log" "$scratch/out"
fail "valgrind ended with status $status"
