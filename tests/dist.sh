#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make dist: the same bytes from another folder, by another configuration and another user's habits;
# and every file that git has is in it.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need_command make
need_command xz
scratch
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES SOURCE_DATE_EPOCH XZ_OPT TAR_OPTIONS
umask 022

dist_tarball "$scratch"
sum=$(sha256sum <"$tarball")
name=$(basename "$tarball" .tar.xz)

# what was packed packs itself again
mkdir "$scratch/else where"
(
	umask 077
	export TZ=Pacific/Auckland LC_ALL=C.UTF-8 TAR_OPTIONS=
	cd "$scratch/else where" && tar -xJf "$tarball" && cd "$name" &&
		./configure --with-{mpi,pmix,yaml,slurm,cuda,nccl,jansson,xxhash,cblas,check}=no \
			CFLAGS=-O0 && make dist
) >"$scratch/out" 2>&1 || fail "make dist of $name.tar.xz: $(tail -20 "$scratch/out")"
again="$scratch/else where/$name/$name.tar.xz"
if [[ $(sha256sum <"$again") != "$sum" ]]; then
	mkdir "$scratch/1" "$scratch/2"
	tar -xJf "$tarball" -C "$scratch/1" && tar -xJf "$again" -C "$scratch/2"
	diff -r "$scratch/1" "$scratch/2" | head -20
	diff <(tar -tvJf "$tarball") <(tar -tvJf "$again") | head -20
	fail "make dist packs other bytes elsewhere"
fi

# and says when a release is from, unless it is told
date=$(sed -n 's/^ -- .*>  //p' "$top_srcdir/debian/changelog" | sed 1q)
[[ $(tar -tvJf "$tarball" --utc --full-time | awk '{ print $4, $5 }' | sort -u) == \
	"$(date -u -d "$date" '+%F %T')" ]] || fail "files of $name.tar.xz are not from $date"

# the version is what debian/changelog says, and a release has news
version=${name#slurm-zero-}
grep -q "^slurm-zero ($version) " <(head -1 "$top_srcdir/debian/changelog") ||
	fail "debian/changelog does not begin with $version"
macros=$(sed -n 's/^#define ZERO_VERSION_M[AJINOR]* //p' "$top_srcdir/lib/zero.h" | paste -s -d.)
[[ $version == "$macros".* ]] || fail "zero.h says that it is $macros"
grep -q "^## $version, " "$top_srcdir/NEWS.md" || fail "NEWS.md has no section $version"
tar -xJOf "$tarball" "$name/packaging/slurm-zero.spec" | grep -qE "^Version: +$version$" ||
	fail "the tarball's slurm-zero.spec is not of $version"

# Paths in git have no top folder; files for git alone are not in the tarball.
[[ $(git -C "$top_srcdir" rev-parse --show-prefix 2>/dev/null && echo git) == $'\ngit' ]] || exit 0
missing=$(comm -23 <(git -C "$top_srcdir" ls-files | grep -vxF .gitignore | LC_ALL=C sort) \
	<(tar -tJf "$tarball" | sed -n "s|^$name/||p" | LC_ALL=C sort))
[[ -z $missing ]] || fail "make dist leaves these out: $missing"
