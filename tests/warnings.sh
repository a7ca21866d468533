#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The sources make the compiler say nothing. Each release of a compiler warns of more, so that only
# this one judges: somebody else's newer compiler must not fail the tests.
version=12
. "${top_srcdir:?run me by make check}/tests/common.sh"

for compiler in "gcc-$version" gcc ''; do
	[[ $compiler ]] || skip gcc "there is no gcc $version"
	[[ $("$compiler" -dumpversion 2>/dev/null) == "$version"* ]] && break
done

# Some warnings come only with optimisation.
flags=(-O2 -c -o /dev/null -Werror -DHAVE_CONFIG_H "-I$top_builddir" "-I$top_srcdir/lib"
	"-I$top_srcdir/kernels" -D_GNU_SOURCE -DZERO_ISA=scalar '-DZERO_LIBDIR="lib"')
read -ra more <<<"${ZERO_COMPILE_FLAGS:?run me by make check}"

cd "$top_srcdir" || fail "no folder $top_srcdir"
result=0
while IFS= read -r -d '' source; do
	have mpi || ! grep -q '<mpi\.h>\|"mpi_comm\.h"' "$source" || continue
	have jansson || ! grep -q '<jansson\.h>\|"files/file\.h"' "$source" || continue
	"$compiler" "${flags[@]}" "${more[@]}" "$source" || result=1
done < <(find lib kernels launcher -name '*.c' -print0)
exit $result
