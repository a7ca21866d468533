#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two nodes, each a network namespace, and three ranks of which two are on the first node. Its first
# network does not reach the other node, all nodes have the loopback device's address for their
# name, and nobody is at the user's MASTER_ADDR.
. "${top_srcdir:?run me by make check}/tests/common.sh"
# shellcheck source=python/tests/torch.sh
. "$top_srcdir/python/tests/torch.sh"

need_command ip
if ! unshare --net --mount --uts true 2>/dev/null; then
	skip namespaces "no network namespaces can be made here"
fi
printf '127.0.0.1 localhost\n127.0.1.1 node\n' >"$scratch/hosts"
export MASTER_ADDR=node.invalid MASTER_PORT=1

# What a node does before it has networks.
begin_node() {
	mount --bind "$scratch/hosts" /etc/hosts && hostname node && ip link set lo up
}
rank() {
	timeout 100 "$TORCH_PYTHON" "$top_srcdir/python/tests/rendezvous.py" "$1" 3 "$folder" \
		>"$scratch/$1.out" 2>&1
}
export scratch TORCH_PYTHON top_srcdir
export -f begin_node rank

# shellcheck disable=SC2016
two_nodes='
	set -e
	begin_node
	mkfifo "$folder/made"
	unshare --net --mount --uts bash -c "
		begin_node && echo >$folder/made && read -r _ <$folder/wired && rank 2" &
	other=$!
	read -r _ <"$folder/made"
	# An interface that goes nowhere is first in the list of them.
	ip link add name blind type veth peer name blind_end
	ip link add name near type veth peer name near netns "$other"
	for at in blind,1 near,2; do
		ip addr add "${prefix}${at#*,}${colon}1/$bits" ${nodad-} dev "${at%,*}"
		ip link set "${at%,*}" up
	done
	ip link set blind_end up
	nsenter --net --target "$other" bash -c "
		ip addr add ${prefix}2${colon}2/$bits ${nodad-} dev near && ip link set near up"
	echo >"$folder/wired"
	rank 0 & rank 1 && wait $! && wait "$other"'

# ranks WANTED: the interfaces that the ranks say
ranks() {
	export folder=$scratch/$1
	mkdir "$folder"
	mkfifo "$folder/wired"
	timeout 120 unshare --net --mount --uts bash -c "$two_nodes" ||
		fail "$1: $(cat "$scratch"/[012].out)"
	said=$(cat "$scratch"/[012].out | grep '^rank')
	[[ $said == "$2" ]] || fail "$1: the ranks go by: $said"
}

by() {
	printf 'rank %s by %s\n' 0 "$1" 1 "$1" 2 "$1"
}
export prefix=10.9. colon=. bits=24
ranks ipv4 "$(by near)"
GLOO_SOCKET_IFNAME=near,near ranks of_the_user "$(by near,near)"
export prefix=fd00:9: colon=:: bits=64 nodad=nodad
ranks ipv6 "$(by near)"
