# SPDX-License-Identifier: Apache-2.0
# Packages are made from the tarball: dpkg-buildpackage in it, or rpmbuild -ta of it.
EXTRA_DIST += \
	debian/changelog \
	debian/control \
	debian/copyright \
	debian/libzero-dev.install \
	debian/libzero2.install \
	debian/libzero2.symbols \
	debian/not-installed \
	debian/python3-slurm-zero.install \
	debian/python3-slurm-zero.prerm \
	debian/rules \
	debian/slurm-zero-plugin.README.Debian \
	debian/slurm-zero-plugin.install \
	debian/slurm-zero-plugin.prerm \
	debian/slurm-zero.install \
	debian/source/format \
	debian/tests/control \
	debian/tests/smoke \
	doc/release.md \
	packaging/slurm-zero.spec \
	packaging/slurm-zero.spec.in

# The same sources make the same tarball, byte for byte, whoever packs it, where and when: files
# are in order, belong to nobody, and are as old as the release (or as SOURCE_DATE_EPOCH says).
am__tar = tar --format=ustar --sort=name --owner=0 --group=0 --numeric-owner \
	--mode=u+rw,go+r-w,a+X \
	--mtime="$${SOURCE_DATE_EPOCH:+@}$${SOURCE_DATE_EPOCH:-$(RELEASE_DATE)}" -chf - "$$tardir"
RELEASE_DATE = `sed -n 's/^ -- .*>  //p' $(top_srcdir)/debian/changelog | sed 1q`
