#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A file of lib/ includes headers of its own room and of lower ones: lib/local.mk lists the rooms.
. "${top_srcdir:?run me by make check}/tests/common.sh"

cd "$top_srcdir/lib" || fail "no folder $top_srcdir/lib"
mapfile -t rooms < <(sed -n 's/^#\t\([a-z]*\)\(\.c\)\?  *[A-Za-z-].*/\1/p' local.mk)
((${#rooms[@]} >= 10)) || fail "lib/local.mk lists ${#rooms[@]} rooms"
declare -A level
for i in "${!rooms[@]}"; do
	level[${rooms[i]}]=$i
	[[ -e ${rooms[i]} || -e ${rooms[i]}.c ]] ||
		fail "lib/local.mk lists ${rooms[i]}, which is not there"
done

wrong=0 seen=0
while IFS=: read -r file line; do
	room=${file%%/*} room=${room%.c}
	header=${line#*\"} header=${header%\"*}
	# without a folder it is of the same room, and what is not in lib/ has no level
	[[ $header == */* && -e $header ]] || continue
	other=${header%%/*} seen=$((seen + 1))
	if [[ ! ${level[$room]-} || ! ${level[$other]-} ]]; then
		echo "lib/$file or lib/$header is in a room that lib/local.mk does not list" &&
			wrong=1
	elif ((level[$other] > level[$room])); then
		echo "lib/$file includes $header: $other is above $room" && wrong=1
	fi
done < <(grep -rE --include='*.[ch]' '^#include "' . | sed 's|^\./||')
((seen > 50)) || fail "only $seen includes from room to room were seen"
((!wrong)) || fail "see the list of rooms in lib/local.mk"
