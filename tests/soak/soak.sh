# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the soaks share: folders in which all that is left is theirs, and what has to be flat. After
# tests/common.sh, in a mount namespace.

# own_folders: /dev/shm is empty, and what is new in /tmp is in /mnt/tmp too.
own_folders() {
	unset TMPDIR
	if ! mount -t tmpfs tmpfs /dev/shm || ! mount -t tmpfs tmpfs /mnt ||
		! mkdir /mnt/tmp /mnt/work || ! chmod 1777 /mnt/tmp /dev/shm ||
		! mount -t overlay overlay -o lowerdir=/tmp,upperdir=/mnt/tmp,workdir=/mnt/work /tmp
	then
		skip soak "no folders of its own can be mounted"
	fi
}

# left_in_memory: files in shared memory, and System V's segments, queues and semaphores
left_in_memory() {
	find /dev/shm -mindepth 1
	tail -qn +2 /proc/sysvipc/{shm,msg,sem}
}

# left_in_tmp: but for the test's own folder, and the empty one that Open MPI may leave of a user
left_in_tmp() {
	find /mnt/tmp -mindepth 1 -path "/mnt${scratch:?}" -prune -o \
		! \( -name 'ompi.*' -type d -empty \) -print
}

# sample FILE PID: appends its memory in KiB and the number of its descriptors. The memory is what
# is resident: shares of what is mapped change with other processes of the machine.
sample() {
	local memory descriptors
	memory=$(awk '$1 == "Rss:" {print $2}' "/proc/$2/smaps_rollup") &&
		descriptors=$(find "/proc/$2/fd" -mindepth 1 | wc -l) && [[ $memory ]] &&
		echo "$memory $descriptors" >>"$1"
}

median() {
	cut -d ' ' -f "$1" | sort -n | awk '{all[NR] = $1} END {print all[int((NR + 1) / 2)]}'
}

# flat WHAT FILE KIB: in the last fifth of the samples the median memory is at most so much more
# than in the first, and that of descriptors is no more.
flat() {
	local column unit=KiB most=$3 count first last
	count=$((($(wc -l <"$2") + 4) / 5))
	for column in 1 2; do
		first=$(head -n "$count" "$2" | median $column)
		last=$(tail -n "$count" "$2" | median $column)
		echo "$1: $first $unit in the first fifth, $last in the last"
		((first && last <= first + most)) || fail "$1 is not flat: $(paste -sd, "$2")"
		unit=descriptors most=0
	done
}
