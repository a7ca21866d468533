#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libzero.so is preloaded into every task: it exports what zero.h declares and nothing else, and
# depends on the C library alone. A module exports its one function, the plugin what Slurm looks
# for.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need_command nm
need_command readelf

cd "$top_builddir/lib/.libs" || fail "no folder lib/.libs"

exported() {
	nm -D --defined-only "$1" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | sort
}

declared=$(sed -n '/^typedef/d; s/^[a-z].*\(zero_[a-z0-9_]*\)(.*/\1/p' "$top_srcdir/lib/zero.h" |
	sort)
differ=$(diff <(echo "$declared") <(exported libzero.so)) ||
	fail "zero.h (<) and the exports of libzero.so (>) differ:
$differ"

# The loader is part of the C library, and sanitizers are no part of what is installed.
needed=$(readelf -d libzero.so | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
	grep -v -e '^ld-linux' -e '^lib\(c\|dl\|pthread\)\.' -e '^lib[a-z]*san\.' | tr '\n' ' ')
[[ -z $needed ]] || fail "libzero.so needs more than the C library: $needed"

# It is linked without a look at what is missing, such as functions of the mathematical library.
strange=$(nm -D --undefined-only libzero.so | awk '$1 == "U" && $2 !~ /@/ { print $2 }')
[[ -z $strange ]] || fail "the C library has not what libzero.so needs: $strange"

for module in zero_*.so; do
	name=${module#zero_}
	[[ $(exported "$module") == "zero_module_${name%.so}" ]] ||
		fail "$module exports: $(exported "$module" | tr '\n' ' ')"
done

# What configure chose against wrong writes is in what is installed.
if grep -q '^ZERO_LDFLAGS = .*-z,now' "$top_builddir/Makefile"; then
	for binary in *.so ../../spank/.libs/spank_zero.so; do
		[[ -f $binary ]] || continue
		[[ $(readelf -dW "$binary") == *NOW* ]] || fail "$binary is bound late"
		[[ $(readelf -lW "$binary") == *GNU_RELRO* ]] || fail "$binary stays writable"
		readelf -lW "$binary" | grep -q 'GNU_STACK.*E' &&
			fail "$binary has code on its stack"
	done
fi
if grep -q '^ZERO_CFLAGS = .*-fstack-protector-strong' "$top_builddir/Makefile"; then
	[[ $(nm -D --undefined-only libzero.so) == *__stack_chk_fail* ]] ||
		fail "libzero.so has no canaries"
fi

have slurm && have yaml || exit 0
plugin=$top_builddir/spank/.libs/spank_zero.so
strange=$(exported "$plugin" |
	grep -vE '^(plugin_(name|type|version)|spank_plugin_version|slurm_spank_[a-z_]+)$')
[[ -z $strange ]] || fail "spank_zero.so exports: $strange"
[[ $(exported "$plugin" | grep -c '^slurm_spank_') == 7 ]] ||
	fail "spank_zero.so has not seven callbacks"
# It is bound when it is loaded: what is missing would keep it away from every command.
strange=$(nm -D --undefined-only "$plugin" | awk '$1 == "U" && $2 !~ /@/ { print $2 }' |
	grep -vE '^(slurm|spank|yaml)_')
[[ -z $strange ]] || fail "nobody has what spank_zero.so needs: $strange"
