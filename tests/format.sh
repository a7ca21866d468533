#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All C is formatted as .clang-format says. Other versions of clang-format differ in details, so
# only this one judges.
version=14
. "${top_srcdir:?run me by make check}/tests/common.sh"

for format in clang-format-$version clang-format ''; do
	[[ $format ]] || skip clang-format "there is no clang-format $version"
	[[ $("$format" --version 2>/dev/null) == *"version $version."* ]] && break
done

cd "$top_srcdir" || fail "no folder $top_srcdir"
folders=()
for folder in lib kernels launcher spank examples tests; do
	[[ -d $folder ]] && folders+=("$folder")
done
# a Python of the tests lies below them, with C of its own
find "${folders[@]}" -name venv -prune -o -name '*.[ch]' -print0 |
	xargs -0 "$format" --style=file --dry-run --Werror ||
	fail "$format -i FILE makes these right"
