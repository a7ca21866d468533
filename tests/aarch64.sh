#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Built for aarch64 by a cross-compiler, without a warning. Under qemu the kernels of NEON give the
# bits of the scalar ones, the library works, and its results have the bits that they have here.
# What it is built beside are Debian's packages of arm64, unpacked in a temporary folder.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need mpi && need files
for command in aarch64-linux-gnu-gcc qemu-aarch64 apt-get dpkg-deb xz; do
	need_command "$command" aarch64
done
scratch
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
umask 022
root=$scratch/root
jobs=$(nproc)

# apt_of_arm ARGUMENT...: apt-get of an arm64 machine that has no package yet
apt_of_arm() {
	apt-get -q -y -o "Dir::State=$scratch/apt" -o "Dir::State::status=$scratch/apt/status" \
		-o "Dir::Cache=$scratch/apt/cache" -o APT::Sandbox::User=root \
		-o APT::Architecture=arm64 -o APT::Architectures=arm64 "$@" \
		>>"$scratch/apt.log" 2>&1
}

make_root() {
	local package link
	mkdir -p "$scratch/apt/lists/partial" "$scratch/apt/cache/archives/partial" "$root"
	: >"$scratch/apt/status"
	apt_of_arm update && apt_of_arm install --no-install-recommends --download-only libc6-dev \
		check libjansson-dev libopenmpi-dev libpmix-dev libslurm-dev libxxhash-dev \
		libyaml-dev ||
		skip aarch64 "no packages of arm64: $(tail -n 3 "$scratch/apt.log")"
	for package in "$scratch"/apt/cache/archives/*.deb; do
		dpkg-deb -x "$package" "$root" || fail "dpkg-deb -x $package"
	done
	rm -r "$scratch/apt"
	while IFS= read -r -d '' link; do
		ln -sfn "$root$(readlink "$link")" "$link"
	done < <(find "$root" -type l -lname '/*' -print0)
}

build() {
	export PKG_CONFIG_SYSROOT_DIR=$root
	export PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig
	dist_tarball "$scratch"
	tar -xJf "$tarball" -C "$scratch" && cd "${tarball%.tar.xz}" || fail "no tarball"
	./configure --host=aarch64-linux-gnu CC="aarch64-linux-gnu-gcc --sysroot=$root" \
		--enable-werror --with-{check,jansson,mpi,pmix,slurm,xxhash,yaml}=yes \
		>"$scratch/log" 2>&1 || fail "configure: $(tail -n 20 "$scratch/log")"
	make -j"$jobs" >"$scratch/log" 2>&1 || fail "make: $(tail -n 40 "$scratch/log")"
	! grep -wi warning "$scratch/log" || fail "the build warns"
	make -j"$jobs" check TESTS= check_LTLIBRARIES= check_PROGRAMS="${programs[*]}" \
		>"$scratch/log" 2>&1 || fail "make of the tests: $(tail -n 40 "$scratch/log")"
}

arm() {
	qemu-aarch64 -L "$root" "$@"
}

# run COMMAND...: leaves in $hashes those that it prints of its results
run() {
	mkdir "$scratch/files" || fail "no folder for files"
	ZERO_TEST_FILES=$scratch/files ZERO_BACKEND=host "$@" >"$scratch/log" 2>&1 </dev/null ||
		fail "$* ended with status $?: $(tail -n 40 "$scratch/log");" \
			"ZERO_TEST_SEED=$ZERO_TEST_SEED"
	rm -r "$scratch/files"
	hashes=$(grep -E '^(same|world) ' "$scratch/log")
}

# What is about arithmetic, bytes and files; who starts programs of his own would need qemu again.
programs=()
for name in config convert files kernels options philox; do
	programs+=("tests/unit/test_$name")
done
for name in flatten load_model property restore same_values save step views; do
	programs+=("tests/ranks/$name.ranks")
done
make_root
build

[[ $(aarch64-linux-gnu-objdump -d kernels/.libs/libneon_la-adamw.o) == *fsqrt*.4s*fdiv*.4s* ]] ||
	fail "AdamW of NEON calculates one element at a time"
arm launcher/zerorun --check-config etc/zero.yaml >/dev/null || fail "zerorun refuses zero.yaml"
export ZERO_TEST_SEED=$((RANDOM << 15 | RANDOM))
for program in "${programs[@]}"; do
	run arm "$program"
	case $program in
	*/test_kernels)
		grep -q '^sets: scalar neon$' "$scratch/log" || fail "no NEON: $(<"$scratch/log")"
		;;
	*/property.ranks | */restore.ranks | */same_values.ranks)
		there=$hashes
		run "$top_builddir/$program"
		[[ $hashes && $hashes == "$there" ]] ||
			fail "$program: ZERO_TEST_SEED=$ZERO_TEST_SEED
here    $hashes
aarch64 $there"
		;;
	esac
done
