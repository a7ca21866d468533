#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check-roots [ROOTS="bookworm trixie"] [SINCE=v0.1.0]: the packages in clean roots of Debian.
# In each, bootstrap installs what it takes to build; packages of this tree and of the tag SINCE, or
# the last one, are built; the tag's are installed and used, upgraded to this tree's, used, removed
# and purged. So are RPMs, and make install. Each fails on what it leaves. Needs root and a network.
# Roots, and packages of tags, are kept in the build folder, where make clean removes them.
. "${top_srcdir:?run me by make check-roots}/tests/common.sh"
[[ $(id -u) == 0 ]] || skip root "only root makes roots"
need_command debootstrap
# What is mounted here is seen by nobody else, and is gone at the end.
[[ ${ROOTS_ALONE-} ]] ||
	ROOTS_ALONE=yes exec unshare --mount --propagation private "$BASH" "$0" "$@"
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES ROOTS_ALONE
umask 022
folder=$top_builddir/build-check-roots suite=sources
: "${ROOTS:=bookworm trixie}"

# must WHAT COMMAND...: fails with the end of what it printed, which $printed has
must() {
	printed=$("${@:2}" </dev/null 2>&1) || fail "$suite: $1: $(tail -n 25 <<<"$printed")"
}

# A tarball of this tree, and what git has of the tag
since=${SINCE:-$(git -C "$top_srcdir" describe --tags --abbrev=0 HEAD^)} ||
	fail "git knows no tag before this: give one by SINCE"
rm -rf "$folder/sources" && mkdir -p "$folder/sources" || fail "no folder $folder/sources"
dist_tarball "$folder/sources"
git -C "$top_srcdir" archive --prefix="$since/" "$since" | tar -x -C "$folder/sources" ||
	fail "git has no sources of $since"
# program SOURCES: the first program for users, which 0.1.0 has in its README
program() {
	cat "$1/examples/quick.c" 2>/dev/null ||
		sed -n '/^```c$/,/^```$/p' "$1/README.md" | sed '1d;/^```$/,$d'
}
program "$top_srcdir" >"$folder/sources/new.c"
program "$folder/sources/$since" >"$folder/sources/$since.c"

# in_root COMMANDS: by a shell in the topmost layer
in_root() {
	chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		PKG_CONFIG_PATH=/usr/lib64/pkgconfig LC_ALL=C.UTF-8 HOME=/root \
		DEBIAN_FRONTEND=noninteractive "jobs=$(nproc)" \
		OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 bash -euc "$1"
}

# layer NAME LOWER...: leaves in $root a root that writes to itself alone, on top of the others
layer() {
	local here=$folder/$suite lower
	lower=$(printf "$here/%s:" "${@:2}")
	root=$here/$1.root
	rm -rf "${here:?}/$1" "$here/$1.work" &&
		mkdir -p "$here"/{"$1","$1.work",archives} "$root" &&
		mount -t overlay overlay "$root" \
			-o "lowerdir=${lower%:},upperdir=$here/$1,workdir=$here/$1.work" &&
		mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" &&
		mount --bind "$here/archives" "$root/var/cache/apt/archives" &&
		mkdir -p "$root/src" && mount --bind "$folder" "$root/src" &&
		cp -L /etc/resolv.conf "$root/etc/" || fail "$suite: no layer $1"
}

make_base() {
	local new=$folder/$suite/base.new
	[[ ! -e ${new%.new} ]] || return 0
	must debootstrap debootstrap --variant=minbase "$suite" "$new" ${MIRROR:+"$MIRROR"}
	# nothing is started in it, and it need not survive a crash
	printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
	chmod +x "$new/usr/sbin/policy-rc.d"
	echo force-unsafe-io >"$new/etc/dpkg/dpkg.cfg.d/roots"
	mv "$new" "${new%.new}"
}

