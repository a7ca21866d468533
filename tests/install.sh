#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make install and uninstall: what goes where, that what an admin edited stays, and that nothing
# else is left behind.
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
	make -s --no-print-directory -C "$top_builddir" "$1" "DESTDIR=$root" pythonsitedir=/site \
		>"$scratch/out" 2>&1 ||
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
package=$lib/slurm-zero/python/slurm_zero
if [[ -e $top_builddir/python/slurm_zero/_zero.abi3.so ]]; then
	built=$(sed -n 's/^Version: //p' "$top_builddir/python/slurm_zero.dist-info/METADATA")
	info=$(printf '%s\n' slurm_zero "slurm_zero-$built.dist-info")
	wanted+=("$package/__init__.py" "$package/_zero.abi3.so" /site/slurm-zero.pth
		"${package%/*}/${info#*$'\n'}/METADATA"
			"${package%/*}/${info#*$'\n'}/entry_points.txt")
fi
for file in "${wanted[@]}"; do
	[[ -f $root$file ]] || fail "make install makes no $file: $(cd "$root" && find . ! -type d)"
done
cmp "$root$conf/zero.yaml" "$top_srcdir/etc/zero.yaml" || fail "zero.yaml is not the one of etc/"
cmp "$root$doc/zero.yaml" "$top_srcdir/etc/zero.yaml" || fail "the pristine one is not that of etc/"
[[ $(stat -c %a "$root$conf/zero.yaml") == 644 ]] || fail "zero.yaml: $(ls -l "$root$conf")"
# The package finds the library of its own installation. Nothing else is beside it on PYTHONPATH.
if [[ -e $root$package ]]; then
	[[ $(ls "$root${package%/*}") == "$info" ]] ||
		fail "beside slurm_zero: $(ls "$root${package%/*}")"
	[[ $(<"$root/site/slurm-zero.pth") == "${package%/*}" ]] ||
		fail "slurm-zero.pth: $(<"$root/site/slurm-zero.pth")"
	(cd "$root$package" && python3 -c '
import _zero
print(*{line.split()[-1] for line in open("/proc/self/maps") if "/libzero.so" in line})') \
		>"$scratch/out" 2>&1
	[[ $(<"$scratch/out") == "$(realpath "$root$lib/libzero.so.2")" ]] ||
		fail "the package's library is $(<"$scratch/out")"
	# and says what does not fit: another version, and a library without what it needs
	# other MODULE FLAG...
	other() {
		echo 'const char *zero_version(void) { return "0.0.1"; }' >"$scratch/other.c"
		cc -shared -fPIC "${@:2}" "$scratch/other.c" -o "$scratch/libzero.so.2" ||
			fail "cc of another library"
		LD_PRELOAD=$scratch/libzero.so.2 PYTHONPATH="$root$package:$root${package%/*}" \
			PYTHONDONTWRITEBYTECODE=1 \
			python3 -c "import $1" >"$scratch/out" 2>&1 &&
			fail "import with another library"
	}
	other _zero
	is_of="$package/_zero[.]abi3[.]so is of slurm-zero [0-9.]+"
	grep -qE "ImportError: .*$is_of, but .* $scratch/libzero.so.2, which is 0.0.1: " \
		"$scratch/out" || fail "another library: $(<"$scratch/out")"
	echo 'ZERO_2 { zero_version; };' >"$scratch/other.map"
	other 'slurm_zero; slurm_zero.init' -Wl,-soname,libzero.so.2 \
		"-Wl,--version-script=$scratch/other.map"
	grep -qE "undefined symbol: zero_.* $scratch/libzero.so.2, which is older: " \
		"$scratch/out" ||
		fail "an older library: $(<"$scratch/out")"
fi
notes=$(find "$root" -name '*.la' ! -name libzero.la)
[[ -z $notes ]] || fail "libtool's notes: $notes"
if have yaml; then
	"$root$bin/zerorun" --check-config "$root$conf/zero.yaml" >"$scratch/out" ||
		fail "the installed zero.yaml is refused"
	help=$("$root$bin/zerorun" --help)
	[[ $help == *"($conf/zero.yaml)"* ]] || fail "zerorun does not know $conf/zero.yaml"
fi

# left: what uninstall leaves, be it an empty folder of our name
left() {
	left=$(cd "$root" && find . ! -type d -o -name 'slurm[-_]zero*')
	[[ $left == "$1" ]] || fail "uninstall leaves: $left"
}

# what an admin edited stays, and is no reason to fail; nor does what Python compiled stay
echo '# edited' >>"$root$conf/zero.yaml"
if [[ -e $root$package ]]; then
	mkdir "$root$package"/{,deepspeed/}__pycache__
	touch "$root$package"/{,deepspeed/}__pycache__/__init__.pyc
fi
echo '# old' >>"$root$doc/zero.yaml"
try install
[[ $(tail -1 "$root$conf/zero.yaml") == '# edited' ]] || fail "an edited zero.yaml was overwritten"
cmp "$root$doc/zero.yaml" "$top_srcdir/etc/zero.yaml" || fail "the pristine one was not replaced"
try uninstall
left ".$conf/zero.yaml"

cp "$top_srcdir/etc/zero.yaml" "$root$conf/zero.yaml"
try uninstall
left ""
