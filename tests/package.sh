#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The packages, made from the tarball: Debian's, held against lintian, and RPMs. Both have each file
# once and where it belongs, need what they should, and work where they are unpacked.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need_command make
need_command readelf
need mpi && need pmix && need yaml && need slurm && need jansson && need xxhash
scratch
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
umask 022
dist_tarball "$scratch"
version=${tarball##*/slurm-zero-} version=${version%.tar.xz}
jobs=$(nproc)

# needed FILE: the libraries that it names, but for the C library's
needed() {
	readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
		grep -vE '^(ld-linux|lib[cm]\.)' |
		sort | paste -s -d' '
}

# links FILE PATTERN: it names such libraries, and no folder to find them in
links() {
	[[ $(needed "$1") =~ ^$2$ ]] || fail "${1##*/} needs $(needed "$1")"
	[[ $(readelf -d "$1") != *R*PATH* ]] || [[ $format == rpm ]] ||
		fail "${1##*/} has a run path"
}

# check_packages FORMAT DEVELOPMENT LAUNCHER PLUGIN LIBRARY PYTHON: looks into the unpacked folders
check_packages() {
	local format=$1 development=$2 launcher=$3 plugin=$4 library=$5 python=$6 twice lib module \
		all=$scratch/$1/all file
	twice=$(for file in "${@:2}"; do (cd "$file" && find . ! -type d); done | sort | uniq -d)
	[[ -z $twice ]] || fail "in several packages: $twice"
	mkdir "$all"
	for file in "${@:2}"; do
		cp -a "$file/." "$all/"
	done

	lib=$(compgen -G "$library/usr/lib*/libzero.so.2" ||
		compgen -G "$library/usr/lib/*/libzero.so.2")
	lib=${lib%/*} lib=${lib#"$library"}
	[[ $lib ]] || fail "no libzero.so.2: $(find "$library")"
	[[ $(readelf -d "$library$lib/libzero.so.2") == *'[libzero.so.2]'* ]] ||
		fail "the soname of libzero"
	links "$library$lib/libzero.so.2" ''
	links "$library$lib/slurm-zero/zero_host.so" 'libmpi\.so\.[0-9]+'
	links "$library$lib/slurm-zero/zero_none.so" ''
	links "$library$lib/slurm-zero/zero_pmix.so" 'libpmix\.so\.[0-9]+'
	links "$library$lib/slurm-zero/zero_files.so" '(lib(jansson|xxhash)\.so\.[0-9]+ ?)+'
	file=$library$lib/slurm-zero/zero_cuda.so
	[[ ! -e $file ]] || links "$file" ''
	links "$plugin$lib/slurm/spank_zero.so" 'libyaml-0\.so\.2'
	# the package for PyTorch is where the plugin looks for it
	file=$lib/slurm-zero/python
	links "$python$file/slurm_zero/_zero.abi3.so" 'libzero\.so\.2'
	for module in "$top_srcdir"/python/slurm_zero/*.py; do
		cmp "$python$file/slurm_zero/${module##*/}" "$module" ||
			fail "no ${module##*/} in $format"
	done
	[[ $(cat "$python"/usr/lib*/python3*/*-packages/slurm-zero.pth) == "$file" ]] ||
		fail "slurm-zero.pth: $(find "$python" -name '*.pth')"

	[[ $(<"$plugin/usr/share/slurm-zero/zero.conf") == "optional $lib/slurm/spank_zero.so" ]] ||
		fail "zero.conf: $(<"$plugin/usr/share/slurm-zero/zero.conf")"
	[[ ! -e $all/etc/slurm/plugstack.conf.d ]] || fail "the package would turn the plugin on"
	cmp "$plugin/etc/slurm/zero.yaml" "$top_srcdir/etc/zero.yaml" || fail "another zero.yaml"
	grep -qF "$lib/libzero.so.2" "$plugin$lib/slurm/spank_zero.so" ||
		fail "the plugin would preload another library than $lib/libzero.so.2"

	file=$development$lib/pkgconfig/zero.pc
	[[ $(sed -E 's|[$][{](exec_)?prefix[}]|/usr|' "$file") == \
		*$'\n'"libdir=$lib"$'\n''includedir=/usr/include'$'\n'* ]] ||
		fail "zero.pc: $(<"$file")"
	for file in man1/zerorun.1 man3/zero.3 man{5/zero.yaml,5/zero_checkpoint}.5 \
			man8/spank_zero.8; do
		[[ $(compgen -G "$all/usr/share/man/$file*") ]] || fail "no man page $file"
	done

	[[ $("$launcher/usr/bin/zerorun" --version) == *" $version" ]] || fail "zerorun --version"
	"$launcher/usr/bin/zerorun" --check-config "$plugin/etc/slurm/zero.yaml" >/dev/null ||
		fail "zerorun refuses the package's zero.yaml"
	runs "$all" "$lib"
}

# runs ROOT LIB: a program compiled against the unpacked packages runs with their library
runs() {
	cat >"$scratch/open.c" <<-'END'
		#include <zero.h>
		#include <stdio.h>
		int main(void)
		{
			zero_options options = {.settings = "backend=host"};
			zero_job *job;
			if (zero_open(&options, &job))
				return fprintf(stderr, "%s\n", zero_last_error()), 1;
			printf("%d ranks\n", zero_world(job));
			return zero_close(job);
		}
	END
	cc "-I$1/usr/include" "$scratch/open.c" "-L$1$2" -lzero "-Wl,-rpath,$1$2" \
		-o "$scratch/open" ||
		fail "cc with the packages"
	[[ $(ldd "$scratch/open") == *"$1$2/libzero.so.2"* ]] || fail "it takes another library"
	[[ $("$scratch/open") == '1 ranks' ]] || fail "a program does not run with the packages"
}

deb() {
	local package folders=()
	mkdir -p "$scratch/deb/unpacked"
	cd "$scratch/deb" || fail "no folder"
	tar -xJf "$tarball" || fail "no tarball"
	(cd "slurm-zero-$version" && DEB_BUILD_OPTIONS="nocheck parallel=$jobs" \
		dpkg-buildpackage -b -uc -us) >build.log 2>&1 ||
		fail "dpkg-buildpackage: $(tail -20 build.log)"
	# in the order of check_packages
	for package in libzero-dev slurm-zero slurm-zero-plugin libzero2 python3-slurm-zero; do
		dpkg-deb -x "${package}_${version}_"*.deb "unpacked/$package" || fail "no $package"
		folders+=("$scratch/deb/unpacked/$package")
	done
	# as root, of its own account, lintian asks whether that is meant
	lintian --allow-root --fail-on error,warning "slurm-zero_${version}_"*.changes ||
		fail "lintian has something to say"
	check_packages deb "${folders[@]}"
	dpkg-deb --ctrl-tarfile "slurm-zero-plugin_${version}_"*.deb | tar -xO ./conffiles |
		grep -qx /etc/slurm/zero.yaml || fail "zero.yaml is no conffile"
	dpkg-deb -f "libzero2_${version}_"*.deb Depends | grep -qvE 'cuda|nccl|nvidia' ||
		fail "libzero2 depends on a driver"
}

# Elsewhere than on its own distribution rpmbuild knows none of the packages that it would need.
rpms() {
	local package file folders=() options=(--define "_topdir $scratch/rpm/top"
		--define "_tmppath $scratch/rpm/tmp" --dbpath "$scratch/rpm/db")
	mkdir -p "$scratch/rpm/unpacked" "$scratch/rpm/tmp"
	cd "$scratch/rpm" || fail "no folder"
	[[ -e /etc/redhat-release || -e /etc/fedora-release ]] ||
		options+=(--nodeps --define 'debug_package %{nil}')
	RPM_BUILD_NCPUS=$jobs rpmbuild -tb --nocheck "${options[@]}" "$tarball" >build.log 2>&1 ||
		fail "rpmbuild: $(tail -20 build.log)"
	for package in libzero-devel slurm-zero slurm-zero-plugin libzero python3-slurm-zero; do
		file=$(find top/RPMS -name "$package-$version-*.rpm")
		mkdir "unpacked/$package"
		rpm2cpio "$file" | (cd "unpacked/$package" && cpio -id --quiet) ||
			fail "no $package"
		folders+=("$scratch/rpm/unpacked/$package")
	done
	check_packages rpm "${folders[@]}"
	file=$(compgen -G "top/RPMS/*/slurm-zero-plugin-$version-*.rpm")
	[[ $(rpm --dbpath "$scratch/rpm/db" -qp --configfiles "$file") == /etc/slurm/zero.yaml ]] ||
		fail "zero.yaml is no %config"
}

made=0
# commands NAME COMMAND...: whether the commands are there; if not and NAME is required, a failure
commands() {
	local name=$1 command
	for command in "${@:2}"; do
		command -v "$command" >/dev/null && continue
		[[ ",${ZERO_REQUIRE// /,}," != *",$name,"* ]] ||
			skip "$name" "there is no command $command"
		echo "no packages of the kind '$name': there is no command $command"
		return 1
	done
	made=$((made + 1))
}

if commands debian dpkg-buildpackage dh lintian; then
	deb
fi
if commands rpm rpmbuild rpm2cpio cpio; then
	rpms
fi
((made)) || skip debian "the tools of neither kind of package are there"