# packages NAME TARBALL: builds them where bootstrap was run, into a folder of that name
packages() {
	local part=$suite/$1.part
	must "dpkg-buildpackage of $1" in_root "mkdir -p /src/$part/rpm /tmp/$1; cd /tmp/$1
		tar -xJf $2; cd *; export DEB_BUILD_OPTIONS='nocheck parallel=$(nproc)'
		dpkg-buildpackage -b -uc -us; rm ../*-dbgsym*; cp ../*.deb /src/$part"
	must "rpmbuild of $1" in_root "export RPM_BUILD_NCPUS=$(nproc)
		rpmbuild -tb --nocheck --nodeps --define 'debug_package %{nil}' $2
		cp /root/rpmbuild/RPMS/*/*.rpm /src/$part/rpm"
	rm -rf "${root:?}/tmp/$1" "$root/root/rpmbuild" "$folder/${part%.part}"
	mv "$folder/$part" "$folder/${part%.part}"
}

build() {
	layer build base
	must "bootstrap" in_root "cd /tmp; tar -xJf /src/sources/*.tar.xz; cd slurm-zero-*
		./bootstrap --no-configure"
	packages new '/src/sources/*.tar.xz'
	[[ ! -e $folder/$suite/$since ]] || return 0
	must "the tarball of $since" in_root "cp -r /src/sources/$since /tmp/tag; cd /tmp/tag
		./bootstrap --no-install --with-slurm=no --with-mpi=no; make dist"
	packages "$since" '/tmp/tag/*.tar.xz'
}

