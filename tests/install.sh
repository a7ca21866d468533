#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make install and uninstall: what goes where, that what an admin edited stays, and that nothing else
# is left behind.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need_command make
scratch
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
root=$scratch/root

variable() {
	make -s --no-print-directory -C "$top_builddir" -f - print-variable <<END
include Makefile
print-variable:
	@echo "\$($1)"
END
}

try() {
	make -s --no-print-directory -C "$top_builddir" "$1" "DESTDIR=$root" >"$scratch/out" 2>&1 ||
		fail "make $1: $(tail -5 "$scratch/out")"
}

conf=$(variable slurmconfdir) lib=$(variable libdir) man=$(variable mandir) doc=$(variable docdir)
bin=$(variable bindir) include=$(variable includedir) data=$(variable datadir)
[[ $conf == /* && $lib == /* && $man == /* ]] || fail "the Makefile's folders: $conf, $lib, $man"

try install
wanted=("$bin/zerorun" "$include/zero.h" "$lib/libzero.so" "$lib/slurm-zero/zero_host.so"
	"$lib/pkgconfig/zero.pc" "$conf/zero.yaml" "$doc/zero.yaml" "$man/man1/zerorun.1"
	"$man/man3/zero.3" "$man/man5/zero.yaml.5" "$man/man8/spank_zero.8"
	"$data/bash-completion/completions/zerorun" "$doc/job_submit.lua")
# the host module is MPI's, the plugin is Slurm's and libyaml's
have mpi || unset 'wanted[3]'
wanted+=("$lib/slurm-zero/zero_none.so")
have pmix && wanted+=("$lib/slurm-zero/zero_pmix.so")
have cuda && have nccl && wanted+=("$lib/slurm-zero/zero_cuda.so")
plugin=$lib/slurm/spank_zero.so line=$conf/plugstack.conf.d/zero.conf
if have slurm && have yaml; then
	wanted+=("$plugin" "$line")
	[[ $(<"$root$line") == "optional $plugin" ]] || fail "$line: $(<"$root$line")"
fi
for file in "${wanted[@]}"; do
	[[ -f $root$file ]] || fail "make install makes no $file: $(cd "$root" && find . ! -type d)"
done
cmp "$root$conf/zero.yaml" "$top_srcdir/etc/zero.yaml" || fail "zero.yaml is not the one of etc/"
cmp "$root$doc/zero.yaml" "$top_srcdir/etc/zero.yaml" || fail "the pristine one is not that of etc/"
[[ $(stat -c %a "$root$conf/zero.yaml") == 644 ]] || fail "zero.yaml: $(ls -l "$root$conf")"
notes=$(find "$root" -name '*.la' ! -name libzero.la)
[[ -z $notes ]] || fail "libtool's notes: $notes"
if have yaml; then
	"$root$bin/zerorun" --check-config "$root$conf/zero.yaml" >"$scratch/out" ||
		fail "the installed zero.yaml is refused"
	help=$("$root$bin/zerorun" --help)
	[[ $help == *"($conf/zero.yaml)"* ]] || fail "zerorun does not know $conf/zero.yaml"
fi

# what an admin edited stays, and is no reason to fail
echo '# edited' >>"$root$conf/zero.yaml"
echo '# old' >>"$root$doc/zero.yaml"
try install
[[ $(tail -1 "$root$conf/zero.yaml") == '# edited' ]] || fail "an edited zero.yaml was overwritten"
cmp "$root$doc/zero.yaml" "$top_srcdir/etc/zero.yaml" || fail "the pristine one was not replaced"
try uninstall
left=$(cd "$root" && find . ! -type d)
[[ $left == ".$conf/zero.yaml" ]] || fail "uninstall leaves: $left"

cp "$top_srcdir/etc/zero.yaml" "$root$conf/zero.yaml"
try uninstall
left=$(find "$root" ! -type d)
[[ -z $left ]] || fail "uninstall leaves: $left"
