dnl SPDX-License-Identifier: Apache-2.0
dnl Slurm's headers make the plugin. It links no library: its symbols are found in the host program.
AC_DEFUN([ZERO_PKG_SLURM], [
ZERO_PKG_WITH([slurm], [Slurm plugin])
AC_MSG_CHECKING([for slurm])
zero_cflags=
zero_header=slurm/spank.h
AS_CASE([$with_slurm],
	[no], [zero_header=],
	[/*], [ZERO_PKG_FOLDER([$with_slurm], [slurm/spank.h])])
AS_IF([test -n "$zero_header"],
	[ZERO_PKG_LINK([SLURM], [$zero_cflags], [],
		[[#include <slurm/spank.h>
		  SPANK_PLUGIN(probe, 1);]],
		[[return spank_remote == 0;]])])
AC_MSG_RESULT([$zero_found])
AS_IF([test $zero_found = yes],
	[zero_saved_CPPFLAGS=$CPPFLAGS
	 CPPFLAGS="$CPPFLAGS $zero_cflags"
	 AC_COMPUTE_INT([zero_n], [SLURM_VERSION_NUMBER], [[#include <slurm/slurm.h>]], [zero_n=0])
	 CPPFLAGS=$zero_saved_CPPFLAGS
	 AS_IF([test $zero_n != 0],
		[zero_version=$(printf %d.%02d.%d $((zero_n >> 16)) $((zero_n >> 8 & 255)) $((zero_n & 255)))])])
ZERO_PKG_RESULT([slurm], [SLURM], [Slurm plugin], [libslurm-dev or slurm-devel])
])