# What the packages need, a compiler, and a Slurm that need not run
prepare() {
	layer ready base
	must "what the packages need" in_root "apt-get update -q
		needs=\$(for deb in /src/$suite/{new,$since}/*.deb; do
			dpkg-deb -f \$deb Depends Pre-Depends | sed 's/^[^:]*Depends: //'
			done | tr , '\n' | grep -v libzero | paste -sd,)
		apt-get satisfy -qy --no-install-recommends \"\$needs\" \
			'gcc, libc6-dev, pkg-config, rpm, openmpi-bin, slurm-client'"
	mkdir -p "$root/etc/slurm/plugstack.conf.d"
	echo 'include /etc/slurm/plugstack.conf.d/*.conf' >"$root/etc/slurm/plugstack.conf"
	printf '%s\n' ClusterName=roots SlurmctldHost=localhost NodeName=localhost \
		"PartitionName=all Nodes=ALL" >"$root/etc/slurm/slurm.conf"
}

# files: what is in the root, but for what package managers and programs keep for themselves
files() {
	local own='src|dev|proc|run|tmp|root|var/(cache|log|lib/(apt|dpkg|rpm))|usr/lib/\.build-id'
	(cd "$root" && find . -xdev -regextype egrep -regex "\./($own)" -prune -o -print) |
		LC_ALL=C sort
}

# left WHAT [FILE]...: these, and nothing else, are there and were not before
left() {
	local now
	now=$(comm -13 "$folder/before" <(files) | paste -s -d' ')
	[[ $now == "${*:2}" ]] || fail "$suite: $1 leaves '$now', not '${*:2}'"
}

# use NAME: zerorun and the first program run, and srun has the flags
use() {
	local version
	version=$(basename "$folder/$suite/$1"/slurm-zero_*.deb) && version=${version#*_}
	must "the program of $1" in_root "cd /tmp
		cc /src/sources/$1.c \$(pkg-config --cflags --libs zero) -o $1
		zerorun --version | grep ' ${version%%_*}$'
		zerorun --check-config /etc/slurm/zero.yaml; zerorun -n 2 ./$1"
	[[ $(grep -c 'gradient norm' <<<"$printed") == 3 ]] || fail "$suite: $1 ran: $printed"
	must "srun --help with $1" in_root 'srun --help'
	[[ $printed == *--zero-stage=* && $printed != *error:* ]] ||
		fail "$suite: srun --help with $1: $printed"
	# as root, whose Python writes beside what it imports; it ends for want of torch
	in_root 'python3 -c "import slurm_zero, slurm_zero.deepspeed"' >/dev/null 2>&1
}

# edit: what an admin does: the README's link, and a line in the site's file
edit() {
	must "the link" in_root 'echo "# edited" >>/etc/slurm/zero.yaml
		ln -s /usr/share/slurm-zero/zero.conf /etc/slurm/plugstack.conf.d/'
}

# kept: that is there after the upgrade, and a program of before runs, or says what it lacks
kept() {
	[[ $(tail -n 1 "$root/etc/slurm/zero.yaml") == '# edited' ]] ||
		fail "$suite: the upgrade has changed zero.yaml"
	[[ -L $root/etc/slurm/plugstack.conf.d/zero.conf ]] || fail "$suite: the link is gone"
	printed=$(in_root "/tmp/$since" 2>&1) || [[ $printed == *": libzero.so."[0-9]:* ]] ||
		fail "$suite: a program of $since ends with: $printed"
}

debs() {
	layer debs ready base
	files >"$folder/before"
	must "apt-get install" in_root "apt-get install -qy /src/$suite/$since/*.deb"
	edit
	use "$since"
	must "the upgrade" in_root \
		"apt-get install -qy -o Dpkg::Options::=--force-confold /src/$suite/new/*.deb"
	kept
	use new
	must "apt-get remove" in_root "cd /src/$suite/new
		apt-get remove -qy \$(for deb in *.deb; do echo \${deb%%_*}; done)"
	left "apt-get remove" ./etc/slurm/zero.yaml{,.dpkg-dist}
	must "apt-get purge" in_root "apt-get purge -qy '?config-files'"
	left "apt-get purge"
}

rpms() {
	layer rpms ready base
	# Debian looks for nothing there; the folders are those of packages that Debian has not
	echo /usr/lib64 >"$root/etc/ld.so.conf.d/rpms.conf"
	mkdir -p "$root"/usr/{lib64/{pkgconfig,slurm},share/licenses}
	files >"$folder/before"
	must "rpm -i" in_root "rpm -i --nodeps /src/$suite/$since/rpm/*.rpm; ldconfig"
	edit
	use "$since"
	must "rpm -U" in_root "rpm -U --nodeps /src/$suite/new/rpm/*.rpm; ldconfig"
	kept
	use new
	printed=$(in_root 'rpm -Va --nodeps' 2>&1)
	[[ $printed == S*'  c /etc/slurm/zero.yaml' && $printed != *$'\n'* ]] ||
		fail "$suite: rpm -V: $printed"
	must "rpm -e" in_root 'rpm -e --nodeps $(rpm -qa)'
	left "rpm -e" ./etc/slurm/zero.yaml.rpm{new,save}
}

# make install of the tarball, where bootstrap was run
from_source() {
	layer source build base
	must "make" in_root 'cd /tmp/slurm-zero-*; ./configure CFLAGS=-O0; make -j$jobs'
	# make uninstall leaves the folders that are not ours alone
	mkdir -p "$root"/usr/local/{lib/{pkgconfig,slurm},share/{doc,bash-completion/completions}} \
		"$root"/usr/local/share/man/man{1,3,5,8}
	files >"$folder/before"
	must "make install" in_root 'make -C /tmp/slurm-zero-* install; ldconfig
		cd /tmp; cc /src/sources/new.c $(pkg-config --cflags --libs zero) -o new
		zerorun -n 2 ./new; python3 -c "import slurm_zero" 2>/dev/null || true
		make -C /tmp/slurm-zero-* uninstall; ldconfig'
	left "make uninstall"
}

for suite in $ROOTS; do
	mkdir -p "$folder/$suite"
	make_base && build && prepare && debs && rpms && from_source
	echo "PASS: $suite"
done
