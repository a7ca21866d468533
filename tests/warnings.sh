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
flags=(-O2 -Werror -DHAVE_CONFIG_H "-I$top_builddir" "-I$top_srcdir"
	"-I$top_srcdir/lib" "-I$top_srcdir/kernels" -D_GNU_SOURCE -DZERO_ISA=scalar
	'-DZERO_LIBDIR="lib"' '-DZERO_LIBRARY="lib/libzero.so"' '-DZERO_SITE_CONFIG="zero.yaml"')
read -ra more <<<"${ZERO_COMPILE_FLAGS:?run me by make check}"
flags+=("${more[@]}")

# can_be_compiled SOURCE: configure found the packages whose headers it includes, be it by another
# one. With -MG a header that is not there is listed too.
can_be_compiled() {
	local name header headers
	headers=$("$compiler" "${flags[@]}" -M -MG "$1") || return 0 # the compiler will say why
	headers=" ${headers//[\\$'\n']/ } "
	while read -r name header; do
		have "$name" || [[ $headers != *[\ /]"$header "* ]] || return 1
	done <<-END
		mpi mpi.h
		pmix pmix_common.h
		jansson jansson.h
		slurm slurm/spank.h
		yaml yaml.h
	END
}

warns() {
	! can_be_compiled "$1" || "$compiler" "${flags[@]}" -c -o /dev/null "$1" ||
		: >"$scratch/bad"
}

scratch
cd "$top_srcdir" || fail "no folder $top_srcdir"
cores=$(nproc 2>/dev/null || echo 2)
while IFS= read -r -d '' source; do
	while (($(jobs -rp | wc -l) >= cores)); do
		wait -n
	done
	warns "$source" &
done < <(find lib kernels launcher spank -name '*.c' -print0)
wait
[[ ! -e $scratch/bad ]] || fail "the compiler warns"
