#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release.sh PREFIX COMMAND...: runs a command where the Slurm that is installed in PREFIX is this
# machine's. In a mount namespace of its own its programs take the places of their namesakes, since
# jobs that keep no environment look for them there, and munge has a folder of its own.
if [[ -z ${1-} || ! -x $1/sbin/slurmctld ]]; then
	echo "SLURM_PREFIX='${1-}': there is no sbin/slurmctld in it;" \
		"give the folder that a release of" \
		"Slurm was installed in, as in: make check-slurm SLURM_PREFIX=/opt/slurm-23.11" >&2
	exit 2
fi
if [[ -z ${RELEASE_ALONE-} ]]; then
	RELEASE_ALONE=yes exec unshare --mount --propagation private bash "$0" "$@"
fi
unset RELEASE_ALONE
prefix=$1
shift
mount -t tmpfs -o mode=755 tmpfs /run || exit
mkdir /run/munge && chown munge: /run/munge || exit
for program in "$prefix"/bin/* "$prefix"/sbin/*; do
	place=$(type -P "${program##*/}") && { mount --bind "$program" "$place" || exit; }
done
PATH=$prefix/bin:$prefix/sbin:$PATH "$@"
status=$?
[[ ! -s /run/munge/munged.pid ]] || kill "$(</run/munge/munged.pid)"
exit "$status"
