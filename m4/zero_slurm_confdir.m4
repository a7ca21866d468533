dnl SPDX-License-Identifier: Apache-2.0
dnl The folder of plugstack.conf. A distribution's Slurm reads /etc/slurm, also where this package is
dnl in /usr/local; one with a prefix of its own keeps its configuration there.
dnl Sets slurmconfdir for make, and zero_slurmconfdir, the same in full, for the summary.
AC_DEFUN([ZERO_SLURM_CONFDIR], [
AC_ARG_WITH([slurm-confdir],
	[AS_HELP_STRING([--with-slurm-confdir=DIR],
		[folder of Slurm's plugstack.conf, where zero.yaml goes too
		 @<:@/etc/slurm; with a --prefix of your own SYSCONFDIR/slurm@:>@])],
	[], [with_slurm_confdir=auto])
AS_CASE([$with_slurm_confdir],
	[auto], [AS_CASE([$sysconfdir:$prefix],
		['${prefix}/etc:NONE'|'${prefix}/etc:/usr'|'${prefix}/etc:/usr/local'],
			[slurmconfdir=/etc/slurm],
		[slurmconfdir='${sysconfdir}/slurm'])],
	[/*], [slurmconfdir=$with_slurm_confdir],
	[AC_MSG_ERROR([--with-slurm-confdir=$with_slurm_confdir: say the absolute path of a folder.])])
AC_SUBST([slurmconfdir])
zero_slurmconfdir=$slurmconfdir
zero_saved_prefix=$prefix
AS_IF([test "$prefix" = NONE], [prefix=$ac_default_prefix])
# sysconfdir refers to prefix in turn
eval "zero_slurmconfdir=$zero_slurmconfdir"
eval "zero_slurmconfdir=$zero_slurmconfdir"
prefix=$zero_saved_prefix
])
